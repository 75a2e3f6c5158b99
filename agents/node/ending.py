"""SIGTERM and SIGINT ask for an orderly end, however many of them come and whatever the process does just then.

A handler runs between two instructions of the main thread, which may hold the very lock that `Event.set` takes: it
would wait for itself for ever. So the handler only puts a word into a queue without a lock, and a thread does the rest.
"""

import queue
import signal
import threading
from collections.abc import Callable


def on_signals(end: Callable[[], None]) -> None:
    """Call `end` in a thread when the first of them comes; further ones change nothing. Only for the main thread."""
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait() -> None:
        asked.get()
        end()

    threading.Thread(target=wait, name="ending", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.put(None))
