"""The main job on real parts: a lease asked for over HTTP is a container of a real dockerd, and is charged exactly.

Only the GPUs are simulated. The image is made on this machine; no registry is asked.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from embedded import demo_image, engine, processes
from tests.engines import Dockerd
from tests.running_stack import RunningStack, running_stack, until

pytestmark = [pytest.mark.engine, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]

# The kernel's host name inside is the container's id: nothing outside of it can print this.
COMMAND = [
    "sh",
    "-c",
    "trap 'echo told to stop; exit 0' TERM; cat /proc/sys/kernel/hostname; echo $GPUYARD_GPU_UUIDS;"
    " while :; do sleep 1 & wait $!; done",
]
USABLE_S = 4  # at least so long it runs
# A busy machine is not a dead host: this is not about silence.
SETTINGS = {"WORKLOAD_STOP_GRACE_S": "10", "HOST_SUSPECT_AFTER_S": "90", "HOST_SILENCE_LIMIT_S": "120"}


@pytest.fixture(scope="module")
def platform(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A control plane with one host whose engine is the real one, and one of the process sandbox."""
    engine.prepare(dockerd.socket)
    hosts = [
        {
            "name": "real-engine",
            "gpus": ["A100_80G x4"],
            "engine": "docker",
            "options": ["--engine-socket", str(dockerd.socket)],
        },
        {"name": "sandbox", "gpus": ["L40S_48G x2"], "engine": "process"},
    ]
    with running_stack(hosts=hosts, settings=SETTINGS, keep_logs_in=tmp_path_factory.mktemp("stack")) as running:
        until(lambda: _available(running) == 6, what="The verification of both hosts")
        yield running


def _available(platform: RunningStack) -> int:
    return sum(offer["available"] for offer in platform.got("/offers")["items"])


@dataclass(frozen=True)
class Life:
    """What was seen of one lease, from the request to the statement, on both sides."""

    lease: dict[str, Any]  # at the end
    active: dict[str, Any]
    container: dict[str, Any]  # the engine's own description of it, while active
    running_logs: str
    all_logs: str
    left_at_engine: list[Any]
    died: list[dict[str, Any]]  # the engine's own events
    moves: list[dict[str, Any]]
    charges: dict[str, Any]
    statement: dict[str, Any]


@pytest.fixture(scope="module")
def life(platform: RunningStack, dockerd: Dockerd) -> Life:
    """Play it once: POST, wait for active, read logs, let it run, stop it, read the statement."""
    began_s = int(time.time())
    answer = platform.ask("POST", "/leases", {"request": "A100_80G x3", "image": "gpuyard_demo", "command": COMMAND})
    assert answer.status_code == 201, answer.text
    path = f"/leases/{answer.json()['id']}"
    active = _wait_for(platform, path, "active")
    container = _call(dockerd, f"/containers/{active['members'][0]['container']}/json")
    uuids = [gpu["uuid"] for gpu in active["members"][0]["gpus"]]
    running_logs = until(lambda: _logs_with(platform, path, uuids[-1]), what="Its output")
    until(lambda: platform.got(path)["cost"]["billable_seconds"] >= USABLE_S, what="Some usable seconds")
    assert platform.ask("DELETE", path).status_code == 200
    lease = _wait_for(platform, path, "ended")
    filters = json.dumps({"container": [container["Id"]], "event": ["die"]})
    events = dockerd.call("GET", f"/events?since={began_s}&until={int(time.time()) + 1}&filters={quote(filters)}")
    return Life(
        lease=lease,
        active=active,
        container=container,
        running_logs=running_logs,
        all_logs=until(lambda: _logs_with(platform, path, "told to stop"), what="Its last line"),
        left_at_engine=_call(dockerd, "/containers/json?all=1"),
        died=[json.loads(line) for line in events[1].splitlines()],
        moves=platform.got(f"{path}/events")["items"],
        charges=platform.got(f"{path}/charges"),
        statement=_statement(platform, lease["ended_at"]),
    )


def _wait_for(platform: RunningStack, path: str, state: str) -> dict[str, Any]:
    """Return the lease as soon as it is in this state; fail with all that is known of it."""
    seen: dict[str, Any] = {}

    def there() -> bool:
        seen.update(platform.got(path))
        return seen["state"] in {state, "ended"}

    try:
        until(there, what=f"The state {state}", within_s=180)
    except processes.DeadlinePassed as late:
        raise AssertionError(f"{late}: {seen}") from late
    assert seen["state"] == state, seen
    return seen


def _logs_with(platform: RunningStack, path: str, text: str) -> str | None:
    seen = "".join(item["text"] for item in platform.got(f"{path}/logs")["items"])
    return seen if text in seen else None


def _call(dockerd: Dockerd, target: str) -> Any:
    status, body = dockerd.call("GET", target)
    assert status == 200, body
    return json.loads(body)


def _statement(platform: RunningStack, ended_at: str) -> dict[str, Any]:
    moment = datetime.fromisoformat(ended_at)
    found = platform.got(f"/statements?year={moment.year}&month={moment.month}")["items"]
    (statement,) = [one for one in found if one["currency"] == "XTS"]
    return dict(statement)


def _micros(money: dict[str, str]) -> int:
    whole, _, part = money["amount"].partition(".")
    return int(whole) * 1_000_000 + int(part.ljust(6, "0"))


