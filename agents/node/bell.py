"""A bell: one thread rings, another waits for it together with a socket. It costs nothing while nobody rings."""

import os
import select


class Bell:
    """An eventfd. Rings that come before anybody waits are kept, and many are heard as one."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def ring(self) -> None:
        os.eventfd_write(self._fd, 1)

    def clear(self) -> bool:
        """Forget the rings so far; return whether there were any."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return False
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait for a ring at most `timeout_s`, and clear it; return whether it rang."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(max(0, int(timeout_s * 1000)))
        return self.clear()
