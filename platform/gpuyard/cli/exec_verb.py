"""gpuyard exec."""

from __future__ import annotations

import click

from gpuyard.cli import naming
from gpuyard.cli.session import Verb, session

NOT_RUN = 1


@click.command("exec", cls=Verb)
@naming.lease_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--member", type=click.IntRange(min=0), default=0, help="The rank of the machine in a gang.")
@click.option("--timeout", "timeout_s", type=click.IntRange(1, 300), default=60, help="Kill it after so many seconds.")
def exec_(lease_id: str, command: tuple[str, ...], member: int, timeout_s: int) -> None:
    """Run a COMMAND (behind `--`) in a lease's container, and print what it said.

    It runs as what the container runs as, without a terminal; its exit code is ours.
    """
    here = session()
    done = here.client.leases.exec(lease_id, command, member=member, timeout_s=timeout_s)
    if here.output in ("json", "yaml"):
        here.show(done, lambda row: [])
    else:
        click.echo(done.output, nl=False)
    if done.truncated:
        here.say("It said more than is carried: it was ended there.")
    if done.failure or done.state == "lost":
        here.say(done.failure or "The host said nothing in time: whether it ran is not known.")
    click.get_current_context().exit(NOT_RUN if done.exit_code is None else done.exit_code % 256)
