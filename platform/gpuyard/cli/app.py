"""The command itself: its verbs, and the one place where errors become text and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, NoReturn

import click

from gpuyard.cli import (
    host_verbs,
    lease_verbs,
    market_verbs,
    money_verbs,
    people_verbs,
    problems,
    receipt_verbs,
    setup_verbs,
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
            click.echo("Interrupted.", err=True)
            code = problems.INTERRUPTED
        except BrokenPipeError:
            # Whoever read us has had enough (`| head`); the interpreter must not complain when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = problems.OK
        sys.exit(code if isinstance(code, int) else problems.OK)


def _tell(here: Session, error: GpuyardError) -> int:
    if here.asked_output == "json":
        click.echo(problems.as_data(error), err=True)
    else:
        for line in problems.lines(error):
            click.echo(line, err=True)
    return problems.exit_code(error)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(metadata.version("gpuyard"), prog_name="gpuyard")
def cli() -> None:
    """Lease GPUs, run things on them, and look after machines of your own.

    gpuyard run "A100_80G x4" --image pytorch_latest -- python train.py
    """


cli.params += common_options()
for verb in (
    *(setup_verbs.login, setup_verbs.config_, market_verbs.offers, market_verbs.quote, lease_verbs.lease),
    *(lease_verbs.run, lease_verbs.ps, lease_verbs.logs, lease_verbs.stop, money_verbs.wallet, money_verbs.invoice),
    *(market_verbs.images, market_verbs.models, market_verbs.regions, market_verbs.market, host_verbs.host),
    *(people_verbs.key, people_verbs.member, people_verbs.webhook, setup_verbs.completion, receipt_verbs.receipt),
    *(setup_verbs.up, setup_verbs.down, setup_verbs.status),
):
    cli.add_command(verb)


def main() -> NoReturn:
    cli.main(prog_name="gpuyard")
