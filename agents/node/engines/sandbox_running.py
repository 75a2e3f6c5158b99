"""Part of the process sandbox: a tenant's own command beside his workload, as the same user, in the same folder."""

import os
import selectors
import signal
import subprocess
import time
from pathlib import Path

from agents.node.engines import Ran

NOBODY = 65534


def run(argv: list[str], *, env: dict[str, str], folder: Path, timeout_s: float, limit: int) -> Ran:
    """Run `argv` until it ends, time is over, or it has said more than `limit` bytes; nothing of it runs on then."""
    as_nobody = os.geteuid() == 0
    try:
        child = subprocess.Popen(
            argv,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=NOBODY if as_nobody else None,
            group=NOBODY if as_nobody else None,
            extra_groups=[] if as_nobody else None,
        )
    except FileNotFoundError:
        return Ran(exit_code=127, output=f"{argv[0]}: not found".encode())
    except OSError as fault:
        return Ran(exit_code=126, output=f"{argv[0]}: {fault.strerror}".encode())
    output, is_late = _read(child, until_s=time.monotonic() + timeout_s, limit=limit)
    is_over = not is_late and len(output) <= limit
    if not is_over:
        os.killpg(child.pid, signal.SIGKILL)
    code = child.wait()
    return Ran(
        exit_code=code if is_over else None, output=output[:limit], truncated=len(output) > limit, timed_out=is_late
    )


def _read(child: subprocess.Popen[bytes], *, until_s: float, limit: int) -> tuple[bytes, bool]:
    assert child.stdout is not None
    output = b""
    with selectors.DefaultSelector() as ready, child.stdout as pipe:
        ready.register(pipe, selectors.EVENT_READ)
        while (left_s := until_s - time.monotonic()) > 0:
            if not ready.select(left_s):
                continue
            piece = os.read(pipe.fileno(), 64 * 1024)
            output += piece
            if not piece or len(output) > limit:
                return output, False
    return output, True
