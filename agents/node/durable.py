"""Small files that survive a power cut: written beside, synced, renamed, and the folder synced."""

import os
from pathlib import Path


def write(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace `path` by `text` at once: a reader sees the old or the new, and after return the new is on the disk."""
    beside = path.with_name(path.name + ".new")
    with open(beside, "w", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
