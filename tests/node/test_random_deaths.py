"""kill -9 of the agent at random moments of random orders: never two holders of a device, and everything settles."""

import random
import time

import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.node.conftest import Agent, until

STEPS = 25


def _holders(agent: Agent, device: str) -> set[str]:
    """Return which workloads have live processes that were given the device."""
    names = [folder.name for folder in (agent.folder / "workloads").glob("gy-*")]
    found = set()
    for name in names:
        if device in _meta(agent, name) and agent.processes(name):
            found.add(name)
    return found


def _meta(agent: Agent, name: str) -> str:
    try:
        return (agent.folder / "workloads" / name / "meta.json").read_text()
    except FileNotFoundError:
        return ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_random_deaths_of_the_agent_never_give_a_device_two_holders(
    plane: FakeControlPlane, agent: Agent, seed: int
) -> None:
    chance = random.Random(seed)
    plane.hold_s = 1
    devices, epochs, wanted = agent.devices, {}, {}
    for step in range(STEPS):
        device = chance.choice(devices)
        act = chance.choice(["want", "want", "unwant", "kill", "kill"])
        if act == "want" and device not in wanted:
            lease = f"lease_{chance.randrange(3)}_{devices.index(device)}"
            epochs[lease] = epochs.get(lease, 0) + 1
            wanted[device] = plane.want(lease=lease, epoch=epochs[lease], devices=[device], grace_s=1)
        elif act == "unwant" and device in wanted:
            plane.unwant(wanted.pop(device))
        elif act == "kill":
            time.sleep(chance.random() * 0.3)  # the moment of death is what is tried here
            agent.kill()
            agent.start()
        for each in devices:
            assert len(_holders(agent, each)) <= 1, f"step {step}: {each} has two holders"

    for key in wanted.values():
        plane.wait_step(key, "ready", within_s=30)
    names = {f"gy-{lease}-{member}-{epoch}" for lease, member, epoch in wanted.values()}
    until(
        lambda: {f.name for f in (agent.folder / "workloads").glob("gy-*") if agent.processes(f.name)} == names,
        what="exactly what is wanted",
    )
