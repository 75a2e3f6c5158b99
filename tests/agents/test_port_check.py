"""Can tenants reach the ports that an owner gave? Asked of the agent, dialled by the server, told in plain words."""

import socket
import threading
from typing import Any

import pytest

from agents import dialing, port_check, workloads
from agents.models import CapacityChange, Host, HostEvent, PortCheck
from agents.node import port_listening
from tests.agents.conftest import Clock
from tests.agents.fake_agent import FakeAgent, make_online_agent
from tests.agents.test_sync import want

pytestmark = pytest.mark.django_db
ADDRESS = "93.184.216.34"
GIVEN = {"ports": [20_000, 20_011], "address": ADDRESS}


class World:
    """What a dial comes to: the word that is heard at each port."""

    def __init__(self) -> None:
        self.words: dict[int, str] = {}
        self.dialled: list[tuple[str, int]] = []

    def __call__(self, address: str, port: int, word: str) -> bool:
        self.dialled.append((address, port))
        return self.words.get(port) == word


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def agent(at: Clock) -> FakeAgent:
    return make_online_agent(inventory_changes=GIVEN)


def look(agent: FakeAgent, at: Clock, world: World, *, closed: set[int] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    """Let one look come to its end; `closed`: ports that nobody reaches. Returns what the agent was asked."""
    port_check.tick(now=at, dial=world)
    agent.clock_s = int(at().timestamp())
    wish: dict[str, Any] = agent.sync()["wishes"][0]
    world.words = {port: wish["word"] for port in wish["ports"] if port not in closed}
    agent.sync(events=[agent.event("listen", id=wish["id"], ports=wish["ports"])])
    port_check.tick(now=at, dial=world)
    return wish


def verdict(agent: FakeAgent) -> bool | None:
    return PortCheck.objects.get(host=agent.row).reachable


def test_ports_that_answer_with_the_word_are_reachable(agent: FakeAgent, at: Clock, world: World) -> None:
    wish = look(agent, at, world)

    assert {20_000, 20_010} <= set(wish["ports"]) <= set(range(20_000, 20_011))
    assert {address for address, _ in world.dialled} == {ADDRESS}
    assert verdict(agent) is True
    assert agent.sync()["wishes"] == []
    world.dialled.clear()
    port_check.tick(now=at, dial=world)
    assert world.dialled == []


def test_what_cannot_be_reached_is_told_in_words_and_looked_at_again(agent: FakeAgent, at: Clock, world: World) -> None:
    CapacityChange.objects.all().delete()

    look(agent, at, world, closed={20_010})

    assert verdict(agent) is False
    event = HostEvent.objects.get(kind="host.ports_closed")
    assert event.detail == (
        f"Ports 20000-20010 of {ADDRESS} cannot be reached (tried 20010): forward them in your router and open them in"
        " your firewall, or lease without ports."
    )
    assert CapacityChange.objects.filter(host_id=agent.row.pk).exists()
    at.forward(14 * 60)
    port_check.tick(now=at, dial=world)
    assert PortCheck.objects.get().word == ""
    at.forward(120)
    Host.objects.update(state="online", last_heard_at=at())
    look(agent, at, world)
    assert verdict(agent) is True
    assert HostEvent.objects.filter(kind="host.ports_open").count() == 1


def test_a_host_that_was_open_is_closed_by_the_second_look_in_a_row(agent: FakeAgent, at: Clock, world: World) -> None:
    look(agent, at, world)
    at.forward(6 * 3600)

    look(agent, at, world, closed={20_000})
    assert verdict(agent) is True
    at.forward(15 * 60)
    look(agent, at, world, closed={20_000})
    assert verdict(agent) is False


def test_another_machine_at_that_address_is_not_the_host(agent: FakeAgent, at: Clock, world: World) -> None:
    port_check.tick(now=at, dial=world)
    (wish,) = agent.sync()["wishes"]
    agent.sync(events=[agent.event("listen", id=wish["id"], ports=wish["ports"])])
    world.words = dict.fromkeys(wish["ports"], "SSH-2.0-OpenSSH_9.6")

    port_check.tick(now=at, dial=world)

    assert verdict(agent) is False


def test_only_ports_that_were_asked_for_are_dialled_and_none_without_an_answer(
    agent: FakeAgent, at: Clock, world: World
) -> None:
    port_check.tick(now=at, dial=world)
    (wish,) = agent.sync()["wishes"]
    agent.sync(events=[agent.event("listen", id="host_1 other", ports=wish["ports"])])
    port_check.tick(now=at, dial=world)
    assert world.dialled == []
    agent.sync(events=[agent.event("listen", id=wish["id"], ports=[22, 25, "x", *wish["ports"][:1]])])
    port_check.tick(now=at, dial=world)
    assert world.dialled == [(ADDRESS, wish["ports"][0])]


def test_an_agent_that_does_not_answer_gets_no_verdict_and_is_asked_an_hour_later(
    agent: FakeAgent, at: Clock, world: World
) -> None:
    port_check.tick(now=at, dial=world)
    at.forward(61)
    port_check.tick(now=at, dial=world)
    assert (verdict(agent), PortCheck.objects.get().answer_by) == (None, None)
    at.forward(3601)
    Host.objects.update(state="online")
    port_check.tick(now=at, dial=world)
    assert PortCheck.objects.get().answer_by is not None


@pytest.mark.parametrize("address", ["10.0.0.7", "127.0.0.1", "169.254.169.254", "100.64.0.1", "fd00::1", "::1", ""])
def test_no_address_but_a_public_one_is_ever_dialled(address: str, at: Clock, world: World) -> None:
    agent = make_online_agent(inventory_changes=GIVEN | {"address": address})
    Host.objects.update(address=address)

    port_check.tick(now=at, dial=world)

    assert agent.sync()["wishes"] == []
    assert not PortCheck.objects.exists()
    # Nor one that became such while its ports were looked at.
    Host.objects.update(address=ADDRESS)
    port_check.tick(now=at, dial=world)
    check = PortCheck.objects.get()
    PortCheck.objects.update(address=address, listening=check.ports)
    port_check.tick(now=at, dial=world)
    assert world.dialled == []


@pytest.mark.parametrize("ports", [None, [22, 80], [20_000, 20_000], [1, 2, 3], ["a", "b"], [True, 70_000], "20000"])
def test_a_range_that_is_none_is_not_looked_at(ports: Any, at: Clock, world: World) -> None:
    make_online_agent(inventory_changes=GIVEN | {"ports": ports})

    port_check.tick(now=at, dial=world)

    assert not PortCheck.objects.exists()


def test_nothing_is_looked_at_while_something_runs_there(agent: FakeAgent, at: Clock, world: World) -> None:
    want(agent)
    port_check.tick(now=at, dial=world)
    assert not PortCheck.objects.exists()

    workloads.unwant(reference="lease_00000000000000000000000001", at=at(), reason="end")
    assert not PortCheck.objects.exists()


def test_other_ports_or_another_address_are_looked_at_anew(agent: FakeAgent, at: Clock, world: World) -> None:
    look(agent, at, world, closed={20_000})
    agent.inventory_changes = GIVEN | {"ports": [30_000, 30_002]}
    agent.sync()
    agent.sync(inventory=agent.inventory())

    wish = look(agent, at, world)

    assert set(wish["ports"]) == {30_000, 30_001}
    assert verdict(agent) is True


@pytest.fixture
def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def test_an_agent_that_listens_is_heard_and_stops_when_it_is_told_to(free: int) -> None:
    said: list[list[int]] = []
    ready, over = threading.Event(), threading.Event()

    def tell(ports: list[int]) -> None:
        said.append(ports)
        ready.set()

    wish = {"ports": [free, 22, free + 40_000, "x"], "word": "ab12", "for_s": 60}
    thread = threading.Thread(
        target=port_listening.listen,
        kwargs={"wish": wish, "given": (free, free + 1), "said": tell, "is_over": over.is_set},
    )
    thread.start()
    try:
        assert ready.wait(10)
        assert said == [[free]]
        assert dialing.hears("127.0.0.1", free, "ab12")
        assert not dialing.hears("127.0.0.1", free, "cd34")
    finally:
        over.set()
        thread.join(10)
    assert not thread.is_alive()
    assert not dialing.hears("127.0.0.1", free, "ab12")


def test_a_port_that_is_taken_is_left_out_and_no_range_means_no_port(free: int) -> None:
    said: list[list[int]] = []
    wish = {"ports": [free], "word": "ab12", "for_s": 0}

    with socket.create_server(("", free)):
        port_listening.listen(wish, given=(free, free + 1), said=said.append, is_over=lambda: False)
    port_listening.listen(wish, given=None, said=said.append, is_over=lambda: False)

    assert said == [[], []]


def test_a_lease_that_came_while_ports_were_looked_at_closes_none(agent: FakeAgent, at: Clock, world: World) -> None:
    """The agent stops listening for it; a host in use is not looked at again, so a false "closed" stood for weeks."""
    port_check.tick(now=at, dial=world)
    (wish,) = agent.sync()["wishes"]
    agent.sync(events=[agent.event("listen", id=wish["id"], ports=wish["ports"])])
    want(agent)

    port_check.tick(now=at, dial=world)

    assert verdict(agent) is None
    assert not HostEvent.objects.filter(kind="host.ports_closed").exists()
    assert PortCheck.objects.get().answer_by is None


def test_ports_that_are_knocked_at_too_late_are_not_closed(agent: FakeAgent, at: Clock, world: World) -> None:
    """The loop had stood still: the agent listens for no longer than it was asked to."""
    port_check.tick(now=at, dial=world)
    (wish,) = agent.sync()["wishes"]
    agent.sync(events=[agent.event("listen", id=wish["id"], ports=wish["ports"])])
    at.forward(port_check.LISTEN_S + 1)

    port_check.tick(now=at, dial=world)

    assert verdict(agent) is None
    assert world.dialled == []
    assert not HostEvent.objects.filter(kind="host.ports_closed").exists()
