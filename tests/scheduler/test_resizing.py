"""Resizing a running lease: new GPUs are held first, the meter is exact, and a refusal changes nothing."""

from datetime import timedelta

import pytest

from agents.models import Host, Workload
from apikit.errors import InvalidInput
from billing import holds, metering, reconcile
from billing.models import Segment
from leasing import actions, gpu_quota, requesting
from leasing.models import Allocation, Lease
from leasing.moves import WrongState
from leasing.states import State
from scheduler import converging, recovery, resizing
from scheduler.planning import NoCapacity
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    hear,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    place,
    price,
    say,
)

pytestmark = pytest.mark.django_db


def resize(lease: Lease, request: str, *, at_s: float) -> Lease:
    hear(lease, at=after(at_s))
    return resizing.resize(lease=lease, request=requesting.read_request(request), at=after(at_s))


def start_anew(lease: Lease, *, at_s: float) -> Lease:
    """The hosts have stopped the old epoch and say that the new one is ready."""
    old = Workload.objects.filter(reference=lease.public_id, wanted=False, gone_at=None)
    old.update(gone_at=after(at_s))
    say(lease, "ready", at=after(at_s))
    converging.converge(at=after(at_s))
    lease.refresh_from_db()
    return lease


def snapshot() -> list[object]:
    return [
        list(Lease.objects.order_by("pk").values()),
        list(Allocation.objects.order_by("pk").values()),
        list(Workload.objects.order_by("pk").values()),
        list(Segment.objects.order_by("pk").values()),
    ]


def test_growing_in_one_machine_keeps_what_it_has_and_bills_no_second_twice() -> None:
    make_host(gpus=8)
    price()
    lease = make_active_lease(request="A100_80G x4")
    first = set(Allocation.objects.filter(lease=lease).values_list("device", flat=True))

    resized = resize(lease, "A100_80G x8", at_s=102)

    assert (resized.state, resized.request, resized.gpu_count) == (State.PROVISIONING, "A100_80G x8", 8)
    now = set(Allocation.objects.filter(lease=lease, epoch=2).values_list("device", flat=True))
    assert len(now) == 8
    assert first < now
    assert start_anew(lease, at_s=112).state == State.ACTIVE
    hear(lease, at=after(122))
    cost = metering.cost(reference=lease.public_id, at=after(122))
    assert cost.charged_micros == 4 * 100 * 1_000 + 8 * 10 * 1_000  # the ten seconds between are free
    assert cost.seconds == 110
    end_and_clean(lease, at=after(122))
    assert reconcile.findings() == []


def test_shrinking_gives_devices_back_only_when_their_host_says_that_nothing_is_left() -> None:
    make_host(gpus=8)
    price()
    lease = make_active_lease(request="A100_80G x8")
    rival = make_lease(request="A100_80G x6", at=after(50))
    place(at=after(51))

    resize(lease, "A100_80G x2", at_s=102)
    place(at=after(103))
    rival.refresh_from_db()
    assert rival.state == State.PENDING

    start_anew(lease, at_s=110)
    converging.converge(at=after(111))
    place(at=after(112))
    rival.refresh_from_db()
    assert rival.state == State.PROVISIONING
    assert Allocation.objects.filter(lease=lease, released_at=None).count() == 2


def test_growing_to_another_machine_starts_there_only_when_the_old_containers_cannot_run() -> None:
    small, large = make_host(gpus=2), make_host(gpus=8)
    price()
    Host.objects.filter(pk=large.pk).update(scheduling=Host.Scheduling.CORDONED)
    lease = make_active_lease(request="A100_80G x2")
    Host.objects.filter(pk=large.pk).update(scheduling=Host.Scheduling.OPEN, last_heard_at=after(102))

    Workload.objects.filter(reference=lease.public_id).update(last_valid_until=after(150))  # its host was told

    resized = resize(lease, "A100_80G x8", at_s=102)

    held = Allocation.objects.filter(lease=lease, released_at=None)
    assert {(row.epoch, row.device.host_id) for row in held} == {(1, small.pk), (2, large.pk)}  # both, meanwhile
    converging.converge(at=after(103))
    assert not Workload.objects.filter(reference=lease.public_id, epoch=2).exists()
    Workload.objects.filter(reference=lease.public_id).update(gone_at=after(104))
    Lease.objects.filter(pk=lease.pk).update(check_at=after(105))
    converging.converge(at=after(105))
    assert Workload.objects.get(reference=lease.public_id, epoch=2).host_id == large.pk
    assert {row.device.host_id for row in held.all()} == {large.pk}
    assert resized.epoch == 2


