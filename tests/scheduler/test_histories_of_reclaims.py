"""Random histories of spot, reservations, moves, drains and silent hosts: what must hold holds after every step.

No reservation that was admitted is late, no victim is charged past the end of its notice or told too late, nobody is
sent away before its minimum runtime, nothing stays held for a lease that does not move in, and the books are clean.
Each step does one thing and then lets some of the loops run, in any order, some of them twice or late.
"""

import os
import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.db.models import Q

from agents import host_life
from agents.models import Host, Workload
from apikit.errors import DomainError
from billing import reconcile
from billing.models import Segment
from leasing import parking
from leasing.broken_promises import running_since
from leasing.calendar import HELD_EPOCH
from leasing.models import Allocation, Lease
from leasing.notice_models import LEAVING, Notice
from leasing.states import EndReason, State
from scheduler import announcing, converging, making_room, moving, placing, recovery, spot_prices
from tenants.models import Organization
from tests.factories import after, make_host, make_lease, make_tenant, price

pytestmark = pytest.mark.django_db
SEEDS = range(int(os.environ.get("RECLAIM_HISTORIES", "4")))
STEPS = 40


class History:
    """One history: the clock, two tenants, an owner whose machine is shared when idle, and a handful of machines."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.at_s = 0.0
        self.owner = make_tenant(name="Owner")
        self.tenants = [make_tenant(), make_tenant(name="Other"), self.owner]
        self.hosts = [make_host(gpus=n) for n in (2, 2, 1)]
        self.hosts.append(make_host(gpus=2, owner=self.owner, access=Host.Access.SHARED_WHEN_IDLE))
        price(micros=4_000_000)
        price(term="spot", micros=2_000_000)
        self.silent: set[object] = set()
        self.done: list[str] = []

    def step(self) -> None:
        self.at_s += self.random.choice([1, 3, 20, 90, 240, 700])
        act = self.random.choice(ACTS)
        self.done.append(f"{self.at_s:.0f} {act.__name__}")
        try:
            act(self)
        except DomainError as refused:
            self.done.append(f"  {refused.slug}")
        self.speak()
        for loop in self.random.choices(LOOPS, k=self.random.randint(2, 6)):
            loop(self)
        self.speak()
        self.settle()

    def settle(self) -> None:
        """What every loop has seen once more, so that what is judged is not only late."""
        converging.converge(at=after(self.at_s))
        announcing.announce(at=after(self.at_s))

    def speak(self) -> None:
        """Let every host that is not silent say what it should: what is wanted runs, what is not is gone."""
        at = after(self.at_s)
        for host in Host.objects.all():
            if host.pk in self.silent:
                continue
            Host.objects.filter(pk=host.pk).update(last_heard_at=at)
            mine = Workload.objects.filter(host=host, gone_at=None)
            mine.filter(wanted=False).update(gone_at=at)
            fresh = mine.filter(wanted=True, ready_at=None)
            fresh.update(step="ready", ready_at=at, reported_at=at, last_valid_until=at + timedelta(seconds=60))
            mine.filter(wanted=True).update(reported_at=at, last_valid_until=at + timedelta(seconds=60))

    def lease(self, *states: State) -> Lease | None:
        rows = list(Lease.objects.filter(state__in=states).order_by("requested_at", "pk"))
        return self.random.choice(rows) if rows else None

    def tenant(self) -> Organization:
        return self.random.choice(self.tenants)


def asks_on_demand(history: History) -> None:
    request = history.random.choice(["A100_80G", "A100_80G x2", "A100_80G"])
    make_lease(history.tenant(), request, at=after(history.at_s), may_move=history.random.random() < 0.5)


def asks_spot(history: History) -> None:
    asked: dict[str, object] = {"notice_s": history.random.choice([0, 120, 600])}
    asked["on_interrupt"] = history.random.choice(["restart_elsewhere", "restart_elsewhere", "end", "wait_for_host"])
    if history.random.random() < 0.3:
        asked["constraints"] = {"max_price": {"amount": "1", "currency": "XTS", "amount_micros": 2_100_000}}
    make_lease(history.tenant(), "A100_80G", at=after(history.at_s), term="spot", **asked)


def asks_for_later(history: History) -> None:
    start = after(history.at_s + history.random.choice([900, 1500, 4000]))
    term = {"kind": "on_demand", "start_at": start, "duration_s": history.random.choice([600, 3600])}
    make_lease(history.tenant(), "A100_80G", at=after(history.at_s), term=term)


def asks_for_a_while(history: History) -> None:
    make_lease(history.tenant(), "A100_80G", at=after(history.at_s), term={"duration_s": 600})


def ends(history: History) -> None:
    lease = history.lease(State.PENDING, State.SCHEDULED, State.PROVISIONING, State.ACTIVE, State.PARKED)
    if lease is not None:
        recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(history.at_s))


def parks(history: History) -> None:
    lease = history.lease(State.ACTIVE)
    if lease is not None:
        recovery.park_now(lease=lease, keep=parking.QUEUE, at=after(history.at_s))


def resumes(history: History) -> None:
    lease = history.lease(State.PARKED)
    if lease is not None:
        parking.resume(lease_id=lease.pk, at=after(history.at_s))


def restarts(history: History) -> None:
    lease = history.lease(State.ACTIVE)
    if lease is not None:
        recovery.restart_now(lease=lease, at=after(history.at_s))


def is_moved_by_hand(history: History) -> None:
    lease = history.lease(State.ACTIVE)
    if lease is not None:
        moving.off_its_host(lease=lease, by="user:1", reason="test", at=after(history.at_s))


def a_host_is_drained_or_opened(history: History) -> None:
    host = history.random.choice(history.hosts[:3])
    if history.random.random() < 0.5:
        deadline = after(history.at_s + history.random.choice([60, 900]))
        host_life.drain(host_id=host.pk, deadline=deadline, reason="test", by="owner", at=after(history.at_s))
    else:
        host_life.uncordon(host_id=host.pk, by="owner", at=after(history.at_s))


def a_host_falls_silent_or_is_back(history: History) -> None:
    host = history.random.choice(history.hosts)
    if host.pk in history.silent:
        history.silent.remove(host.pk)
        Host.objects.filter(pk=host.pk).update(state=Host.State.ONLINE)
    else:
        history.silent.add(host.pk)
        Host.objects.filter(pk=host.pk).update(state=Host.State.LOST)


def converge(history: History) -> None:
    converging.converge(at=after(history.at_s))


def announce(history: History) -> None:
    announcing.announce(at=after(history.at_s))


def make_room(history: History) -> None:
    making_room._tried.clear()
    making_room.make_room(at=after(history.at_s))


def place(history: History) -> None:
    placing.place_pending(at=after(history.at_s), grace_s=30)


def step_prices(history: History) -> None:
    spot_prices.step_due(at=after(history.at_s))


ACTS: list[Callable[[History], None]] = [
    asks_on_demand, asks_on_demand, asks_spot, asks_spot, asks_spot, asks_for_later, asks_for_a_while, ends, parks,
    resumes, restarts, is_moved_by_hand, a_host_is_drained_or_opened, a_host_falls_silent_or_is_back, converge,
]  # fmt: skip
LOOPS: list[Callable[[History], None]] = [converge, announce, make_room, make_room, place, place, step_prices]


def _faults(history: History) -> list[str]:
    """Return what does not hold."""
    at, found = after(history.at_s), []
    for lease in Lease.objects.filter(state=State.SCHEDULED, start_at__isnull=False):
        held = Allocation.objects.filter(lease=lease, epoch=lease.epoch, released_at=None)
        spoken = not {row.device.host_id for row in held.select_related("device")} & history.silent
        # What a lost host made late is placed anew; then its range says when it was to begin.
        begins_at = max((row.during.lower for row in held), default=at)
        if spoken and begins_at + timedelta(seconds=180) < at:
            found.append(f"{lease.public_id} was to start at {lease.start_at}")
    for notice in Notice.objects.filter(cause__in=LEAVING).select_related("lease"):
        promised = timedelta(seconds=notice.promised_s)
        if notice.ends_at - notice.given_at < promised:
            found.append(f"{notice} of {notice.lease.public_id} is shorter than promised")
        if notice.outcome == "served":
            ended_s = notice.ends_at.timestamp()
            late = Segment.objects.filter(
                Q(end_s=None) | Q(end_s__gt=ended_s), meter__reference=notice.lease.public_id, start_s__lt=ended_s
            )
            if late.exists():
                found.append(f"{notice.lease.public_id} was charged past {notice.ends_at}")
        if notice.given_at == at and notice.closed_at is None and notice.cause != "move":
            began = running_since([notice.lease])[notice.lease_id]
            if at - began < timedelta(seconds=notice.lease.min_runtime_s):
                found.append(f"{notice.lease.public_id} ran since {began} only")
    open_leaving = set(Notice.objects.filter(closed_at=None, cause__in=LEAVING).values_list("lease", flat=True))
    leaving = set(Lease.objects.filter(leaves_at__isnull=False).values_list("pk", flat=True))
    if open_leaving != leaving:
        found.append(f"told {open_leaving}, leaving {leaving}")
    moving_in = set(Notice.objects.filter(closed_at=None, cause="move").values_list("lease", flat=True))
    places = set(Allocation.objects.filter(epoch=HELD_EPOCH, released_at=None).values_list("lease", flat=True))
    if places - moving_in:
        found.append(f"held for nobody: {places - moving_in}")
    overdue = Lease.objects.filter(state__in=[State.ACTIVE], leaves_at__lt=at)
    if overdue.exists():
        found.append(f"still there after its notice: {list(overdue)}")
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_what_must_hold_holds_through_a_random_history(seed: int, settings: LazySettings) -> None:
    settings.MOVES_ALLOWANCE_BP = 5_000
    making_room._tried.clear()
    history = History(seed)

    for _ in range(STEPS):
        history.step()
        assert _faults(history) == [], "\n".join(history.done[-12:])

    assert reconcile.findings() == [], "\n".join(history.done)


def test_the_histories_reach_what_they_are_about(settings: LazySettings) -> None:
    """A history that reclaims and moves nothing would prove nothing."""
    settings.MOVES_ALLOWANCE_BP = 5_000
    making_room._tried.clear()
    history = History(1)
    for act in (asks_spot, asks_spot, asks_spot, asks_spot, asks_spot, asks_spot, asks_spot):
        act(history)
    for _ in range(3):
        place(history)
        history.speak()
        history.settle()
    history.at_s = 900
    asks_on_demand(history)
    asks_on_demand(history)
    place(history)

    make_room(history)

    assert Notice.objects.filter(cause__in=LEAVING).exists()
    assert _faults(history) == []
