"""What engines do on bad days: stalled pulls, refusals, names in use, containers that cannot be killed."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.node.engines import EngineDown, EngineError, Plan
from agents.node.engines.container_body import container_body, is_root
from agents.node.engines.docker import DockerEngine
from agents.node.engines.pulling import pull, split
from agents.node.engines.unix_http import UnixHttp
from agents.node.for_root import ForRoot
from agents.node.root.orders import Order, Orders, read
from agents.node.root.overdue import Overdue
from agents.node.workload import Workload
from tests.fakes.engine import FakeEngine, Handler, json_answer, lines
from tests.node.conftest import until

PLAN = Plan(name="gy-x-0-1", image="a/b:c", labels={"gpuyard.spec": "s1", "gpuyard.host": "h"}, env={}, devices=[])


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeEngine]:
    engine = FakeEngine(tmp_path / "e.sock")
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("busybox", ("busybox", "latest")),
        ("busybox:1.36", ("busybox", "1.36")),
        ("localhost:5000/a/b", ("localhost:5000/a/b", "latest")),
        ("localhost:5000/a/b:v1", ("localhost:5000/a/b", "v1")),
        ("a/b@sha256:00", ("a/b", "sha256:00")),
    ],
)
def test_a_reference_is_split_so_that_one_tag_is_fetched(image: str, parts: tuple[str, str]) -> None:
    assert split(image) == parts


def test_rule_13_a_pull_without_progress_is_given_up_after_three_tries(fake: FakeEngine) -> None:
    begun = {"status": "Downloading", "id": "l1", "progressDetail": {"current": 10, "total": 100}}
    fake.answers["POST /images/create"] = lines(begun, then_s=2)
    seen: list[dict[str, Any]] = []

    with pytest.raises(EngineError) as caught:
        pull(UnixHttp(str(fake.path)), "a/b", seen.append, no_progress_s=0.2)

    assert caught.value.failure == "pull_stalled"
    assert fake.calls.count("POST /images/create") == 3
    assert (seen[0]["bytes"], seen[0]["total"]) == (10, 100)


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        ("manifest unknown", "image_not_found"),
        ("pull access denied for a/b", "image_denied"),
        ("write /x: no space left on device", "disk_full"),
        ("no matching manifest for linux/amd64", "incompatible"),
    ],
)
def test_a_failed_pull_says_why_in_one_word(fake: FakeEngine, message: str, failure: str) -> None:
    fake.answers["POST /images/create"] = lines({"status": "Pulling"}, {"error": message})

    with pytest.raises(EngineError) as caught:
        pull(UnixHttp(str(fake.path)), "a/b", lambda _: None)

    assert caught.value.failure == failure


def _named(spec: str) -> dict[str, Any]:
    return {"Id": "id1", "Name": "/gy-x-0-1", "Config": {"Labels": {"gpuyard.spec": spec}}}


def test_rule_11_a_name_in_use_is_inspected_and_adopted_if_it_is_the_same(fake: FakeEngine) -> None:
    fake.answers["GET /images/a/b:c/json"] = json_answer({"Id": "i", "Config": {"User": ""}})
    fake.answers["POST /networks/create"] = json_answer({"message": "name in use"}, status=409)
    fake.answers["POST /containers/create"] = json_answer({"message": "name in use"}, status=409)
    fake.answers["GET /containers/gy-x-0-1/json"] = json_answer(_named("s1"))
    engine = DockerEngine(str(fake.path))

    assert engine.create(PLAN) == "id1"

    fake.answers["GET /containers/gy-x-0-1/json"] = json_answer(_named("other"))
    with pytest.raises(EngineError):
        engine.create(PLAN)


def test_rule_15_a_port_that_is_taken_is_port_exhausted(fake: FakeEngine) -> None:
    taken = {"message": "driver failed programming external connectivity: Bind for :::80: port is already allocated"}
    fake.answers["POST /containers/id1/start"] = json_answer(taken, status=500)

    with pytest.raises(EngineError) as caught:
        DockerEngine(str(fake.path)).start("id1")

    assert caught.value.failure == "port_exhausted"


def test_rule_2_a_container_that_cannot_be_killed_is_not_said_to_have_ended(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.node.engines.docker.KILL_WAIT_S", 0.3)
    running = {**_named("s1"), "State": {"Running": True, "Status": "running", "Pid": 0, "ExitCode": 0}}
    fake.answers["GET /containers/gy-x-0-1/json"] = json_answer(running)
    fake.answers["GET /containers/id1/json"] = json_answer(running)
    stuck = {"message": "cannot stop container: tried to kill container, but did not receive an exit event"}
    fake.answers["POST /containers/gy-x-0-1/stop"] = json_answer(stuck, status=500)

    assert DockerEngine(str(fake.path)).stop("gy-x-0-1", grace_s=0) is False


def test_an_engine_that_is_not_there_is_down(tmp_path: Path) -> None:
    with pytest.raises(EngineDown):
        DockerEngine(str(tmp_path / "nobody.sock")).containers("h")


@pytest.mark.parametrize(
    ("user", "root"), [("", True), ("root", True), ("0:0", True), ("0", True), ("app", False), ("1000:0", False)]
)
def test_root_is_seen_in_all_its_spellings(user: str, root: bool) -> None:
    assert is_root(user) is root


def test_a_container_runs_as_an_ordinary_user_unless_root_is_mapped() -> None:
    plain = container_body(PLAN, image_user="root", user_namespaces=False, init=True, nofile_limit=100)
    own = container_body(PLAN, image_user="app", user_namespaces=False, init=True, nofile_limit=100)
    mapped = container_body(PLAN, image_user="root", user_namespaces=True, init=True, nofile_limit=100)

    assert plain["User"] == "1000:1000"
    assert "User" not in own
    assert "User" not in mapped
    assert plain["HostConfig"]["Ulimits"][0] == {"Name": "nofile", "Soft": 100, "Hard": 100}


def test_a_log_that_was_opened_before_its_container_said_anything_is_read_to_its_end(fake: FakeEngine) -> None:
    """An engine ends the stream of a container that is not started yet, as it does when it dies itself."""

    def log(text: bytes) -> Callable[[Handler], None]:
        def answer(handler: Handler) -> None:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(b"\2\0\0\0" + len(text).to_bytes(4) + text if text else b"")

        return answer

    before = {"Running": False, "Status": "created", "Pid": 0, "ExitCode": 0}
    fake.answers["GET /containers/id1/json"] = json_answer({**_named("s1"), "State": before})
    fake.answers["GET /containers/id1/logs"] = log(b"")
    engine = DockerEngine(str(fake.path))
    assert engine.logs("id1", offset=0, limit=100) == b""
    until(lambda: engine._logs["id1"].ended)

    after = before | {"Status": "exited", "ExitCode": 127}
    fake.answers["GET /containers/id1/json"] = json_answer({**_named("s1"), "State": after})
    fake.answers["GET /containers/id1/logs"] = log(b"exec failed")

    assert engine.logs("id1", offset=0, limit=100) == b"exec failed"
    assert engine.logs("id1", offset=5, limit=100) == b"failed"
    assert fake.calls.count("GET /containers/id1/logs") == 2


FORGOTTEN = "5a" * 32
GROUPS = next((path for path in map(Path, ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")) if path.is_dir()), None)


@pytest.fixture
def forgotten(fake: FakeEngine) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the control group of a container that the engine says was never started, as a real engine does that
    was killed between the start and its own note of it."""
    if GROUPS is None or not os.access(GROUPS, os.W_OK) or os.geteuid() != 0:
        pytest.skip("no control group can be made here")
    group = GROUPS / f"gpuyard-test-{FORGOTTEN}"
    group.mkdir(exist_ok=True)
    process = subprocess.Popen(["sleep", "600"])
    (group / "cgroup.procs").write_text(str(process.pid))
    state = {"Running": False, "Status": "created", "Pid": 0, "ExitCode": 0}
    known = {**_named("s1"), "Id": FORGOTTEN, "State": state}
    for name in ("gy-x-0-1", FORGOTTEN):
        fake.answers[f"GET /containers/{name}/json"] = json_answer(known)
    yield process
    process.kill()
    process.wait(10)
    group.rmdir()


