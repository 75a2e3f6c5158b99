"""Hundreds wait: nobody who comes later takes what an earlier one could have, and little of it is decided twice."""

from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from audit import ids
from leasing.models import Allocation, Lease
from leasing.states import State
from scheduler import backfill, placing, planning, waiting_line
from scheduler import pool as pools
from scheduler.models import Promise
from scheduler.placement import Ask, Placement, Refusal, Want, decide
from scheduler.pool import Pool
from tenants.models import Organization
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    place,
    wanted,
)
from tests.factories import price as make_price

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Organization:
    return make_tenant(gpu_quota=100_000, micros=10**13)


def copies(lease: Lease, count: int, *, every_s: float = 0.01) -> list[Lease]:
    """As many more leases that wait as this one does, each asked for a little later."""
    rows = []
    for number in range(1, count + 1):
        row = Lease.objects.get(pk=lease.pk)
        row.pk, row._state.adding = ids.new(), True
        row.requested_at = lease.requested_at + timedelta(seconds=every_s * number)
        rows.append(row)
    return Lease.objects.bulk_create(rows)


def test_six_hundred_wait_and_equal_asks_are_decided_once(tenant: Organization) -> None:
    for _ in range(4):
        make_host(gpus=8)
    make_price()
    for _ in range(4):
        make_active_lease(tenant, "A100_80G x8")
    for request in ("A100_80G", "A100_80G x2", "A100_80G x4", "A100_80G x8"):
        copies(make_lease(tenant, request, at=after(10)), 149)

    first = placing.place_pending(at=after(60), grace_s=30)
    with CaptureQueriesContext(connection) as asked:
        second = placing.place_pending(at=after(61), grace_s=30)

    assert (first.placed, first.waiting) == (0, 600)
    assert first.decisions <= 8  # four kinds: is there room now; and nobody knows when there will be
    assert (second.decisions, second.waiting) == (0, 600)
    assert not [query for query in asked if "UPDATE" in query["sql"] and "why_waiting" in query["sql"]]
    places = Lease.objects.filter(state=State.PENDING).order_by("queue_place").values_list("queue_place", flat=True)
    assert list(places) == list(range(1, 601))
    assert Lease.objects.filter(state=State.PENDING, why_waiting__code="no_capacity").count() == 600


def test_what_comes_free_goes_to_the_first_who_can_have_it_however_many_wait(tenant: Organization) -> None:
    for _ in range(2):
        make_host(gpus=8)
    make_price()
    running = [make_active_lease(tenant, "A100_80G x8") for _ in range(2)]
    copies(make_lease(tenant, "A100_80G x8", at=after(10)), 2)
    last = copies(make_lease(tenant, "A100_80G", at=after(500)), 599)[-1]
    place(at=after(600))

    order = waiting_line.queue(at=after(610))
    assert order[-1].pk == last.pk
    end_and_clean(running[0], at=after(605))
    place(at=after(610))

    # The first three want eight; the first of all gets them, and none of the six hundred behind takes one.
    placed = set(Lease.objects.filter(state=State.PROVISIONING).values_list("pk", flat=True))
    assert placed == {order[0].pk}
    end_and_clean(running[1], at=after(620))
    place(at=after(630))
    assert {order[0].pk, order[1].pk} == set(
        Lease.objects.filter(state=State.PROVISIONING).values_list("pk", flat=True)
    )


def test_who_is_beyond_the_shadows_is_placed_where_he_delays_nobody(
    tenant: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "SHADOWS", 3)
    make_host(gpus=8, name="busy")
    make_host(gpus=2, name="free")
    make_price()
    make_active_lease(tenant, "A100_80G x8", term={"kind": "on_demand", "end_at": after(7200)})
    copies(make_lease(tenant, "A100_80G x8", at=after(10), term="1h"), 5)
    short = make_lease(tenant, "A100_80G x2", at=after(100), term="30m")

    place(at=after(110))

    short.refresh_from_db()
    assert short.state == State.PROVISIONING
    # The term of a lease that was never active counts from its start, so its end is not known: one keeps the seats.
    assert Promise.objects.count() <= 3


