"""A knock at a port: connect, listen for a word, send nothing."""

import socket
import time

WITHIN_S = 4.0


def hears(address: str, port: int, word: str) -> bool:
    """Return whether the machine at this address and port says `word`. Waits for at most WITHIN_S."""
    until = time.monotonic() + WITHIN_S
    wanted, heard = word.encode(), b""
    try:
        with socket.create_connection((address, port), timeout=WITHIN_S) as connection:
            while len(heard) < len(wanted) and (left := until - time.monotonic()) > 0:
                connection.settimeout(left)
                chunk = connection.recv(len(wanted) - len(heard))
                if not chunk:
                    break
                heard += chunk
    except OSError:
        return False
    return heard == wanted
