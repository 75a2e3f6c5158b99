"""Listening on this machine, and passing bytes on to a published port of a lease and back, connection by connection."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from gpuyard.cli import problems, reaching
from gpuyard.cli.session import Session
from gpuyard.errors import GpuyardError

CONNECT_S = 10.0
_CHUNK = 64 * 1024
_PAIR = re.compile(r"(?:([0-9]{1,5}):)?([0-9]{1,5})", re.ASCII)


class PortPair(click.ParamType[tuple[int, int]]):
    """LOCAL:REMOTE, or one number for both."""

    name = "ports"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        found = _PAIR.fullmatch(value)
        local, remote = (int(found[1] or found[2]), int(found[2])) if found else (0, 0)
        if not 1 <= remote <= 65_535 or local > 65_535:
            self.fail(f"{value!r} is no pair of ports: write 8888, or 9000:8888 for LOCAL:REMOTE.", param, ctx)
        return local, remote


class _Listener(socketserver.ThreadingTCPServer):
    """One local port. Where it leads is asked again when nobody answers there: the lease may have moved."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, session: Session, local: int, target: reaching.Reached) -> None:
        self.session, self.target, self.gone = session, target, threading.Event()
        super().__init__(("127.0.0.1", local), _Connection)

    def dial(self) -> socket.socket:
        """Connect to the published port. Raises OSError, GpuyardError or ClickException."""
        try:
            return _connect(self.target)
        except OSError:
            now = reaching.find(self.session.client, self.target.lease_id, rank=self.target.rank, port=self.target.port)
            if now == self.target:
                raise
            self.session.say(f"Port {now.port} of {now.lease_id} is at {now.address}:{now.host_port} now.")
            self.target = now
            return _connect(now)


def _connect(target: reaching.Reached) -> socket.socket:
    made = socket.create_connection((target.address, target.host_port), timeout=CONNECT_S)
    made.settimeout(None)
    return made


class _Connection(socketserver.BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        try:
            there = self.server.dial()
        except OSError as broken:
            target = self.server.target
            self.server.session.say(f"Nobody answers at {target.address}:{target.host_port}: {broken}", style="yellow")
            return
        except (GpuyardError, click.ClickException) as error:
            self.server.session.say(str(getattr(error, "message", error)), style="yellow")
            self.server.gone.set()
            return
        with there:
            back = threading.Thread(target=_pump, args=(there, self.request), daemon=True)
            back.start()
            _pump(self.request, there)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what comes until its end, and then the end itself: the other direction may go on."""
    try:
        while data := source.recv(_CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        # One side is gone. Both are closed, so that the other direction does not wait for ever.
        for end in (source, sink):
            _shut(end)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was closed already


def serve(session: Session, pairs: Sequence[tuple[int, reaching.Reached]]) -> None:
    """Forward until Ctrl-C, or until the lease is there no more. Raises ClickException if a local port is taken."""
    try:
        with ExitStack() as stack:
            listeners = [stack.enter_context(_listen(session, local, target)) for local, target in pairs]
            for listener in listeners:
                threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
                stack.callback(listener.shutdown)
                target = listener.target
                session.say(f"127.0.0.1:{listener.server_address[1]} -> port {target.port} of {target.lease_id}")
            while not any(listener.gone.wait(0.2) for listener in listeners):
                pass
    except KeyboardInterrupt:
        session.say(f"The forwarding has ended; the lease {pairs[0][1].lease_id} goes on.")
        raise click.exceptions.Exit(problems.INTERRUPTED) from None
    raise click.exceptions.Exit(problems.ERROR)


def _listen(session: Session, local: int, target: reaching.Reached) -> _Listener:
    try:
        return _Listener(session, local, target)
    except OSError as taken:
        raise click.ClickException(f"Port {local} of this machine cannot be used: {taken.strerror}.") from taken
