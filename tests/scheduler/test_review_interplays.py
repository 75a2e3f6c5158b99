"""A hostile look at what two features do to each other: ends and lost GPUs, terms and parking, owners and guests."""

from collections.abc import Callable
from datetime import datetime

import pytest
from django.conf import LazySettings

from agents.models import Device, Host, Workload
from billing import metering, reconcile
from leasing.models import Allocation, Lease
from leasing.notice_models import LeaseMove, Notice
from leasing.states import EndReason, State
from scheduler import converging, making_room, moving, recovery
from tests.factories import (
    after,
    hear,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    make_zone,
    place,
    price,
    say,
)  # fmt: skip

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _fresh() -> None:
    making_room._tried.clear()


def seconds(lease: Lease) -> int:
    return metering.cost(reference=lease.public_id, at=after(10**7)).seconds


def _fail_gpu(lease: Lease, *, at: float) -> None:
    held = Allocation.objects.filter(lease=lease).values("device")
    Device.objects.filter(pk__in=held).update(health=Device.Health.FAILED, health_since=after(at))


def _crash(lease: Lease, *, at: float) -> None:
    say(lease, "exited", at=after(at), exit_code=1)


def _unusable(lease: Lease, *, at: float) -> None:
    Workload.objects.filter(reference=lease.public_id).update(unusable_since=after(at))


def _end_term(lease: Lease, *, at: float) -> None:
    Lease.objects.filter(pk=lease.pk).update(end_at=after(at))


def _leave(lease: Lease, *, at: float) -> None:
    Lease.objects.filter(pk=lease.pk).update(leaves_at=after(at))


def _end(lease: Lease, at: datetime) -> None:
    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=at)


def _park(lease: Lease, at: datetime) -> None:
    recovery.park_now(lease=lease, keep="queue", at=at)


def _restart(lease: Lease, at: datetime) -> None:
    recovery.restart_now(lease=lease, at=at)


@pytest.mark.parametrize("act", [_end, _park, _restart])
@pytest.mark.parametrize("loss", [_fail_gpu, _crash, _unusable, _end_term, _leave])
def test_whoever_stops_a_lease_whose_use_was_lost_before_pays_to_the_loss(
    loss: Callable[..., None], act: Callable[[Lease, datetime], None]
) -> None:
    make_host()
    price()
    lease = make_active_lease()  # usable from second 2 on
    loss(lease, at=102)
    hear(lease, at=after(702))  # its host speaks all the while; our loop was away

    act(lease, after(702))

    assert seconds(lease) == 100
    assert reconcile.findings() == []


def test_an_owner_sends_no_guest_away_from_a_machine_that_is_not_his() -> None:
    owner = make_tenant()
    own = make_host(owner=owner, access="shared_when_idle")
    price(micros=4_000_000)
    guest = make_active_lease()
    Host.objects.filter(pk=own.pk).update(state=Host.State.LOST)
    other = make_host()  # the guest goes on there; the owner's machine is not back
    Workload.objects.filter(reference=guest.public_id).update(last_valid_until=after(10))
    converging.converge(at=after(700))
    place(at=after(1000))
    Host.objects.filter(pk=other.pk).update(last_heard_at=after(1000))
    say(guest, "ready", at=after(1001))
    Host.objects.filter(pk=own.pk).update(state=Host.State.LOST)
    converging.converge(at=after(1001))
    guest.refresh_from_db()
    assert (guest.state, guest.epoch) == (State.ACTIVE, 2)
    waits = make_lease(owner, at=after(5000))
    place(at=after(5001))

    assert making_room.make_room(at=after(5002)) == 0
    assert not Notice.objects.exists()
    assert Lease.objects.get(pk=waits.pk).state == State.PENDING


def test_no_move_that_we_make_costs_the_tenant_more(settings: LazySettings) -> None:
    settings.MOVES_ALLOWANCE_BP = 10_000
    make_host(gpus=2)
    price(micros=4_000_000)
    dear = make_zone("dear-1")
    lease = make_active_lease(may_move=True)
    make_host(zone=dear)
    price(micros=9_000_000, region="dear")
    make_lease(request="A100_80G x2 @sim", at=after(1000))
    place(at=after(1001))

    making_room.make_room(at=after(1002))

    assert not LeaseMove.objects.exists()
    with pytest.raises(moving.CannotMove):
        moving.off_its_host(lease=Lease.objects.get(pk=lease.pk), by="user:1", reason="test", at=after(1003))
