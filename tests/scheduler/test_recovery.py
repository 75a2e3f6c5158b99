"""Hosts die, GPUs fail: who is billed until when, and where the lease goes on."""

from datetime import timedelta

import pytest
from django.conf import settings

from agents.models import Device, Host, Workload
from billing import metering, reconcile
from leasing import starting
from leasing.models import Allocation, Lease
from leasing.states import EndReason, State
from scheduler import converging, recovery
from tests.factories import after, hear, make_active_lease, make_host, make_lease, place, price, say

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _pool() -> None:
    make_host(gpus=4, name="first")
    make_host(gpus=4, name="second")
    price()


def _kill_host(lease: Lease, *, heard: float) -> Host:
    """The host was last heard at second `heard`, and has been declared lost; its last answer had renewed the fence."""
    hear(lease, at=after(heard))
    Workload.objects.filter(reference=lease.public_id).update(last_valid_until=after(heard + 60))
    host = Host.objects.get(workloads__reference=lease.public_id, workloads__wanted=True)
    Host.objects.filter(pk=host.pk).update(state=Host.State.LOST)
    return host


def test_a_lost_host_is_billed_to_its_last_word_and_the_lease_restarts_elsewhere_after_the_fence() -> None:
    lease = make_active_lease(request="A100_80G x4")
    dead = _kill_host(lease, heard=100)

    converging.converge(at=after(131))
    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert metering.cost(reference=lease.public_id, at=after(131)).seconds == 98
    safe = 100 + 60 + settings.WORKLOAD_STOP_GRACE_S + settings.FENCE_MARGIN_S
    place(at=after(safe - 1))
    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert lease.why_waiting["code"] == "fence"
    place(at=after(safe))
    say(lease, "ready", at=after(safe + 5))
    converging.converge(at=after(safe + 6))

    lease.refresh_from_db()
    assert (lease.state, lease.epoch) == (State.ACTIVE, 2)
    (member,) = lease.members.filter(epoch=2)
    assert member.host_id != dead.pk
    hear(lease, at=after(safe + 25))
    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(safe + 25))
    assert metering.cost(reference=lease.public_id, at=after(999)).seconds == 98 + 20
    assert reconcile.findings() == []


def test_the_devices_of_a_dead_host_stay_bound_until_it_says_that_nothing_is_left() -> None:
    lease = make_active_lease(request="A100_80G x4")
    dead = _kill_host(lease, heard=100)
    converging.converge(at=after(131))
    held = Allocation.objects.filter(device__host=dead, released_at=None)
    assert held.count() == 4

    workload = Workload.objects.get(reference=lease.public_id)
    Workload.objects.filter(pk=workload.pk).update(gone_at=after(400))
    converging.converge(at=after(401))

    assert held.count() == 0


def test_a_lease_that_waits_for_its_host_goes_on_in_the_same_epoch_and_pays_nothing_for_the_gap() -> None:
    lease = make_active_lease(on_interrupt="wait_for_host")
    _kill_host(lease, heard=100)
    converging.converge(at=after(131))
    lease.refresh_from_db()
    assert lease.state == State.INTERRUPTED

    say(lease, "ready", at=after(300))
    converging.converge(at=after(301))

    lease.refresh_from_db()
    assert (lease.state, lease.epoch) == (State.ACTIVE, 1)
    assert metering.cost(reference=lease.public_id, at=after(310)).seconds == 98 + 10


def test_a_lease_that_waits_for_its_host_in_vain_ends_for_its_loss() -> None:
    lease = make_active_lease(on_interrupt="wait_for_host")
    _kill_host(lease, heard=100)
    converging.converge(at=after(131))

    converging.converge(at=after(131) + timedelta(hours=6, seconds=5))

    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.HOST_LOST


def test_a_lease_may_ask_to_end_when_interrupted() -> None:
    lease = make_active_lease(on_interrupt="end")
    _kill_host(lease, heard=100)

    converging.converge(at=after(131))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDING, EndReason.HOST_LOST)


def test_a_gpu_that_fails_ends_the_billing_at_that_second_and_moves_the_lease() -> None:
    lease = make_active_lease(request="A100_80G x2")
    hear(lease, at=after(60))
    broken = Allocation.objects.filter(lease=lease).first()
    assert broken is not None
    Device.objects.filter(pk=broken.device_id).update(
        health=Device.Health.LOST, health_since=after(50), health_reason="Xid 79"
    )

    converging.converge(at=after(60))

    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert metering.cost(reference=lease.public_id, at=after(99)).seconds == 48
    assert "Xid 79" in lease.events.get(to_state=State.INTERRUPTED).detail


def test_a_stop_while_the_host_is_silent_is_billed_to_its_last_word() -> None:
    lease = make_active_lease()
    hear(lease, at=after(40))

    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(60))

    assert metering.cost(reference=lease.public_id, at=after(99)).seconds == 38


def test_a_lease_whose_money_is_used_up_ends_with_that_reason() -> None:
    lease = make_active_lease(request="A100_80G x4")

    converging.stop_exhausted(at=after(2) + timedelta(seconds=250_001))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDING, EndReason.BALANCE)
    assert reconcile.findings() == []


def test_a_failing_lease_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    poison, healthy = make_active_lease(term="2h"), make_active_lease(term="2h")
    real = starting.live_workloads

    def read(lease: Lease) -> object:
        if lease.pk == poison.pk:
            raise RuntimeError("poison")
        return real(lease)

    monkeypatch.setattr(starting, "live_workloads", read)
    converging.converge(at=after(7205))

    healthy.refresh_from_db(), poison.refresh_from_db()
    assert healthy.state == State.ENDING
    assert (poison.state, poison.attempts) == (State.ACTIVE, 1)
    assert poison.check_at > after(7205)


def test_a_container_that_its_dead_man_timer_ended_has_not_completed_and_its_silence_is_free() -> None:
    """The control plane was away: the tenant's command ended with 0 because it was told to, and runs on elsewhere."""
    lease = make_active_lease()
    Workload.objects.filter(reference=lease.public_id).update(reported_at=after(40))

    say(lease, "exited", at=after(130), exit_code=0, failure="not_renewed")
    Workload.objects.filter(reference=lease.public_id).update(reported_at=after(130))
    converging.converge(at=after(131))

    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert [event.reason for event in lease.events.order_by("seq")][-2:] == ["not_renewed", "restart_elsewhere"]
    assert metering.cost(reference=lease.public_id, at=after(200)).seconds == 38
    say(lease, "gone", at=after(132), exit_code=0)
    place(at=after(133))
    say(lease, "ready", at=after(134))
    converging.converge(at=after(135))
    lease.refresh_from_db()
    assert (lease.state, lease.epoch) == (State.ACTIVE, 2)
    assert reconcile.findings() == []


def test_a_container_that_ended_unheard_before_it_was_ready_waits_again_and_blames_no_host() -> None:
    lease = make_lease()
    place(at=after(0))

    say(lease, "exited", at=after(90), exit_code=0, failure="not_renewed")
    converging.converge(at=after(91))

    lease.refresh_from_db()
    assert (lease.state, lease.avoid_hosts) == (State.PENDING, [])
