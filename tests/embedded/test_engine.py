"""A real engine for the pool: started for the stack alone, tried before it is taken, gone with it."""

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from embedded import demo_image, engine, process_table
from embedded.stack_folder import StackFolder
from embedded.supervisor import Supervisor

needs_dockerd = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("dockerd", path=engine.PATHS_OF_PROGRAMS) is None,
    reason="a dockerd of our own needs root and docker.io",
)


def programs_in(archive: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {Path(name).name for name in tar.getnames() if name.startswith("bin/")}


def test_the_image_holds_the_shell_and_its_program() -> None:
    assert {"sh", "env", "sleep", "gpuyard-demo"} <= programs_in(demo_image.archive())


def test_without_a_static_busybox_the_image_holds_the_libraries_that_its_commands_link_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shutil.which
    monkeypatch.setattr(demo_image.shutil, "which", lambda name: None if name == "busybox" else found(name))

    with tarfile.open(fileobj=io.BytesIO(demo_image.archive())) as tar:
        tar.extractall(tmp_path, filter="data")

    assert {"sh", "env", "gpuyard-demo"} <= {path.name for path in (tmp_path / "bin").iterdir()}
    assert list(tmp_path.rglob("libc.so*")) or list(tmp_path.rglob("ld-musl*"))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_image_without_busybox_runs_on_its_own_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shutil.which
    monkeypatch.setattr(demo_image.shutil, "which", lambda name: None if name == "busybox" else found(name))
    with tarfile.open(fileobj=io.BytesIO(demo_image.archive())) as tar:
        tar.extractall(tmp_path, filter="data")

    said = subprocess.run(
        ["chroot", str(tmp_path), "/bin/sh", "-c", "env"],
        env={"SEEN": "from inside", "PATH": "/bin:/usr/bin:/usr/sbin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "SEEN=from inside" in said.stdout.splitlines()


def test_a_socket_where_nobody_listens_is_no_engine(tmp_path: Path) -> None:
    assert not engine.answers(tmp_path / "docker.sock")
    with pytest.raises(engine.EngineFault):
        engine.prepare(tmp_path / "docker.sock")


@pytest.mark.engine
@needs_dockerd
def test_our_own_dockerd_runs_the_image_and_leaves_nothing(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "answers", lambda path, ours=engine.answers: "gpuyard-" in str(path) and ours(path))
    supervisor = Supervisor(StackFolder(state_dir))
    supervisor.environment["PATH"] = os.environ["PATH"]
    candidate = next(engine.candidates(state_dir))
    assert candidate.process is not None
    run_folder = candidate.socket.parent
    try:
        supervisor.add([candidate.process])
        supervisor.run_until(lambda: supervisor.all_ready() or supervisor.children["engine"].quick_ends > 0)

        engine.prepare(candidate.socket)

        labelled = f'{{"Image": "{demo_image.REFERENCE}", "Labels": {{"gpuyard.host": "host_1"}}}}'.encode()
        assert engine.call(candidate.socket, "POST", "/containers/create", labelled)[0] == 201
        engine.remove_containers_of(candidate.socket, "host_2")
        assert engine.call(candidate.socket, "GET", "/containers/json?all=1")[1].count(b"host_1") > 0
        engine.remove_containers_of(candidate.socket, "host_1")
        assert engine.call(candidate.socket, "GET", "/containers/json?all=1")[1].strip() == b"[]"
    finally:
        supervisor.stop_children()
        engine.remove_run_folder(state_dir)

    assert not run_folder.exists()
    assert str(state_dir) not in Path("/proc/mounts").read_text()


def test_the_pool_file_has_seven_hosts_of_six_kinds_and_one_wants_a_real_engine() -> None:
    hosts = process_table.read_pool(Path(process_table.__file__).parent / "data" / "pool.json")

    kinds = {gpu.split()[0] for host in hosts for gpu in host.gpus}
    assert (len(hosts), len(kinds)) == (7, 6)
    assert [host.name for host in hosts if host.engine == "auto"] == ["sim-a100-2"]