def test_an_epoch_that_ended_before_it_began_gives_its_devices_back() -> None:
    make_host(gpus=2)
    price()
    lease = make_active_lease(request="A100_80G x2")
    make_host(gpus=8, last_heard_at=after(102))
    resize(lease, "A100_80G x8", at_s=102)

    recovery.end_now(lease=lease, reason="tenant", at=after(103))  # type: ignore[arg-type]
    Workload.objects.filter(reference=lease.public_id).update(gone_at=after(104))
    converging.converge(at=after(105))
    converging.converge(at=after(106))

    lease.refresh_from_db()
    assert lease.state == State.ENDED
    assert not Allocation.objects.filter(lease=lease, released_at=None).exists()


def test_a_resize_that_cannot_be_had_changes_nothing_and_the_lease_runs_on() -> None:
    make_host(gpus=8)
    price()
    lease = make_active_lease(request="A100_80G x4")
    make_active_lease(request="A100_80G x2", at=after(5))
    hear(lease, at=after(100))
    before = snapshot()

    with pytest.raises(NoCapacity):
        resizing.resize(lease=lease, request=requesting.read_request("A100_80G x8"), at=after(100))

    assert snapshot() == before


def test_nobody_overtakes_the_queue_by_growing() -> None:
    make_host(gpus=8)
    price()
    lease = make_active_lease(request="A100_80G x4")
    make_lease(request="A100_80G x4", at=after(50))

    with pytest.raises(NoCapacity):
        resize(lease, "A100_80G x8", at_s=60)


def test_more_gpus_cost_what_they_cost_today_and_fewer_what_was_promised() -> None:
    make_host(gpus=8)
    price()
    lease = make_active_lease(request="A100_80G x4")
    price(micros=7_200_000, starts_at=after(50))

    fewer = resize(lease, "A100_80G x2", at_s=102)
    assert fewer.price_micros_per_hour == 2 * 3_600_000
    more = resize(start_anew(lease, at_s=103), "A100_80G x4", at_s=203)
    assert more.price_micros_per_hour == 4 * 7_200_000
    start_anew(lease, at_s=204)
    hear(lease, at=after(214))
    cost = metering.cost(reference=lease.public_id, at=after(214)).charged_micros
    assert cost == 4 * 100 * 1_000 + 2 * 100 * 1_000 + 4 * 10 * 2_000


def test_growing_needs_the_money_for_its_first_minutes_and_a_place_in_the_quota() -> None:
    make_host(gpus=8)
    price()
    poor = make_tenant(micros=700_000)  # ten minutes of one GPU are 600,000
    lease = make_active_lease(poor, request="A100_80G")
    hear(lease, at=after(12))
    before = snapshot()
    with pytest.raises(holds.InsufficientFunds):
        resizing.resize(lease=lease, request=requesting.read_request("A100_80G x2"), at=after(12))
    small = make_active_lease(make_tenant(gpu_quota=2), request="A100_80G", at=after(20))
    with pytest.raises(gpu_quota.QuotaExceeded):
        resize(small, "A100_80G x3", at_s=30)

    assert snapshot()[1][: len(before[1])] == before[1]  # type: ignore[index, arg-type]
    assert Lease.objects.get(pk=lease.pk).state == State.ACTIVE


