"""gpuyard-root: what is overdue ends though the core is dead, and tenants do not reach the owner's own network."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agents.node import for_root
from agents.node.clocks import boot_id, boot_s
from agents.node.engines.belongings import bridge_of
from agents.node.private_files import folder_in_memory
from agents.node.root import egress, orders
from tests.engines import IMAGE, Dockerd, dockerd, private_dockerd, why_no_dockerd
from tests.fakes.control_plane import FakeControlPlane
from tests.namespaces import Namespace, namespaces, why_no_namespaces
from tests.node.conftest import ROOT, Agent, until
from tests.node.test_docker_engine import containers, host, inspect

__all__ = ["dockerd", "host"]
VALID_S = 4
Helper = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Helper]:
    """Starts gpuyard-root for an agent; `inside`: in this network."""
    started: list[subprocess.Popen[bytes]] = []

    def start(agent: Agent, *options: str, inside: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        command = [*inside, sys.executable, "-m", "agents.node.root.main", "--state-dir", str(agent.folder), *options]
        with open(tmp_path / "root.out", "ab") as out:
            started.append(subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(10)


def said(folder: Path) -> str:
    return (folder / "root.out").read_text()


def deadline_s(agent: Agent) -> float:
    told = json.loads(for_root.told_at(agent.folder).read_text())
    return float(told["workloads"][0]["deadline_s"])


def test_what_is_overdue_ends_though_the_core_is_dead(
    plane: FakeControlPlane, agent: Agent, helper: Helper, tmp_path: Path
) -> None:
    plane.hold_s = 1
    key = plane.want(devices=agent.devices[:1], command=["sleep", "600"], valid_for_s=VALID_S, grace_s=1)
    plane.wait_step(key, "ready")
    agent.kill()
    over_s = deadline_s(agent)
    until(lambda: boot_s() > over_s + 1, what="its deadline")
    assert agent.processes("gy-lease_1-0-1"), "nobody stops it"

    helper(agent)

    until(lambda: not agent.processes("gy-lease_1-0-1"), within_s=20, what="its end")
    assert "nobody has stopped it" in said(tmp_path)
    agent.start()
    report = plane.wait_step(key, "gone")
    assert (report["failure"], report["handover"]["clean"]) == ("not_renewed", True)


def test_what_the_control_plane_renews_runs_on_beside_it(plane: FakeControlPlane, agent: Agent, helper: Helper) -> None:
    plane.hold_s = 1
    key = plane.want(devices=agent.devices[:1], command=["sleep", "600"], valid_for_s=VALID_S, grace_s=1)
    plane.wait_step(key, "ready")
    before = agent.processes("gy-lease_1-0-1")
    first_s = deadline_s(agent)
    helper(agent)

    until(lambda: boot_s() > first_s + 7, within_s=30, what="the end of its first deadline")

    assert agent.processes("gy-lease_1-0-1") == before
    assert deadline_s(agent) > first_s + 7 - VALID_S


def test_orders_of_an_earlier_boot_are_none(tmp_path: Path) -> None:
    told = {"host": "host_1", "workloads": [{"name": "gy-x", "deadline_s": 1.0, "grace_s": 1, "peers": []}]}
    (tmp_path / "told").write_text(json.dumps(told | {"boot_id": "another"}))

    assert orders.read(tmp_path / "told") == orders.Orders()
    assert orders.read(tmp_path / "none") == orders.Orders()


@pytest.mark.parametrize(
    "text", ["[]", "7", "{}", '{"boot_id": BOOT}', '{"boot_id": BOOT, "host": "h", "workloads": [1]}', "{"]
)
def test_orders_that_are_nonsense_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "told").write_text(text.replace("BOOT", json.dumps(boot_id())))

    assert orders.read(tmp_path / "told") == orders.Orders()


def test_only_what_a_gang_s_other_members_publish_is_open_among_private_addresses() -> None:
    rendezvous = {"MASTER_PORT": "29511", "NODE_RANK": "1", "GPUYARD_NODE_IPS": "10.1.2.3,10.1.2.4"}
    rendezvous["GPUYARD_GANG_PORTS"] = "29512-29519,30001-30008"
    assert for_root.peers({"rendezvous": rendezvous}) == [["10.1.2.3", 29511, 29511], ["10.1.2.3", 29512, 29519]]
    assert for_root.peers({"rendezvous": rendezvous | {"NODE_RANK": "0"}}) == [["10.1.2.4", 30001, 30008]]
    assert for_root.peers({"rendezvous": rendezvous | {"GPUYARD_NODE_IPS": "10.1.2.3"}}) == []
    assert for_root.peers({}) == []
    told = orders.Orders("host_1", (orders.Order("gy-x", 1.0, 1, (("10.1.2.3", 29511, 29511), ("evil; x", 1, 2))),))

    script = egress.rules(told, name_servers=["192.168.1.1", "fd00::1"])

    assert f'iifname "{bridge_of("gy-x")}" ip daddr 10.1.2.3 tcp dport 29511-29511 accept' in script
    assert "ip6 daddr fd00::1 meta l4proto { tcp, udp } th dport 53 accept" in script
    assert "evil" not in script


@pytest.mark.parametrize("zone", ["eth0", "x accept\n}}\nflush ruleset\n#"])
def test_an_address_with_a_zone_writes_nothing_into_the_rules(zone: str, tmp_path: Path) -> None:
    """`nft` reads no zone, and all rules would be lost; what follows a % may be anything at all."""
    order = orders.Order("gy-lease_1-0-1", 0, 0, ((f"fe80::1%{zone}", 29_500, 29_500),))
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("nameserver fe80::1%eth0\nnameserver 192.168.1.1\n")

    names = egress.name_servers(resolv)

    assert names == ["192.168.1.1"]
    script = egress.rules(orders.Orders("host", (order,)), name_servers=names)
    assert "%" not in script
    assert script == egress.rules(orders.Orders("host"), name_servers=names)


@pytest.mark.engine
@pytest.mark.root
def test_a_real_container_that_is_overdue_is_stopped(
    plane: FakeControlPlane, dockerd: Dockerd, host: Agent, helper: Helper
) -> None:
    plane.hold_s = 1
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    key = plane.want(image=IMAGE, devices=host.devices[:1], command=stubborn, valid_for_s=VALID_S, grace_s=1)
    plane.wait_step(key, "ready")
    helper(host, "--no-egress-rules")
    host.kill()
    over_s = deadline_s(host)
    assert inspect(dockerd, "gy-lease_1-0-1")["State"]["Running"]

    until(lambda: not inspect(dockerd, "gy-lease_1-0-1")["State"]["Running"], within_s=40, what="its end")

    assert boot_s() < over_s + 1 + 30, "the control plane lets its devices again after the grace and 30 s"
    assert len(containers(dockerd)) == 1


# What a container reaches


class Lan:
    """An owner's network: his machine with its engine, and a neighbour that has a public address too."""

    PUBLIC, METADATA = "198.51.100.7", "169.254.169.254"

    def __init__(self, machine: Namespace, neighbour: Namespace, engine: Dockerd) -> None:
        self.machine, self.neighbour, self.engine = machine, neighbour, engine

    def make(self) -> None:
        for address in (self.PUBLIC, self.METADATA):
            _ip(self.neighbour, "address", "add", f"{address}/32", "dev", "lo")
            _ip(self.machine, "route", "add", address, "via", self.neighbour.address)

    def reaches(self, container: str, address: str, port: int) -> bool:
        """Return whether a connection out of a container's own network gets through."""
        pid = inspect(self.engine, container)["State"]["Pid"]
        return _connects(["nsenter", "-t", str(pid), "-n"], address, port)


