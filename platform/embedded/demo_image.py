"""A small image made of this machine's own shell, for a container engine that reaches no registry.

It holds a real userland (busybox where there is a static one, else sh and a few commands with the libraries that they
link to) and one program: it says which GPUs it sees, beats, and ends when it is told to.
"""

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

REFERENCE = "localhost/gpuyard/demo:1"
COMMANDS = ("sh", "env", "sleep", "cat", "ls", "id", "date", "true")
PROGRAM = """#!/bin/sh
# The simulated driver names the leased GPUs in the environment; there is no hardware behind them.
trap 'echo "stopping: SIGTERM received"; exit 0' TERM
echo "a real container, made of this machine's shell; its GPUs are simulated"
n=0; IFS=,
for gpu in $GPUYARD_GPU_UUIDS; do echo "GPU $n: $gpu (simulated)"; n=$((n+1)); done
echo "$n GPUs visible; rank ${NODE_RANK:-0} of ${NNODES:-1}"
beat=0
while :; do
  beat=$((beat+1)); echo "heartbeat $beat"
  sleep 1 & wait $!
done
"""


def archive() -> bytes:
    """Return the image's root file system as a tar. Raises FileNotFoundError where this machine lacks a command."""
    busybox = shutil.which("busybox")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for folder in ("bin", "etc", "tmp", "proc", "sys", "dev"):
            _add(tar, folder, kind=tarfile.DIRTYPE, mode=0o1777 if folder == "tmp" else 0o755)
        _add(tar, "etc/passwd", b"root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n", mode=0o644)
        _add(tar, "bin/gpuyard-demo", PROGRAM.encode())
        if busybox and not _libraries(Path(busybox)):
            _add(tar, "bin/busybox", Path(busybox).resolve().read_bytes())
            for name in COMMANDS:
                _add(tar, f"bin/{name}", kind=tarfile.SYMTYPE, target="busybox")
        else:
            _add_with_libraries(tar)
    return raw.getvalue()


def _add_with_libraries(tar: tarfile.TarFile) -> None:
    libraries: set[str] = set()
    for name in COMMANDS:
        found = shutil.which(name)
        if found is None:
            raise FileNotFoundError(f"this machine has no {name}")
        _add(tar, f"bin/{name}", Path(found).resolve().read_bytes())
        libraries.update(_libraries(Path(found)))
    for library in sorted(libraries):
        # Under the very path by which the loader looks for it.
        _add(tar, library.lstrip("/"), Path(library).resolve().read_bytes())


def _libraries(program: Path) -> list[str]:
    """Return the shared libraries of a program and its loader, [] if it is static."""
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    return re.findall(r"(/\S+) \(0x", said.stdout)


def _add(
    tar: tarfile.TarFile,
    name: str,
    content: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    mode: int = 0o755,
    target: str = "",
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.size = kind, mode, target, len(content)
    tar.addfile(entry, io.BytesIO(content))