def test_a_reserved_lease_keeps_its_size_and_another_currency_is_no_place_to_grow() -> None:
    make_host(gpus=8)
    price()
    price(term="reserved:P1M")
    reserved = make_active_lease(term={"kind": "reserved", "period": "P1M"}, request="A100_80G x2")
    with pytest.raises(WrongState):
        resize(reserved, "A100_80G", at_s=10)
    lease = make_active_lease(at=after(20))

    with pytest.raises(InvalidInput):
        resize(lease, "A100_80G x2 @nowhere", at_s=30)


def test_a_plan_of_a_resize_says_the_price_and_writes_nothing() -> None:
    make_host(gpus=8)
    price()
    lease = make_active_lease(request="A100_80G x4")
    hear(lease, at=after(10))
    before = snapshot()

    plan = resizing.plan(lease=lease, request=requesting.read_request("A100_80G x8"), at=after(10))

    assert (plan["price_micros_per_hour"], plan["placement"][0]["gpus"]) == (8 * 3_600_000, 8)
    assert snapshot() == before


def test_what_is_silent_is_billed_to_its_last_word_when_it_is_resized() -> None:
    host = make_host(gpus=8)
    price()
    lease = make_active_lease(request="A100_80G x4")
    Host.objects.filter(pk=host.pk).update(last_heard_at=after(50))

    resizing.resize(lease=lease, request=requesting.read_request("A100_80G x2"), at=after(102))

    assert metering.cost(reference=lease.public_id, at=after(200)).seconds == 48
    assert Lease.objects.get(pk=lease.pk).state_since == NOON + timedelta(seconds=102)


def test_a_move_holds_the_same_on_another_host_first_and_keeps_price_and_books() -> None:
    old, new = make_host(gpus=2), make_host(gpus=8)
    price()
    Host.objects.filter(pk=new.pk).update(scheduling=Host.Scheduling.CORDONED)
    lease = make_active_lease(request="A100_80G x2")
    Host.objects.filter(pk=new.pk).update(scheduling=Host.Scheduling.OPEN, last_heard_at=after(102))
    Workload.objects.filter(reference=lease.public_id).update(last_valid_until=after(150))  # its host was told
    before = (lease.request, lease.price_micros_per_hour, lease.gpu_count)
    hear(lease, at=after(102))
    untouched = snapshot()

    assert [m["host"] for m in resizing.plan_of_move(lease=lease, at=after(102))["placement"]] == [new.public_id]
    assert snapshot() == untouched
    moved = resizing.move(lease=lease, at=after(102))

    assert (moved.state, moved.epoch) == (State.PROVISIONING, 2)
    assert (moved.request, moved.price_micros_per_hour, moved.gpu_count) == before
    held = Allocation.objects.filter(lease=lease, released_at=None)
    assert {(row.epoch, row.device.host_id) for row in held} == {(1, old.pk), (2, new.pk)}  # both, meanwhile
    converging.converge(at=after(103))
    assert not Workload.objects.filter(reference=lease.public_id, epoch=2).exists()
    Workload.objects.filter(reference=lease.public_id).update(gone_at=after(104))
    Lease.objects.filter(pk=lease.pk).update(check_at=after(105))
    converging.converge(at=after(105))
    assert start_anew(lease, at_s=112).state == State.ACTIVE
    hear(lease, at=after(122))
    assert metering.cost(reference=lease.public_id, at=after(122)).charged_micros == 2 * 110 * 1_000
    end_and_clean(lease, at=after(122))
    assert reconcile.findings() == []


def test_a_lease_that_has_nowhere_to_move_to_stays_and_runs_on() -> None:
    make_host(gpus=8)
    price()
    lease = make_active_lease(request="A100_80G x2")
    before = snapshot()

    with pytest.raises(NoCapacity):
        resizing.move(lease=lease, at=after(100))

    assert snapshot() == before


def test_a_reserved_lease_is_not_moved_by_its_tenant() -> None:
    make_host(gpus=8)
    make_host(gpus=8)
    price(term="reserved:P1M")
    lease = make_active_lease(term={"kind": "reserved", "period": "P1M"})

    assert "move" not in actions.of(lease)
    with pytest.raises(WrongState):
        resizing.move(lease=lease, at=after(100))
