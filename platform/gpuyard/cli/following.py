"""Following a lease on a terminal: progress, logs, and Ctrl-C that leaves the lease alone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.status import Status
from rich.text import Text

from gpuyard.cli import problems, tongue, values
from gpuyard.cli.session import Session
from gpuyard.cli.tables import printable
from gpuyard.durations import show
from gpuyard.objects import Lease, LeaseEvent, LogPiece


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
            self._status.update(Text(text))  # a plain text: no word of a server is markup
        else:
            self._session.say(f"{show(time.monotonic() - self._began):>6}  {text}")


def doing(lease: dict[str, Any]) -> str:
    """Return in a line what the lease is doing."""
    parts = [f"{lease.get('id')} {lease.get('state')}{values.badge(lease)}"]
    waiting = lease.get("why_waiting")
    if isinstance(waiting, dict) and waiting.get("text"):
        parts.append(str(waiting["text"]))
    if lease.get("queue_place"):
        parts.append(tongue.said(f"place {lease['queue_place']} in the queue"))
    if values.eta(lease):
        parts.append(tongue.said(f"expected {values.eta(lease)}"))
    for member in lease.get("members") or []:
        step = member.get("detail") or member.get("state")
        if step and lease.get("state") == "provisioning":
            parts.append(f"member {member.get('rank')}: {step}")
    if lease.get("end_reason"):
        parts.append(values.ended_by(lease["end_reason"]))
    return "; ".join(parts)


def wait(session: Session, lease_id: str, *, until: Sequence[str], timeout_s: float | None) -> Lease:
    """Wait with progress. Raises WaitTimedOut, LeaseEnded, or Interrupted after Ctrl-C."""
    with keeping(session, lease_id), Progress(session) as progress:
        return session.client.leases.wait(lease_id, until=until, timeout_s=timeout_s, on_change=progress.show)


def print_output(session: Session, lease_id: str, pieces: Iterable[LogPiece], *, member: int = 0) -> None:
    """Print what a member prints, piece after piece; after Ctrl-C, say how to go on behind what was printed."""
    printed = None
    try:
        for piece in pieces:
            print_piece(session, piece)
            printed = piece.offset + len(piece.text.encode())
    except KeyboardInterrupt:
        session.say("")
        for line in problems.following(lease_id, offset=printed, member=member):
            session.say(line)
        raise Interrupted from None


def print_piece(session: Session, piece: LogPiece) -> None:
    """Print a piece of output as it is; with --json, as one JSON object a line."""
    if session.output == "json":
        click.echo(json.dumps(piece.to_dict(), ensure_ascii=False))
        return
    # Not made printable: it is the program's own output, colours and progress bars included.
    stream = sys.stderr if piece.stream == "stderr" else sys.stdout
    stream.write(piece.text)
    stream.flush()


def print_event(session: Session, event: LeaseEvent) -> None:
    """Print an event as a line; with --json, as one JSON object a line."""
    row = event.to_dict()
    moved = f"{row.get('from_state') or 'new'} -> {row.get('to_state')}"
    told = f"{row.get('at')}  {moved}  {values.plain(row.get('reason'))}  {values.plain(row.get('detail'))}"
    click.echo(json.dumps(row, ensure_ascii=False) if session.output == "json" else printable(told).rstrip())