def _ip(network: Namespace, *words: str) -> None:
    subprocess.run(["ip", "-n", network.name, *words], check=True, timeout=20)


def _connects(inside: list[str], address: str, port: int) -> bool:
    look = f"import socket; socket.create_connection(({address!r}, {port}), 2)"
    return subprocess.run([*inside, sys.executable, "-c", look], capture_output=True, timeout=20).returncode == 0


@contextmanager
def listening(network: Namespace, *ports: int) -> Iterator[None]:
    serve = (
        "import socket, sys, time; kept = [socket.create_server(('0.0.0.0', int(p))) for p in sys.argv[1:]];"
        " print('up', flush=True); time.sleep(600)"
    )
    command = [*network.inside, sys.executable, "-c", serve, *map(str, ports)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield
        process.kill()


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    for reason in (why_no_dockerd(), why_no_namespaces()):
        if reason is not None:
            pytest.skip(reason)
    with ExitStack() as stack:
        machine, neighbour = stack.enter_context(namespaces(2))
        engine = stack.enter_context(private_dockerd(inside=tuple(machine.inside)))
        lan = Lan(machine, neighbour, engine)
        lan.make()
        stack.enter_context(listening(neighbour, 8000, 8001, 25))
        stack.enter_context(listening(machine, 7000))
        yield lan


@pytest.mark.engine
@pytest.mark.root
@pytest.mark.timeout(900)  # it waits while other tests have the namespaces
def test_a_container_reaches_the_internet_and_not_the_owner_s_network(
    plane: FakeControlPlane, lan: Lan, helper: Helper, tmp_path: Path
) -> None:
    options = ("--driver", "sim", "--sim", "A100_80G x2", "--engine", "docker", "--engine-socket")
    agent = Agent(plane, tmp_path / "state", *options, str(lan.engine.socket))
    agent.start()
    try:
        serve = ["sh", "-c", "exec httpd -f -p 8080 -h /tmp"]
        gang = {"MASTER_PORT": "8000", "NODE_RANK": "1", "GPUYARD_NODE_IPS": f"{lan.neighbour.address},10.9.9.9"}
        alone = plane.want(image=IMAGE, devices=agent.devices[:1], command=serve, ports=[8080])
        member = plane.want(lease="lease_2", image=IMAGE, devices=agent.devices[1:2], command=serve, rendezvous=gang)
        published = plane.wait_step(alone, "ready")["ports"]["8080"]
        plane.wait_step(member, "ready")
        assert lan.reaches("gy-lease_1-0-1", lan.neighbour.address, 8000), "without rules it gets there"

        helper(agent, inside=tuple(lan.machine.inside))
        until(lambda: not lan.reaches("gy-lease_1-0-1", lan.neighbour.address, 8000), within_s=30, what="the rules")

        assert lan.reaches("gy-lease_1-0-1", lan.PUBLIC, 8000)
        assert not lan.reaches("gy-lease_1-0-1", lan.PUBLIC, 25), "mail"
        assert not lan.reaches("gy-lease_1-0-1", lan.METADATA, 8000)
        assert not lan.reaches("gy-lease_1-0-1", lan.machine.address, 7000), "the machine itself"
        assert lan.reaches("gy-lease_2-0-1", lan.neighbour.address, 8000), "where its gang meets"
        assert not lan.reaches("gy-lease_2-0-1", lan.neighbour.address, 8001)
        assert _connects(lan.neighbour.inside, lan.machine.address, published), "who asks from outside is answered"
    finally:
        agent.kill()
        shutil.rmtree(folder_in_memory(agent.folder), ignore_errors=True)
