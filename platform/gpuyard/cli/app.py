"""The command itself: its verbs, and the one place where errors become text and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, NoReturn

import click

from gpuyard.cli import (
    exec_verb,
    group_verbs,
    host_money,
    lease_acts,
    lease_verbs,
    market_verbs,
    metric_verbs,
    money_verbs,
    own_verbs,
    people_verbs,
    problems,
    reaching_verbs,
    receipt_verbs,
    setup_verbs,
    tongue,
)
from gpuyard.cli.session import Session, common_options
from gpuyard.errors import GpuyardError


class Root(click.Group):
    """Catches at the door whatever a verb did not."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        here = Session()
        try:
            code = super().main(args, *rest, obj=here, **kwargs)
        except GpuyardError as error:
            code = _tell(here, error)
        except click.ClickException as wrong:
            wrong.show()
            code = wrong.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo(tongue.said("Interrupted."), err=True)
            code = problems.INTERRUPTED
        except BrokenPipeError:
            # Whoever read us has had enough (`| head`); the interpreter must not complain when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = problems.OK
        sys.exit(code if isinstance(code, int) else problems.OK)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs by what they are about, instead of all of them by the alphabet."""
        left = {name: verb for name, verb in self.commands.items() if not verb.hidden}
        width = max(map(len, left))
        for topic, names in _TOPICS.items():
            room = formatter.width - width - 6
            rows = [(f"{name:<{width}}", left.pop(name).get_short_help_str(room)) for name in names]
            with formatter.section(topic):
                formatter.write_dl(rows)
        assert not left, f"{sorted(left)} stand under no topic"


_TOPICS = {
    "Lease GPUs": ("offers", "plan", "quote", "run", "lease", "ps", "logs", "exec", "ssh", "port-forward", "stop"),
    "What there is": ("models", "regions", "image", "market"),
    "What leases use": ("secret", "volume"),
    "Money": ("wallet", "statement", "invoice", "budget", "receipt", "earnings", "payout"),
    "Machines of your own": ("host",),
    "Organization": ("key", "member", "group", "webhook", "audit"),
    "This command": ("login", "config", "completion"),
    "A gpuyard on this machine": ("up", "down", "status"),
}


def _tell(here: Session, error: GpuyardError) -> int:
    if here.asked_output == "json":
        click.echo(problems.as_data(error), err=True)
    else:
        for line in problems.lines(error):
            click.echo(tongue.said(line), err=True)
    return problems.exit_code(error)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(metadata.version("gpuyard"), prog_name="gpuyard")
def cli() -> None:
    """Lease GPUs, run things on them, and look after machines of your own.

    gpuyard run "A100_80G x4" --image pytorch_latest -- python train.py

    \b
    Exit codes: 0 ok, 1 error, 2 usage or refused input, 3 not found, 4 not signed in or not allowed,
    5 conflict, 6 no capacity, 7 quota, budget or balance, 8 still waiting, 130 interrupted;
    `run` exits with its command's. --help behind a verb says what it takes.
    """


cli.params += common_options()
for verb in (
    *(setup_verbs.login, setup_verbs.config_, market_verbs.offers, market_verbs.quote, metric_verbs.lease),
    *(lease_verbs.run, lease_acts.plan, lease_verbs.ps, lease_verbs.logs, lease_verbs.stop),
    *(exec_verb.exec_, reaching_verbs.ssh, reaching_verbs.port_forward),
    *(
        market_verbs.images,
        own_verbs.image,
        own_verbs.secret,
        own_verbs.volume,
        market_verbs.models,
        market_verbs.regions,
    ),
    *(market_verbs.market, money_verbs.wallet, money_verbs.invoice, money_verbs.statement, money_verbs.budget),
    *(host_money.host, money_verbs.earnings, money_verbs.payout, receipt_verbs.receipt),
    *(people_verbs.key, people_verbs.member, group_verbs.group, people_verbs.webhook, people_verbs.audit),
    *(setup_verbs.completion, setup_verbs.up, setup_verbs.down, setup_verbs.status),
):
    cli.add_command(verb)


def main() -> NoReturn:
    cli.main(prog_name="gpuyard")