def test_what_an_engine_has_forgotten_to_run_is_ended_at_a_stop(
    fake: FakeEngine, forgotten: subprocess.Popen[bytes]
) -> None:
    assert DockerEngine(str(fake.path)).stop("gy-x-0-1", grace_s=1)

    assert forgotten.wait(5) == -9


def test_what_an_engine_has_forgotten_to_run_is_ended_before_it_is_started_again(
    fake: FakeEngine, forgotten: subprocess.Popen[bytes]
) -> None:
    fake.answers[f"POST /containers/{FORGOTTEN}/start"] = json_answer({})

    DockerEngine(str(fake.path)).start(FORGOTTEN)

    assert forgotten.wait(5) == -9


def test_who_may_not_end_what_an_engine_has_forgotten_does_not_say_that_it_is_gone(
    fake: FakeEngine, forgotten: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices stay held; gpuyard-root may end it."""

    def refuse(*_: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        ended = DockerEngine(str(fake.path)).stop("gy-x-0-1", grace_s=1)
    assert not ended
    assert forgotten.poll() is None
    said: list[str] = []
    fake.answers["GET /containers/json"] = json_answer([{"Id": FORGOTTEN, "State": "created"}])

    overdue = Overdue(DockerEngine(str(fake.path)), say=said.append)
    overdue.look(Orders("h", (Order("gy-x-0-1", 0.0, 1),)))

    assert forgotten.wait(10) == -9
    assert said == []


def test_root_is_told_of_what_is_stuck_as_overdue(tmp_path: Path) -> None:
    stuck = Workload(lease="x", member=0, epoch=1, spec_hash="s1", spec={}, valid_for_s=60, step="stuck")

    ForRoot(tmp_path / "told.json", host="h").write([stuck])

    assert [(order.name, order.deadline_s) for order in read(tmp_path / "told.json").workloads] == [("gy-x-0-1", 0.0)]