def test_a_promise_is_kept_against_who_comes_before_it_later(tenant: Organization) -> None:
    """A certain start stays, also where a reserved lease comes, or somebody who has used less."""
    make_host(gpus=8)
    make_price()
    make_price(term="reserved:P1W")
    make_active_lease(tenant, "A100_80G x8", term={"kind": "on_demand", "end_at": after(3600)})
    waits = make_lease(tenant, "A100_80G x8", at=after(10), term={"kind": "on_demand", "end_at": after(20_000)})
    place(at=after(20))
    promised = Promise.objects.get(lease=waits)
    other = make_lease(make_tenant(), "A100_80G x8", at=after(30), term="P1W")

    place(at=after(40))

    waits.refresh_from_db()
    other.refresh_from_db()
    assert other.queue_place == 1
    assert Promise.objects.get(lease=waits).starts_at == promised.starts_at
    assert waits.eta == {"at": "2027-03-01T13:03:30Z", "certainty": "certain"}
    assert other.eta is not None
    assert other.eta["at"] is None or other.eta["at"] > "2027-03-01T17"


def test_offers_quotes_and_now_or_never_see_what_is_promised(tenant: Organization) -> None:
    make_host(gpus=8)
    make_price()
    make_active_lease(tenant, "A100_80G x4", term={"kind": "on_demand", "end_at": after(3600)})
    make_lease(tenant, "A100_80G x8", at=after(10), term={"kind": "on_demand", "end_at": after(20_000)})
    place(at=after(20))
    assert Promise.objects.count() == 1
    rival = make_tenant()

    def offered(at_s: float) -> list[int]:
        lines = planning.offers(
            organization=rival, currency="XTS", term="on_demand", region=None, request=None, at=after(at_s)
        )
        return [line["most_in_one_machine"] for line in lines]

    assert offered(30) == []
    open_end = wanted(rival, "A100_80G", at=after(30))
    with pytest.raises(planning.NoCapacity):
        planning.request_now(organization=rival, wanted=open_end, at=after(30), created_by="t")
    with pytest.raises(planning.NoCapacity):
        planning.quote(organization=rival, wanted=open_end, ttl_s=60, at=after(30))
    # What ends before the promise begins delays nobody.
    brief = wanted(rival, "A100_80G x4", at=after(30), term={"kind": "on_demand", "end_at": after(3000)})
    assert planning.request_now(organization=rival, wanted=brief, at=after(30), created_by="t").epoch == 1


def test_repeated_asks_are_answered_as_the_engine_answers_each(tenant: Organization) -> None:
    """Placing by `decide_again` names the very seats that `decide` would have named one after another."""
    for index in range(12):
        make_host(gpus=8, name=f"host-{index}", price_floor_micros=0)
    make_price()
    one, other = (pools.load(term="on_demand", currency="XTS", at=NOON) for _ in range(2))
    now = pools.seconds(NOON)
    counts = Counter[bool]()
    for turn in range(60):
        asked = Ask((Want("A100_80G", count=1 + turn * 7 % 5),), str(tenant.pk), now, now)
        by_memory = one.decide_again(asked, when=True)
        afresh = decide(other.views(), other.general(asked), explain=False)
        if isinstance(afresh, Placement):
            assert by_memory == afresh
        else:
            assert isinstance(by_memory, Refusal)
        counts[isinstance(by_memory, Placement)] += 1
        if isinstance(by_memory, Placement):
            for overlay in (one, other):
                _take(overlay, by_memory, tenant, now)
    assert counts[True] > 20 < counts[True] + counts[False]
    assert counts[False] > 5


def _take(pool: Pool, placement: Placement, tenant: Organization, now_s: int) -> None:
    pool.take(placement, organization=tenant.pk, start_s=now_s, end_s=None)


def test_allocations_are_written_in_batches(tenant: Organization) -> None:
    for _ in range(40):
        make_host(gpus=8)
    make_price()
    copies(make_lease(tenant, "A100_80G", at=after(1)), 299)

    with CaptureQueriesContext(connection) as asked:
        done = placing.place_pending(at=after(20), grace_s=30)

    assert done.placed == 300
    assert Allocation.objects.count() == 300
    assert len(asked) < 120  # two batches; one lease at a time would be thousands


def test_equal_asks_get_one_start_after_the_other(tenant: Organization) -> None:
    for number in range(3):
        make_host(gpus=8)
        if number == 0:
            make_price()
        ends = {"kind": "on_demand", "end_at": after(3600 * (number + 1))}
        make_active_lease(tenant, "A100_80G x8", at=NOON, term=ends)
    first = make_lease(tenant, "A100_80G x8", at=after(10))
    copies(first, 3)

    place(at=after(20))

    etas = Lease.objects.filter(state=State.PENDING).order_by("queue_place").values_list("eta__at", flat=True)
    assert list(etas) == ["2027-03-01T13:03:30Z", "2027-03-01T14:03:30Z", "2027-03-01T15:03:30Z", None]