def _second(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def _move(life: Life, to: str) -> dict[str, Any]:
    (move,) = [move for move in life.moves if move["to_state"] == to]
    return move


def test_an_active_lease_is_a_running_container_of_the_image_that_was_asked_for(life: Life) -> None:
    member = life.active["members"][0]

    assert (member["host_name"], member["state"], member["gpu_count"]) == ("real-engine", "running", 3)
    assert life.container["State"]["Running"] is True
    assert life.container["Config"]["Image"] == demo_image.REFERENCE
    assert life.container["Config"]["Cmd"] == COMMAND
    assert life.container["Name"] == f"/gy-{life.lease['id']}-0-1"


def test_its_labels_say_whose_it_is_and_that_its_gpus_are_simulated(life: Life) -> None:
    labels = life.container["Config"]["Labels"]

    assert labels["gpuyard.lease"] == life.lease["id"]
    assert (labels["gpuyard.member"], labels["gpuyard.epoch"]) == ("0", "1")
    assert labels["gpuyard.host"] == life.active["members"][0]["host"]
    assert set(labels["gpuyard.devices"].split(",")) == {gpu["uuid"] for gpu in life.active["members"][0]["gpus"]}
    assert "gpuyard.simulated" in labels
    assert life.active["simulated"] is True


def test_the_container_has_nothing_that_a_tenant_should_not_have(life: Life) -> None:
    host = life.container["HostConfig"]

    assert host["Privileged"] is False
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["PidMode"] == host["UTSMode"] == ""
    assert host["NetworkMode"] != "host"
    assert not host["Binds"]
    assert not host["Devices"]
    assert life.container["Config"]["User"] not in {"", "root", "0"}
    assert host["RestartPolicy"]["Name"] == "no"


def test_the_container_has_the_limits_of_its_share_of_the_host(life: Life, platform: RunningStack) -> None:
    host = life.container["HostConfig"]
    ((ram_mib, cpu_milli),) = platform.rows(
        "SELECT ram_mib_per_gpu, cpu_milli_per_gpu FROM agents_host WHERE name = 'real-engine'"
    )

    assert host["Memory"] == host["MemorySwap"] == 3 * ram_mib * 1024 * 1024
    assert 0 < host["NanoCpus"] <= 3 * cpu_milli * 1_000_000  # a simulated host may have more cores than this machine
    assert host["PidsLimit"] > 0
    assert {"Name": "core", "Soft": 0, "Hard": 0} in host["Ulimits"]


def test_the_logs_of_the_api_are_what_the_container_itself_printed(life: Life) -> None:
    host_name, gpus, *_ = life.running_logs.splitlines()

    assert life.container["Id"].startswith(host_name)
    assert len(host_name) == 12
    assert set(gpus.split(",")) == {gpu["uuid"] for gpu in life.active["members"][0]["gpus"]}


def test_a_stop_lets_the_container_say_its_last_words_and_takes_it_away(life: Life) -> None:
    assert life.all_logs.startswith(life.running_logs)
    assert life.all_logs.rstrip().endswith("told to stop")
    assert (life.lease["state"], life.lease["end_reason"]) == ("ended", "tenant")
    assert life.left_at_engine == []


def test_the_charged_seconds_are_those_from_ready_to_stop_to_the_second(life: Life) -> None:
    ready, stopped = _move(life, "active")["facts"]["ready_at"], _move(life, "ending")["at"]

    (line,) = life.charges["lines"]
    assert (line["from"], line["to"]) == (ready, stopped)
    assert line["seconds"] == life.charges["billable_seconds"] == _second(stopped) - _second(ready)
    assert line["seconds"] >= USABLE_S


def test_no_second_is_charged_in_which_the_engine_did_not_run_the_container(life: Life) -> None:
    (line,) = life.charges["lines"]
    started = datetime.fromisoformat(life.container["State"]["StartedAt"])
    (died,) = life.died

    assert started.astimezone(UTC).timestamp() < _second(line["from"]) + 1
    assert _second(line["to"]) <= died["time"]


def test_the_charge_is_price_times_seconds_and_stands_in_the_statement_of_the_month(life: Life) -> None:
    (line,) = life.charges["lines"]
    charged = _micros(life.charges["charged"])
    (part,) = [part for part in life.statement["references"] if part["reference"] == life.lease["id"]]

    assert charged == _micros(line["price"]) * line["quantity"] * line["seconds"] // 3600 > 0
    assert _micros(life.lease["cost"]["charged"]) == charged
    assert life.lease["cost"]["final"] is True
    assert _micros(part["amount"]) == charged


def test_a_lease_of_the_other_host_runs_beside_it_and_the_books_are_right_afterwards(
    life: Life, platform: RunningStack
) -> None:
    answer = platform.ask("POST", "/leases", {"request": "L40S_48G", "image": "gpuyard_demo"})
    assert answer.status_code == 201, answer.text
    path = f"/leases/{answer.json()['id']}"
    active = _wait_for(platform, path, "active")
    platform.ask("DELETE", path)
    _wait_for(platform, path, "ended")

    proof = platform.reconcile()

    assert active["members"][0]["host_name"] == "sandbox"
    assert proof.returncode == 0, proof.stdout + proof.stderr
    assert "invariants hold" in proof.stdout
