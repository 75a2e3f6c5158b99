"""Networks of leases have addresses that we choose: free ones, with the gateway named."""

import json
import threading
import time
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from agents.node.engines import LABEL_HOST, LABEL_SPEC, EngineError, Plan, subnets
from agents.node.engines.docker import DockerEngine
from tests.engines import Dockerd, private_dockerd, why_no_dockerd
from tests.fakes.engine import FakeEngine, json_answer
from tests.node.conftest import until

ROUTE = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
tun0\t0000E70A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


def _plan(name: str = "gy-x-0-1") -> Plan:
    return Plan(name=name, image="a/b:c", labels={LABEL_SPEC: "s1", LABEL_HOST: "h"}, env={}, devices=[])


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeEngine]:
    fake = FakeEngine(tmp_path / "sock")
    yield fake
    fake.close()


def test_routes_are_read_and_the_default_one_is_no_network() -> None:
    assert list(subnets.of_machine(ROUTE)) == [IPv4Network("192.168.2.0/24"), IPv4Network("10.231.0.0/16")]
    assert list(subnets.of_machine("")) == []


def test_what_an_engine_lists_is_read_and_what_is_none_is_passed_over() -> None:
    rows: list[dict[str, Any]] = [
        {"IPAM": {"Config": [{"Subnet": "172.17.0.0/16"}, {"Subnet": "fd00::/64"}, {}]}},
        {"IPAM": {"Config": None}},
        {"IPAM": {"Config": [{"Subnet": "nonsense"}]}},
        {},
    ]
    assert list(subnets.of_engine(rows)) == [IPv4Network("172.17.0.0/16")]


def test_a_free_network_overlaps_nothing_that_is_there() -> None:
    taken: list[IPv4Network] = []
    for n in range(100):
        chosen = next(subnets.free(f"gy-lease-{n}", taken))
        assert not any(chosen.overlaps(other) for other in taken)
        taken.append(chosen)
    assert len({*taken}) == 100
    assert all(chosen.subnet_of(subnets.POOLS[0]) for chosen in taken)


def test_a_pool_that_the_machine_uses_itself_is_left_alone() -> None:
    first, second, _ = subnets.POOLS
    assert next(subnets.free("x", [IPv4Network("10.0.0.0/9"), first])).subnet_of(second)
    assert list(subnets.free("x", subnets.POOLS)) == []


def test_two_names_do_not_choose_the_same_first() -> None:
    assert len({next(subnets.free(f"gy-{n}", [])) for n in range(20)}) > 15


def test_one_that_was_taken_meanwhile_is_tried_elsewhere_and_at_last_the_engine_chooses(fake: FakeEngine) -> None:
    overlaps = json_answer({"message": "Pool overlaps with other one on this address space"}, status=403)
    fake.answers["GET /networks"] = json_answer([])
    fake.answers["POST /networks/create"] = overlaps
    with pytest.raises(EngineError, match="overlaps"):
        DockerEngine(str(fake.path)).make_network(_plan())
    assert fake.calls.count("POST /networks/create") == 5


def test_any_other_refusal_is_an_error_at_once(fake: FakeEngine) -> None:
    fake.answers["GET /networks"] = json_answer([])
    fake.answers["POST /networks/create"] = json_answer({"message": "no plugin"}, status=500)
    with pytest.raises(EngineError, match="no plugin"):
        DockerEngine(str(fake.path)).make_network(_plan())
    assert fake.calls.count("POST /networks/create") == 1


@pytest.mark.engine
@pytest.mark.root
def test_an_engine_that_is_killed_while_it_removes_a_network_of_ours_starts_again() -> None:
    """Docker 20.10 does not where it had chosen the addresses (moby 45057), at any moment of the removal."""
    reason = why_no_dockerd()
    if reason is not None:
        pytest.skip(reason)
    with private_dockerd() as daemon:
        engine = DockerEngine(str(daemon.socket))
        for n in range(2):
            name = f"gy-x-0-{n}"
            engine.make_network(_plan(name))
            (config,) = _of(daemon, name)
            assert IPv4Network(config["Subnet"]).subnet_of(subnets.POOLS[0])
            removing = threading.Thread(target=lambda name=name: _remove(engine, name))
            removing.start()
            time.sleep(0.05)
            daemon.kill()
            removing.join()
            daemon.begin()
            until(daemon.answers, within_s=30, what="the engine after its death")
            engine.remove_network(name)
            assert name not in engine.networks("h")


def _remove(engine: DockerEngine, name: str) -> None:
    try:
        engine.remove_network(name)
    except EngineError:
        return  # it died


def _of(daemon: Dockerd, name: str) -> list[dict[str, Any]]:
    return list(json.loads(daemon.call("GET", f"/networks/{name}")[1])["IPAM"]["Config"])
