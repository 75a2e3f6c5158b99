"""A gang on two hosts with a network and an engine each: its members reach each other at all ports that they were told,
and nothing else of each other's hosts, with gpuyard-root's rules in force.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from embedded import demo_image
from tests.e2e.test_three_hosts import SETTINGS, Machine, _free, _port, _token, _wait
from tests.engines import private_dockerd, why_no_dockerd
from tests.namespaces import CONTROL, namespaces, why_no_namespaces
from tests.running_stack import ROOT, RunningStack, running_stack, until

pytestmark = [pytest.mark.engine, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]
# Each member listens at its own ports, and the first one at the port to meet at.
SERVE = """
set -- $(echo $GPUYARD_GANG_PORTS | busybox tr , ' '); shift $NODE_RANK
for port in $(busybox seq ${1%-*} ${1#*-}); do busybox httpd -p $port -h /tmp; done
[ $NODE_RANK = 0 ] && busybox httpd -p $MASTER_PORT -h /tmp
exec sleep 3600
"""
PORTS = 8


@dataclass
class Gang:
    """Two machines, and the environment that each member found in its container."""

    machines: list[Machine]
    found: list[dict[str, str]]

    def reaches(self, rank: int, address: str, port: int) -> bool:
        """Return whether a connection out of a member's own network gets through."""
        look = f"import socket; socket.create_connection(({address!r}, {port}), 3)"
        inside = ["nsenter", "-t", str(_pid(self.machines[rank])), "-n", sys.executable, "-c", look]
        return subprocess.run(inside, capture_output=True, timeout=20, check=False).returncode == 0

    def ports(self, rank: int) -> range:
        first, _, last = self.found[0]["GPUYARD_GANG_PORTS"].split(",")[rank].partition("-")
        return range(int(first), int(last) + 1)


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    for reason in (why_no_dockerd(), why_no_namespaces()):
        if reason is not None:
            pytest.skip(reason)
    folder = tmp_path_factory.mktemp("gang")
    pool = [{"name": "sandbox", "gpus": ["L40S_48G"], "engine": "process"}]
    with ExitStack() as stack:
        networks = stack.enter_context(namespaces(2))
        platform = stack.enter_context(running_stack(hosts=pool, settings=SETTINGS, keep_logs_in=folder))
        machines = {}
        for number, network in enumerate(networks):
            engine = stack.enter_context(private_dockerd(inside=tuple(network.inside)))
            engine.import_image(demo_image.REFERENCE)
            machine = Machine(f"host-{number}", network, engine, folder / f"host-{number}")
            stack.callback(machine.stop)
            machine.start(server=f"http://{CONTROL}:{_port(platform)}", token=_token(platform, machine.name))
            machines[machine.name] = machine
        until(lambda: _free(platform) == 2, what="The verification of two hosts")
        for machine in machines.values():
            stack.callback(_root(machine).terminate)
        lease = _lease(platform)
        members = [machines[member["host_name"]] for member in lease["members"]]
        yield Gang(members, [_environment(machine) for machine in members])


def _root(machine: Machine) -> subprocess.Popen[bytes]:
    command = [*machine.network.inside, sys.executable, "-m", "agents.node.root.main", "--state-dir"]
    with open(machine.folder.parent / f"{machine.name}.root.out", "ab") as out:
        return subprocess.Popen([*command, str(machine.folder)], cwd=ROOT, stdout=out, stderr=out)


def _lease(platform: RunningStack) -> dict[str, Any]:
    asked = {"request": "2*A100_80G", "image": "gpuyard_demo", "command": ["sh", "-c", SERVE]}
    answer = platform.ask("POST", "/leases", asked)
    assert answer.status_code == 201, answer.text
    return _wait(platform, f"/leases/{answer.json()['id']}", lambda lease: lease["state"] == "active")


def _pid(machine: Machine) -> int:
    """Return the first process of the one container that runs there."""
    (name,) = machine.running()
    return int(json.loads(machine.engine.call("GET", f"/containers/{name}/json")[1])["State"]["Pid"])


def _environment(machine: Machine) -> dict[str, str]:
    raw = Path(f"/proc/{_pid(machine)}/environ").read_text()
    return dict(line.partition("=")[::2] for line in raw.split("\0") if line)


def test_each_member_is_told_where_it_meets_the_others(gang: Gang) -> None:
    first, second = gang.found

    assert second["MASTER_ADDR"] == gang.machines[0].network.address
    assert (second["NODE_RANK"], second["WORLD_SIZE"]) == ("1", "2")
    assert first["MASTER_ADDR"] == "127.0.0.1"
    assert second["GPUYARD_NODE_IPS"] == ",".join(machine.network.address for machine in gang.machines)
    assert [len(gang.ports(rank)) for rank in (0, 1)] == [PORTS, PORTS]


def test_a_member_reaches_all_ports_of_the_others(gang: Gang) -> None:
    meet = int(gang.found[0]["MASTER_PORT"])
    until(lambda: gang.reaches(1, gang.machines[0].network.address, meet), what="The port to meet at", within_s=30)

    for rank, other in ((0, 1), (1, 0)):
        address = gang.machines[other].network.address
        reached = {port: gang.reaches(rank, address, port) for port in gang.ports(other)}
        assert all(reached.values()), f"member {rank} to member {other}: {reached}"
    assert gang.reaches(0, "127.0.0.1", meet), "the first one meets itself"


def test_a_member_reaches_nothing_else_of_the_other_s_host(gang: Gang) -> None:
    other = gang.machines[0]
    serve = "import socket, time; s = socket.create_server(('0.0.0.0', 22)); print('up', flush=True); time.sleep(600)"
    with subprocess.Popen([*other.network.inside, sys.executable, "-c", serve], stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"up\n"
        until(lambda: not gang.reaches(1, other.network.address, 22), what="The rules", within_s=30)
        service.kill()
