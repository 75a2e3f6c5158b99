"""Listening for a while at ports that the owner gave to the market, so that the server can see whether they are open.

The agent listens nowhere else, and not for longer: who connects is told the word of this look, and let go.
"""

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

PORTS_MOST = 4
LISTEN_MOST_S = 90.0
BACKLOG = 8


def listen(
    wish: dict[str, Any],
    *,
    given: tuple[int, int] | None,
    said: Callable[[list[int]], None],
    is_over: Callable[[], bool],
) -> None:
    """Listen at the ports of the wish that lie in `given`, [first, end); tell `said` at which, and say its word there.

    A port that something else on this machine listens at is left out. Returns when the time of the wish is over, or
    `is_over` says so.
    """
    word, asked, for_s = wish.get("word"), wish.get("ports"), wish.get("for_s")
    ports = [port for port in asked if type(port) is int] if isinstance(asked, list) else []
    ports = [port for port in ports if given is not None and given[0] <= port < given[1]][:PORTS_MOST]
    until = time.monotonic() + min(LISTEN_MOST_S, max(0.0, float(for_s) if isinstance(for_s, (int, float)) else 0.0))
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        found = []
        for port in ports if isinstance(word, str) and word.isalnum() else []:
            listener = _listener(port)
            if listener is not None:
                stack.enter_context(listener)
                selector.register(listener, selectors.EVENT_READ)
                found.append(port)
        said(found)
        while found and not is_over() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(min(left, 1.0)):
                _greet(key.fileobj, str(word))


def _listener(port: int) -> socket.socket | None:
    """Return a socket that listens at the port, in both families where the machine has them; None: it is taken."""
    try:
        both = socket.has_dualstack_ipv6()
        return socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both, backlog=BACKLOG
        )
    except OSError:
        return None


def _greet(listener: Any, word: str) -> None:
    try:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(1.0)
            connection.sendall(word.encode())
    except OSError:
        pass  # he has gone
