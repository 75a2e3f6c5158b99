"""A hostile look at reclaims: killed between any two steps, doubled, raced by the tenant, under a clock that jumps."""

from collections.abc import Callable
from typing import Any

import pytest

from billing import metering, reconcile
from leasing import actions, assigning, calendar, giving_way, lifecycle, noticing, starting, term_changes
from leasing.models import Allocation, Lease
from leasing.notice_models import Notice
from leasing.states import EndReason, State
from scheduler import announcing, converging, making_room
from tests.factories import after, hear, make_active_lease, make_host, make_lease, place, price

pytestmark = pytest.mark.django_db


class Killed(BaseException):
    """No handler of ours may catch it: as if the process had died there."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    making_room._tried.clear()


def _refused() -> tuple[Lease, Lease]:
    """A spot lease on the only GPU, and a lease on demand that waits for it."""
    make_host()
    price(micros=4_000_000)
    price(term="spot", micros=2_000_000)
    victim = make_active_lease(term="spot")
    lease = make_lease(at=after(1000))
    place(at=after(1001))
    return victim, lease


def _world() -> list[Any]:
    leases = Lease.objects.order_by("pk").values_list("state", "leaves_at", "version", "epoch")
    return [list(leases), list(Allocation.objects.order_by("pk").values_list("during", "released_at", "epoch"))]


def _kill_in(monkeypatch: pytest.MonkeyPatch, where: object, name: str, *, after_it: bool) -> None:
    real: Callable[..., Any] = getattr(where, name)

    def dies(*args: Any, **kwargs: Any) -> Any:
        if after_it:
            real(*args, **kwargs)
        raise Killed

    monkeypatch.setattr(where, name, dies)


@pytest.mark.parametrize("after_it", [False, True])
@pytest.mark.parametrize(
    ("where", "name"),
    [
        (calendar, "cut"), (noticing, "give"), (noticing, "tell_hosts"), (starting, "tell_end"),
        (assigning, "assign"),
    ],
)  # fmt: skip
def test_a_reclaim_that_is_killed_anywhere_has_changed_nothing_and_is_made_by_the_next_pass(
    where: object, name: str, after_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, lease = _refused()
    before = _world()
    with monkeypatch.context() as patched:
        _kill_in(patched, where, name, after_it=after_it)
        with pytest.raises(Killed):
            making_room.make_room(at=after(1002))
    assert _world() == before
    assert not Notice.objects.exists()

    making_room._tried.clear()
    assert making_room.make_room(at=after(1004)) == 1
    assert Notice.objects.get().ends_at == after(1124)
    assert Lease.objects.get(pk=lease.pk).state == State.SCHEDULED
    assert Lease.objects.get(pk=victim.pk).leaves_at == after(1124)


@pytest.mark.parametrize("after_it", [False, True])
@pytest.mark.parametrize(
    ("where", "name"), [(lifecycle, "interrupt"), (lifecycle, "requeue"), (noticing, "close"), (metering, "stop")]
)
def test_leaving_that_is_killed_anywhere_is_done_later_and_charges_to_the_end_of_the_notice(
    where: object, name: str, after_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, _ = _refused()
    making_room.make_room(at=after(1002))
    hear(victim, at=after(1123))
    with monkeypatch.context() as patched:
        _kill_in(patched, where, name, after_it=after_it)
        with pytest.raises(Killed):
            converging.converge(at=after(1123))
    assert Lease.objects.get(pk=victim.pk).state == State.ACTIVE

    hear(victim, at=after(1140))
    converging.converge(at=after(1140))

    assert Lease.objects.get(pk=victim.pk).state == State.PENDING
    assert metering.cost(reference=victim.public_id, at=after(9999)).seconds == 1122 - 2
    assert reconcile.findings() == []


def test_leaving_twice_is_leaving_once() -> None:
    victim, _ = _refused()
    making_room.make_room(at=after(1002))
    hear(victim, at=after(1123))
    giving_way.leave(lease_id=victim.pk, at=after(1123))
    once = _world()

    giving_way.leave(lease_id=victim.pk, at=after(1123))
    giving_way.leave(lease_id=victim.pk, at=after(5000))

    assert _world() == once


def test_a_clock_that_goes_back_takes_nobody_off_early_and_one_that_leaps_charges_nothing_more() -> None:
    victim, _ = _refused()
    making_room.make_room(at=after(1002))
    converging.converge(at=after(500))
    announcing.announce(at=after(500))
    assert Lease.objects.get(pk=victim.pk).state == State.ACTIVE
    hear(victim, at=after(100_000))

    converging.converge(at=after(100_000))

    assert Lease.objects.get(pk=victim.pk).state == State.PENDING
    assert metering.cost(reference=victim.public_id, at=after(999_999)).seconds == 1122 - 2


def test_a_tenant_who_was_told_cannot_extend_over_its_successor_nor_resize() -> None:
    victim, _ = _refused()
    making_room.make_room(at=after(1002))

    with pytest.raises(calendar.DevicesTaken):
        term_changes.change_end(lease_id=victim.pk, end_at=after(9000), at=after(1010))

    assert "resize" not in actions.of(Lease.objects.get(pk=victim.pk))


def test_a_tenant_who_shortens_before_the_notice_leaves_at_his_own_end_and_pays_to_it() -> None:
    victim, _ = _refused()
    making_room.make_room(at=after(1002))
    term_changes.change_end(lease_id=victim.pk, end_at=after(1100), at=after(1010))
    hear(victim, at=after(1130))

    converging.converge(at=after(1130))

    now = Lease.objects.get(pk=victim.pk)
    assert now.ending_reason == EndReason.EXPIRED
    assert metering.cost(reference=victim.public_id, at=after(9999)).seconds == 1100 - 2


def test_a_victim_is_not_told_twice_by_two_decisions() -> None:
    victim, lease = _refused()
    making_room.make_room(at=after(1002))
    again = giving_way.Leaver(victim.pk, victim.epoch)

    with pytest.raises(giving_way.NotNow):
        giving_way.make_way(
            leavers=[again], ends_at=after(1200), cause=Notice.Cause.SPOT_RECLAIM, at=after(1003),
            successor_id=lease.pk,
        )  # fmt: skip

    assert Notice.objects.count() == 1


def test_one_lease_that_cannot_be_helped_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(gpus=2)
    price(micros=4_000_000)
    price(term="spot", micros=2_000_000)
    for second in (0, 5):
        make_active_lease(term="spot", at=after(second))
    poison, healthy = make_lease(at=after(1000)), make_lease(at=after(1001))
    place(at=after(1002))
    real = giving_way.make_way

    def breaks(**asked: Any) -> Any:
        if asked["successor_id"] == poison.pk:
            raise RuntimeError("poison")
        return real(**asked)

    monkeypatch.setattr(giving_way, "make_way", breaks)
    making_room.make_room(at=after(1003))

    assert Lease.objects.get(pk=healthy.pk).state == State.SCHEDULED
    assert Lease.objects.get(pk=poison.pk).state == State.PENDING
