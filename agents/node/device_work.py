"""What takes a context on a GPU, done by a child that is started by exec, has a deadline, and ends: figures, and memory
written over between two tenants.

    python -m agents.node.device_work figures UUID SECONDS   -> {"figures": {...}}
    python -m agents.node.device_work overwrite UUID SECONDS -> {"overwritten_mib": n}

or {"absent": why} where nothing can be said, or {"fault": why} where the device is at fault. The core itself never
opens the library: a call into a dead driver hangs, and a context takes memory and power. The memory of a context counts
against whoever starts the child: where systemd listens for us (gpuyard-work.socket) it starts it, beside the agent and
with limits of its own; the line that is sent there has the same words, and what comes back is the same answer.

What is measured: h2d_mib_per_s and d2h_mib_per_s, copies of pinned memory over the link; memory_mib_per_s, copies
within the device, each byte counted when it is read and when it is written; memory_tested_mib, as much of 90 % of the
free memory as held what was written within the time. Not measured: arithmetic (it takes a program for the GPU).
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from agents.node.cuda import Cuda, CudaFault, NoCuda

MIB = 1024 * 1024
CHUNK = 64 * MIB
COPY_MOST = 256 * MIB
MEASURE_S = 0.3
START_S = 15.0  # for the library to open the device, on top of the time for the work
TERM_WAIT_S = 5.0
PART_OF_MEMORY = 0.9
WORDS = (0xA5A5A5A5, 0x5A5A5A5A, 0xFFFFFFFF, 0x01234567)

VERBS = ("figures", "overwrite")
SOCKET = "/run/gpuyard-work.sock"  # GPUYARD_WORK_SOCKET names another
MOST_BYTES = 64 * 1024

Answer = dict[str, Any]


def ask(verb: str, uuid: str, *, within_s: float) -> Answer:
    """Have a child do it, beside us or below us, and return its answer."""
    answer = _beside(f"{verb} {uuid} {within_s:.1f}\n", within_s=within_s + START_S)
    return _below(verb, uuid, within_s=within_s) if answer is None else answer


def _beside(line: str, *, within_s: float) -> Answer | None:
    """Have it done by a process with limits of its own; None where nobody listens for that."""
    deadline, said = time.monotonic() + within_s, b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        try:
            peer.settimeout(within_s)
            peer.connect(os.environ.get("GPUYARD_WORK_SOCKET", SOCKET))
        except OSError:
            return None
        try:
            peer.sendall(line.encode())
            while len(said) < MOST_BYTES:
                peer.settimeout(max(0.01, deadline - time.monotonic()))
                if not (piece := peer.recv(4096)):
                    break
                said += piece
            answer: Answer = json.loads(said)
        except TimeoutError:
            return {"absent": f"no answer within {within_s:.0f} s"}
        except (OSError, ValueError):
            return {"absent": "the work ended without an answer: its limits may be too narrow"}
    return answer


def _below(verb: str, uuid: str, *, within_s: float) -> Answer:
    """Have a child of ours do it. One that is late is asked to end, and left alone if it hangs."""
    command = [sys.executable, "-m", "agents.node.device_work", verb, uuid, f"{within_s:.1f}"]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        output, _ = child.communicate(timeout=within_s + START_S)
    except subprocess.TimeoutExpired:
        child.terminate()
        try:
            child.communicate(timeout=TERM_WAIT_S)
        except subprocess.TimeoutExpired:
            child.kill()  # and not waited for: in a dead driver it survives even that
        return {"absent": f"no answer within {within_s + START_S:.0f} s"}
    try:
        answer: Answer = json.loads(output)
    except ValueError:
        return {"absent": f"the child ended with {child.returncode}"}
    return answer


def figures(cuda: Cuda, *, until_s: float) -> dict[str, int]:
    """Return what can be measured until `until_s` (of time.monotonic). Raises CudaFault."""
    found: dict[str, int] = {}
    size = _even(min(COPY_MOST, cuda.free() // 4))
    first, second = cuda.allocate(size), cuda.allocate(size)
    with cuda.pinned(min(size, CHUNK)) as host:
        part = min(size, CHUNK)
        found["h2d_mib_per_s"] = _rate(cuda, lambda: cuda.to_device(first, host, part), part)
        found["d2h_mib_per_s"] = _rate(cuda, lambda: cuda.to_host(host, first, part), part)
    found["memory_mib_per_s"] = _rate(cuda, lambda: cuda.copy(second, first, size), 2 * size)
    for address in (first, second):
        cuda.release(address)
    found["memory_tested_mib"] = test_memory(cuda, until_s=until_s) // MIB
    return found


def _rate(cuda: Cuda, copy: Callable[[], None], size: int) -> int:
    """Return MiB per second of a copy that moves `size` bytes, over MEASURE_S after one that does not count."""
    copy()
    cuda.wait()
    began_s, rounds = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - began_s) < MEASURE_S or rounds < 2:
        for _ in range(4):
            copy()
        cuda.wait()
        rounds += 4
    return int(rounds * size / MIB / elapsed_s)


def test_memory(cuda: Cuda, *, until_s: float) -> int:
    """Fill most of the free memory, each part with another word; return how many bytes were read back as written in
    time. Raises CudaFault if one was not."""
    chunks = fill_memory(cuda, until_s=until_s)
    tested = 0
    with cuda.pinned(CHUNK) as host:
        for number, (address, size) in enumerate(chunks):
            if time.monotonic() > until_s:
                break
            word = WORDS[number % len(WORDS)]
            cuda.to_host(host, address, size)
            if not _is_full_of(host, word, size):
                raise CudaFault(f"memory does not hold what was written to it (part {number} of {len(chunks)})")
            tested += size
    for address, _ in chunks:
        cuda.release(address)
    return tested


def fill_memory(cuda: Cuda, *, until_s: float) -> list[tuple[int, int]]:
    """Take and fill most of the free memory; return (address, bytes) of each part."""
    left = int(cuda.free() * PART_OF_MEMORY)
    chunks: list[tuple[int, int]] = []
    while left >= MIB and time.monotonic() < until_s:
        size = _even(min(CHUNK, left))
        try:
            address = cuda.allocate(size)
        except CudaFault:
            break  # in pieces, the last of it cannot be had
        cuda.fill(address, WORDS[len(chunks) % len(WORDS)], size)
        chunks.append((address, size))
        left -= size
    cuda.wait()
    return chunks


def _is_full_of(host: int, word: int, size: int) -> bool:
    """Return whether a host buffer is one word over and over: equal to itself a word further on."""
    libc = ctypes.CDLL(None)
    libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    first = ctypes.c_uint32.from_address(host).value
    return first == word and libc.memcmp(host, host + 4, size - 4) == 0


def _even(size: int) -> int:
    return max(MIB, size // MIB * MIB)


def overwrite(cuda: Cuda, *, until_s: float) -> int:
    """Write over the free memory; return how many bytes."""
    chunks = fill_memory(cuda, until_s=until_s)
    for address, size in chunks:
        cuda.fill(address, 0, size)
    cuda.wait()
    return sum(size for _, size in chunks)


def main(verb: str, uuid: str, within_s: float) -> Answer:
    try:
        cuda = Cuda(uuid)
    except NoCuda as fault:
        return {"absent": str(fault)}
    except CudaFault as fault:
        return {"fault": str(fault)}
    until_s = time.monotonic() + within_s
    try:
        if verb == "figures":
            return {"figures": figures(cuda, until_s=until_s)}
        return {"overwritten_mib": overwrite(cuda, until_s=until_s) // MIB}
    except NoCuda as fault:
        return {"absent": str(fault)}
    except CudaFault as fault:
        return {"fault": str(fault)}
    finally:
        cuda.close()


def serve() -> int:
    """Read one line of "VERB UUID SECONDS" from the standard input, and answer it: what gpuyard-work.socket starts."""
    verb, uuid, within_s = sys.stdin.readline(MOST_BYTES).split()
    if verb not in VERBS:
        return 2
    print(json.dumps(main(verb, uuid, float(within_s))), flush=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(serve())
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
