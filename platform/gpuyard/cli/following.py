"""Following a lease on a terminal: progress, logs, and Ctrl-C that leaves the lease alone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from rich.status import Status

from gpuyard.cli import problems, values
from gpuyard.cli.session import Session
from gpuyard.cli.tables import printable
from gpuyard.durations import show
from gpuyard.objects import Lease, LogLine


class Interrupted(click.exceptions.Exit):
    """Ctrl-C while a lease was followed; it was told how to follow or stop it."""

    def __init__(self) -> None:
        super().__init__(problems.INTERRUPTED)


@contextmanager
def keeping(session: Session, lease_id: str) -> Iterator[None]:
    """Let Ctrl-C end the following and not the lease, and say so."""
    try:
        yield
    except KeyboardInterrupt:
        session.say("")
        for line in problems.following(lease_id):
            session.say(line)
        raise Interrupted from None


class Progress:
    """Says what a lease is doing: one line that changes on a terminal, else a line for each change."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._began = time.monotonic()
        self._last = ""
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self._session.talk.is_terminal:
            self._status = self._session.talk.status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, lease: Lease) -> None:
        text = printable(doing(lease.to_dict()))
        if text == self._last:
            return
        self._last = text
        if self._status is not None:
            self._status.update(text)
        else:
            self._session.say(f"{show(time.monotonic() - self._began):>6}  {text}")


def doing(lease: dict[str, Any]) -> str:
    """Return in a line what the lease is doing."""
    parts = [f"{lease.get('id')} {lease.get('state')}{values.badge(lease)}"]
    waiting = lease.get("why_waiting")
    if isinstance(waiting, dict) and waiting.get("text"):
        parts.append(str(waiting["text"]))
    if lease.get("queue_place"):
        parts.append(f"place {lease['queue_place']} in the queue")
    if values.eta(lease):
        parts.append(f"expected {values.eta(lease)}")
    for member in lease.get("members") or []:
        step = member.get("detail") or member.get("state")
        if step and lease.get("state") == "provisioning":
            parts.append(f"member {member.get('rank')}: {step}")
    if lease.get("end_reason"):
        parts.append(values.END_REASONS.get(lease["end_reason"], lease["end_reason"]))
    return "; ".join(parts)


def wait(session: Session, lease_id: str, *, until: Sequence[str], timeout_s: float | None) -> Lease:
    """Wait with progress. Raises WaitTimedOut, LeaseEnded, or Interrupted after Ctrl-C."""
    with keeping(session, lease_id), Progress(session) as progress:
        return session.client.leases.wait(lease_id, until=until, timeout_s=timeout_s, on_change=progress.show)


def print_line(session: Session, line: LogLine, *, timestamps: bool = False) -> None:
    """Print a line of output to the stream it came from; with --json, as one JSON object a line to stdout."""
    if session.output == "json":
        click.echo(json.dumps(line.to_dict(), ensure_ascii=False))
        return
    head = f"{line.to_dict().get('at')} " if timestamps else ""
    # Not made printable: it is the program's own output, colours and progress bars included.
    click.echo(head + line.text.removesuffix("\n"), err=line.stream == "stderr")
    (sys.stderr if line.stream == "stderr" else sys.stdout).flush()


def recent(line: LogLine, since_s: int | None) -> bool:
    if since_s is None or line.at is None:
        return True
    return (datetime.now(UTC) - line.at).total_seconds() <= since_s


def container_exit_code(lease: Lease) -> int | None:
    """Return the exit code of the lease's command: the first that is not 0, by rank; None if none is known."""
    if lease.exit_code is not None:
        return lease.exit_code
    codes = []
    for member in lease.members or []:
        container = member.container
        nested = container.to_dict().get("exit_code") if container is not None else None
        codes.append(member.exit_code if member.exit_code is not None else nested)
    known = [code for code in codes if isinstance(code, int)]
    return next((code for code in known if code), known[0] if known else None)
