"""The output of one container, read once and kept until the server has it: a bounded window over a followed stream.

The engine's log has no offsets. Reading it anew for each chunk would cost the square of its length, so one thread
follows it, skips what the server has, and pauses while the window is full.
"""

import threading
from collections.abc import Callable

from agents.node.engines import EngineError
from agents.node.engines.unix_http import Answer

WINDOW_BYTES = 128 * 1024
END_WAIT_S = 2.0


class Following:
    """One followed log. open_stream: opens the engine's log stream from its beginning. to_the_end: its container had
    ended before, so that the stream's end is the log's."""

    def __init__(self, open_stream: Callable[[], Answer], *, offset: int, to_the_end: bool = False) -> None:
        self._open, self.to_the_end = open_stream, to_the_end
        self._first = offset  # the byte that window[0] is
        self._window = bytearray()
        self._changed = threading.Condition()
        self._stopped = False
        self.ended = False
        self._answer: Answer | None = None
        threading.Thread(target=self._follow, name="log", daemon=True).start()

    def covers(self, offset: int) -> bool:
        with self._changed:
            return self._first <= offset

    def read(self, *, offset: int, limit: int) -> bytes:
        """Return what is there from `offset` on, and forget what is before it."""
        with self._changed:
            done = min(len(self._window), offset - self._first)
            if done > 0:
                del self._window[:done]
                self._first += done
                self._changed.notify_all()
            return bytes(self._window[:limit])

    def wait_for_end(self) -> None:
        """Wait a moment for the end of the stream of a container that has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or len(self._window) >= WINDOW_BYTES, END_WAIT_S)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            answer = self._answer
        if answer is not None:
            answer.interrupt()

    def _follow(self) -> None:
        try:
            with self._open() as answer:
                self._answer = answer
                skip = self._first
                for piece in answer.frames():
                    kept = piece[skip:]
                    skip = max(0, skip - len(piece))
                    if kept and not self._put(kept):
                        return
        except (EngineError, OSError):
            return  # `ended` says that it must be opened anew
        finally:
            with self._changed:
                self.ended = True
                self._changed.notify_all()

    def _put(self, piece: bytes) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._window) < WINDOW_BYTES or self._stopped)
            self._window += piece
            return not self._stopped
