"""Batches that are carried out while the next is decided: the same leases, the same rows, and lost races stay lost."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from agents.models import Device
from leasing import assigning, calendar, moves
from leasing.calendar import Seat
from leasing.models import Allocation, Lease
from leasing.states import State
from scheduler import placing
from scheduler import pool as pools
from tests.factories import NOON, after, make_host, make_lease, make_tenant, price

HOSTS, GPUS = 3, 4


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(placing, "BATCH", 2)
    monkeypatch.setattr(placing, "MOST_A_PASS", 6)
    yield
    pools.forget()
    placing.forget()


def _fill() -> list[Lease]:
    for n in range(HOSTS):
        make_host(gpus=GPUS, name=f"host-{n}")
    price()
    tenant = make_tenant(micros=10**12, gpu_quota=2000)
    return [make_lease(tenant, at=NOON) for _ in range(HOSTS * GPUS + 2)]


def _states() -> list[str]:
    return sorted(Lease.objects.values_list("state", flat=True))


@pytest.mark.django_db(transaction=True)
def test_batches_beside_the_deciding_place_all_that_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _fill()
    connections: set[int] = set()
    real = assigning.assign_all

    def seen(acts: Any, **more: Any) -> Any:
        connections.add(id(connection.connection))
        return real(acts, **more)

    monkeypatch.setattr(assigning, "assign_all", seen)
    done = placing.place_pending(at=after(5), grace_s=30)

    assert (done.placed, done.waiting, done.lost_races, done.failed) == (HOSTS * GPUS, 2, 0, 0)
    assert id(connection.connection) not in connections  # it was another's, and that one is closed
    assert _states() == [State.PENDING] * 2 + [State.PROVISIONING] * HOSTS * GPUS
    assert Allocation.objects.values("device").distinct().count() == HOSTS * GPUS
    warm = pools.load(term="on_demand", currency="XTS", at=after(6)).hosts
    pools.forget()
    assert pools.load(term="on_demand", currency="XTS", at=after(6)).hosts == warm


@pytest.mark.django_db(transaction=True)
def test_a_race_lost_by_a_batch_is_decided_again_while_the_others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = _fill()
    stranger = make_lease(make_tenant(name="Other"), at=after(3600), term={"start_at": after(86_400)})
    Lease.objects.filter(pk=stranger.pk).update(state=State.SCHEDULED)  # it waits for nothing
    real, taken = assigning.assign_all, list[Device]()

    def beaten(acts: Any, **more: Any) -> Any:
        if not taken:  # somebody else takes a device of the first batch between the decision and the act
            seat: Seat = acts[0][1].seats[0]
            taken.append(Device.objects.get(pk=seat.device_id))
            during = calendar.range_until(start=after(4), end_at=None, stop_grace_s=30)
            calendar.bind(
                seats=[seat], organization_id=stranger.organization_id, during=during, lease=stranger, epoch=0
            )
        return real(acts, **more)

    monkeypatch.setattr(assigning, "assign_all", beaten)
    done = placing.place_pending(at=after(5), grace_s=30)
    while done.lost_races:
        done = placing.place_pending(at=after(5), grace_s=30)

    placed = Lease.objects.filter(pk__in=[lease.pk for lease in leases], state=State.PROVISIONING)
    assert placed.count() == HOSTS * GPUS - 1
    assert Allocation.objects.filter(device=taken[0]).count() == 1
    assert Allocation.objects.values("device").distinct().count() == HOSTS * GPUS


@pytest.mark.django_db
def test_in_a_transaction_of_the_caller_all_is_done_on_his_connection() -> None:
    _fill()

    assert placing.place_pending(at=after(5), grace_s=30).placed == HOSTS * GPUS
    assert _states() == [State.PENDING] * 2 + [State.PROVISIONING] * HOSTS * GPUS


@pytest.mark.django_db
def test_a_lease_that_changed_since_it_was_read_is_read_again() -> None:
    known = {lease.pk: Lease.objects.get(pk=lease.pk) for lease in _fill()[:3]}
    first, second, third = known
    Lease.objects.filter(pk=first).update(version=7, epoch=3)
    Lease.objects.filter(pk=second).update(epochs_lost=5)

    found = {lease.pk: lease for lease in moves.all_locked(known, known=known)}

    assert (found[first].version, found[first].epoch, found[second].epochs_lost) == (7, 3, 5)
    assert found[third] is not known[third]  # a copy: what is changed on it and not written stays with it
    assert found[third].version == known[third].version
