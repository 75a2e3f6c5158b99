"""Tells systemd that the agent lives (sd_notify: a datagram to $NOTIFY_SOCKET). Elsewhere it does nothing."""

import contextlib
import os
import socket


def tell(state: str) -> None:
    """Send one state, such as "READY=1" or "WATCHDOG=1"."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, contextlib.suppress(OSError):
        notify.sendto(state.encode(), address)
