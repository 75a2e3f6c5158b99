"""What engines do on bad days: stalled pulls, refusals, names in use, containers that cannot be killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.node.engines import EngineDown, EngineError, Plan
from agents.node.engines.container_body import container_body, is_root
from agents.node.engines.docker import DockerEngine
from agents.node.engines.pulling import pull, split
from agents.node.engines.unix_http import UnixHttp
from tests.fakes.engine import FakeEngine, json_answer, lines

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
