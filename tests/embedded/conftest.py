"""State folders for the servers of the embedded stack."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded import server_home


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A state folder that an unprivileged account can pass through, which pytest's own `tmp_path` is not."""
    with tempfile.TemporaryDirectory(prefix="gpuyard-embedded-") as folder:
        Path(folder).chmod(0o755)
        yield server_home.make_state_dir(Path(folder) / "state")
