"""`kill -9` of everything in turn while tenants lease and stop: whatever dies, each gets what he asked for, once.

Tenants' programs only do what any program should: ask again with the same Idempotency-Key until there is an answer.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.chaos import world
from tests.chaos.clients import Clients, Plan, plans
from tests.chaos.killing import Killer, targets
from tests.running_stack import RunningStack, running_stack, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

CONVERGED_WITHIN_S = 180.0  # after the last kill: a fence and a few looks, on a machine that does other things too


@dataclass
class Aftermath:
    """The platform after the storm, when all that was asked for has come about, and what was seen meanwhile."""

    platform: RunningStack
    wishes: list[Plan]
    clients: Clients
    killer: Killer
    watcher: world.Watcher
    converged_s: float = 0.0

    def wrong(self) -> dict[str, str]:
        """Return each lease that is not as its tenant wants it: key -> what is, what should be."""
        found = world.states(self.platform)
        wanted = {plan.key: "active" if plan.fate == "keep" else "ended" for plan in self.wishes}
        return {
            key: f"{found.get(key)}, not {state}"
            for key, state in wanted.items()
            if found.get(key, ("missing", ""))[0] != state
        }


@pytest.fixture(scope="module")
def aftermath(chaos_leases: int, chaos_seed: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    logs = tmp_path_factory.mktemp("stack")
    with running_stack(hosts=world.HOSTS, settings=world.SETTINGS, keep_logs_in=logs) as platform:
        until(lambda: _free(platform) == sum(world.DEVICES.values()), what="The verification of all hosts")
        wishes = plans(count=chaos_leases, seed=chaos_seed)
        clients = Clients(platform, wishes)
        victims = targets(leases=chaos_leases, seed=chaos_seed)
        killer = Killer(platform, victims, seed=chaos_seed, progress=clients.progress)
        after = Aftermath(platform, wishes, clients, killer, world.Watcher(platform.path / "agents"))
        _play(after)
        yield after


def _play(after: Aftermath) -> None:
    after.watcher.start()
    try:
        after.clients.start()
        after.killer.start()
        after.killer.wait()
        after.clients.wait()
        began = time.monotonic()
        while after.wrong() and time.monotonic() < began + CONVERGED_WITHIN_S:
            time.sleep(0.5)
        after.converged_s = time.monotonic() - began
    finally:
        after.killer.wait()
        after.clients.wait()
        after.watcher.stop()


def _free(platform: RunningStack) -> int:
    return sum(offer["available"] for offer in platform.got("/offers")["items"])


def test_every_process_was_killed_and_every_tenant_was_answered(aftermath: Aftermath) -> None:
    print(f"killed {dict(aftermath.killer.killed)}; answers {dict(aftermath.clients.answers)};")
    print(f"converged {aftermath.converged_s:.1f} s after the last kill; {aftermath.watcher.looks} looks at the hosts")

    assert aftermath.killer.faults == []
    assert aftermath.clients.faults == []
    assert aftermath.killer.killed.total() >= 11


def test_every_lease_is_what_its_tenant_asked_for(aftermath: Aftermath) -> None:
    assert aftermath.wrong() == {}


def test_one_key_made_one_lease(aftermath: Aftermath) -> None:
    made = [plan for plan in aftermath.wishes if len(plan.lease_ids) != 1]

    assert made == []
    assert world.keys_with_two_leases(aftermath.platform) == []
    assert len(world.states(aftermath.platform)) == len(aftermath.wishes)


def test_no_device_was_let_twice_in_the_calendar_or_used_twice_on_a_host(aftermath: Aftermath) -> None:
    assert world.overlapping_allocations(aftermath.platform) == []
    assert aftermath.watcher.doubles == []
    assert aftermath.watcher.looks > 20
    assert len(aftermath.watcher.seen) > len(aftermath.wishes) // 3  # it did see containers come and go


def test_the_hosts_run_what_is_wanted_and_nothing_else(aftermath: Aftermath) -> None:
    platform = aftermath.platform
    kept = sum(plan.fate == "keep" for plan in aftermath.wishes)

    def same() -> bool:
        running = world.running_containers(platform.path / "agents").keys()
        return running == world.wanted_containers(platform) and len(running) == kept

    until(same, what="What is wanted, and nothing else, on the hosts")


def test_no_lease_is_forgotten_and_no_fact_is_untold(aftermath: Aftermath) -> None:
    assert world.forgotten_leases(aftermath.platform) == []
    assert world.leases_that_ended_twice(aftermath.platform) == []
    until(lambda: world.unrelayed_messages(aftermath.platform) == 0, what="The relay of all messages")


def test_clients_saw_no_error_but_that_the_service_is_away(aftermath: Aftermath) -> None:
    # 5xx of a killed web server are broken connections; those of a killed database must be 503, for clients to wait.
    assert {code for code in aftermath.clients.answers if code.startswith("5")} <= {"503"}


def test_devices_add_up_and_the_books_balance(aftermath: Aftermath) -> None:
    platform = aftermath.platform
    until(lambda: not world.devices_held_for_nobody(platform), what="The release of all devices that were used")

    def add_up() -> bool:
        return all(row["free"] + row["leased"] == row["all"] for row in world.accounts_of_devices(platform).values())

    until(add_up, what="free + leased = all")
    proof = platform.reconcile()
    assert proof.returncode == 0, proof.stdout + proof.stderr


def test_when_the_rest_is_stopped_all_is_free_and_the_books_still_balance(aftermath: Aftermath) -> None:
    platform = aftermath.platform
    for plan in aftermath.wishes:
        if plan.fate == "keep":
            (lease_id,) = plan.lease_ids
            assert platform.ask("DELETE", f"/leases/{lease_id}").status_code == 200

    until(lambda: {state for state, _ in world.states(platform).values()} == {"ended"}, what="The end of all leases")
    until(lambda: _free(platform) == sum(world.DEVICES.values()), what="The return of all devices")
    until(lambda: not world.running_containers(platform.path / "agents"), what="The end of all containers")
    proof = platform.reconcile()
    assert proof.returncode == 0, proof.stdout + proof.stderr
