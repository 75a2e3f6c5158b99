"""When a waiting lease starts: a certain start is never late, an estimate says what it rests on."""

import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasing import lifecycle, term_changes
from leasing.calendar import DevicesTaken
from leasing.models import Lease
from leasing.states import EndReason, State
from scheduler import converging, planning, promises, survival
from scheduler.models import Promise
from tenants.models import Organization
from tests.factories import (
    after,
    end_and_clean,
    hear,
    make_active_lease,
    make_gpu_model,
    make_host,
    make_lease,
    make_tenant,
    place,
    price,
    say,
    wanted,
)

pytestmark = pytest.mark.django_db


def until(seconds: float) -> dict[str, Any]:
    return {"kind": "on_demand", "end_at": after(seconds)}


@given(st.lists(st.integers(1, 10**6), max_size=50), st.integers(0, 10**6))
def test_what_is_left_is_positive_and_does_not_depend_on_the_order(lengths: list[int], age_s: int) -> None:
    left = survival.remaining_s(lengths=lengths, age_s=age_s)

    assert left > 0
    assert survival.remaining_s(lengths=sorted(lengths), age_s=age_s) == left


def test_what_is_left_is_the_median_of_those_who_went_on() -> None:
    assert survival.remaining_s(lengths=[10, 20, 30, 40, 50], age_s=0) == 30
    assert survival.remaining_s(lengths=[10, 20, 30, 40, 50], age_s=15) == 15
    assert survival.remaining_s(lengths=[10, 20, 30, 40, 50], age_s=45) == 45
    assert survival.free_at_s(ends=[(50, 4), (10, 1), (30, 2)], needed=3) == 30
    assert survival.free_at_s(ends=[(50, 4)], needed=5) is None


def ran_for(tenant: Organization, *, minutes: list[int]) -> None:
    """Let leases of one GPU have run one after the other, each for so long."""
    for number, length in enumerate(minutes):
        lease = make_active_lease(tenant, "A100_80G", at=after(4000 * number))
        end_and_clean(lease, at=after(4000 * number + 2 + 60 * length))


def test_an_estimate_rests_on_past_leases_and_says_so() -> None:
    make_host(gpus=8)
    price()
    tenant = make_tenant(gpu_quota=1000, micros=10**12)
    ran_for(tenant, minutes=[10, 20, 30, 40, 50])
    make_active_lease(tenant, "A100_80G x8", at=after(40_000))
    first, second = (make_lease(tenant, "A100_80G x8", at=after(40_100 + n)) for n in range(2))

    place(at=after(40_120))

    first.refresh_from_db()
    second.refresh_from_db()
    # Ready at 40,002 s, and half of them went on for 1800 s or longer: 41,802 s, in steps of five minutes.
    assert first.eta == {"at": "2027-03-01T23:40:00Z", "certainty": "estimated", "basis": "median of 5 past leases"}
    assert second.eta == {"at": None, "certainty": "unknown"}  # nothing runs after that of which an end could come
    plan = planning.plan(organization=tenant, wanted=wanted(tenant, "A100_80G x8", at=after(40_130)), at=after(40_130))
    assert plan["start"]["certainty"] == "unknown"
    small = wanted(tenant, "A100_80G", at=after(40_130))
    with pytest.raises(planning.NoCapacity) as refused:
        planning.request_now(organization=make_tenant(), wanted=small, at=after(40_130), created_by="t")
    assert refused.value.facts["eta"]["certainty"] in {"estimated", "unknown"}


def test_gpus_that_come_free_one_here_and_one_there_are_no_room_for_several_on_one_machine() -> None:
    scattered = [survival.Machine(free=1, ends=[(10, 1), (90, 2)]), survival.Machine(ends=[(20, 2), (60, 2)])]

    assert survival.machines_at_s(scattered, count=1, nodes=1, now_s=5) == 5
    assert survival.machines_at_s(scattered, count=2, nodes=2, now_s=5) == 20
    assert survival.machines_at_s(scattered, count=4, nodes=1, now_s=5) == 60
    assert survival.machines_at_s(scattered, count=4, nodes=2, now_s=5) == 90
    assert survival.machines_at_s(scattered, count=5, nodes=1, now_s=5) is None


def test_what_no_machine_has_room_for_is_not_said_to_start_when_as_many_gpus_are_free_on_several() -> None:
    make_host(gpus=4)
    make_host(gpus=4)
    price()
    tenant = make_tenant(gpu_quota=1000, micros=10**12)
    ran_for(tenant, minutes=[10, 20, 30, 40, 50])
    for _ in range(4):
        make_active_lease(tenant, "A100_80G x2", at=after(40_000))
    large = make_lease(tenant, "A100_80G x8", at=after(40_100))

    place(at=after(40_120))

    large.refresh_from_db()
    assert large.eta == {"at": None, "certainty": "unknown"}


def test_a_request_for_any_gpu_of_some_memory_starts_with_the_first_kind_that_fits() -> None:
    make_gpu_model("RTX_4090", memory_gib=24)
    make_host(gpus=1)
    make_host(gpus=1, model="RTX_4090")
    price()
    price("RTX_4090")
    tenant = make_tenant(gpu_quota=1000, micros=10**12)
    ran_for(tenant, minutes=[10, 20, 30, 40, 50])
    make_active_lease(tenant, "A100_80G", at=after(40_000))
    make_active_lease(tenant, "RTX_4090", at=after(40_000))
    large, small, second = (
        make_lease(tenant, text, at=after(40_100)) for text in ("any:70G+", "any:20G..30G", "any:20G+")
    )

    place(at=after(40_120))

    for lease in (large, small, second):
        lease.refresh_from_db()
    basis = "median of 5 past leases"
    assert large.eta == {"at": "2027-03-01T23:40:00Z", "certainty": "estimated", "basis": basis}
    assert small.eta == {"at": None, "certainty": "unknown"}  # no RTX_4090 has ever ended
    assert second.eta == {"at": None, "certainty": "unknown"}  # it is after both, and each has one GPU


def test_too_few_past_leases_say_nothing() -> None:
    make_host(gpus=8)
    price()
    tenant = make_tenant(gpu_quota=1000, micros=10**12)
    ran_for(tenant, minutes=[10, 20, 30, 40])
    make_active_lease(tenant, "A100_80G x8", at=after(40_000))
    waits = make_lease(tenant, "A100_80G x8", at=after(40_100))

    place(at=after(40_120))

    waits.refresh_from_db()
    assert waits.eta == {"at": None, "certainty": "unknown"}


def finish_what_is_over(at: datetime) -> None:
    """Hosts are heard, containers start and stop as told: nothing fails."""
    for lease in Lease.objects.filter(state=State.PROVISIONING):
        hear(lease, at=at)
        say(lease, "ready", at=at)
    for lease in Lease.objects.filter(state=State.ACTIVE):
        hear(lease, at=at)
    converging.converge(at=at)
    for lease in Lease.objects.filter(state=State.ENDING):
        say(lease, "gone", at=at)
    converging.converge(at=at + timedelta(seconds=1))


@pytest.mark.parametrize("seed", range(2))
def test_a_certain_start_is_never_late_whoever_comes_later(seed: int) -> None:
    """Random histories without failures: leases with and without ends, cancels, terms that come first, fair share."""
    chance = random.Random(seed)
    for index in range(3):
        make_host(gpus=4, name=f"host-{index}")
    price()
    price(term="reserved:P1W")
    tenants = [make_tenant(gpu_quota=1000, micros=10**13, name=f"t{n}") for n in range(3)]
    promised: dict[Any, str] = {}
    kept = 0
    for step in range(36):
        at_s = 300 * step
        for _ in range(chance.choice([0, 1, 2])):
            ends = chance.choice([None, *[until(at_s + 600 * n) for n in (2, 4, 7, 12)]])
            asked: dict[str, Any] = {"term": ends} if ends else {}
            if chance.random() < 0.1:
                asked = {"term": "P1W"}
            make_lease(chance.choice(tenants), f"A100_80G x{chance.choice([1, 2, 4])}", at=after(at_s), **asked)
        place(at=after(at_s + 10))
        finish_what_is_over(after(at_s + 12))
        place(at=after(at_s + 20))
        if chance.random() < 0.3:
            running = Lease.objects.filter(state=State.ACTIVE).order_by("requested_at").first()
            if running is not None:
                end_and_clean(running, at=after(at_s + 30))
        for at_eta in sorted(set(promised.values())):
            moment = datetime.fromisoformat(at_eta)
            if after(at_s + 30) < moment <= after(at_s + 300):
                finish_what_is_over(moment)
                place(at=moment + timedelta(seconds=2))
        for pk, said in list(promised.items()):
            lease = Lease.objects.get(pk=pk)
            due = datetime.fromisoformat(said) + timedelta(seconds=5)
            if lease.state == State.PENDING:
                assert due > after(at_s + 300) or (lease.end_at and lease.end_at <= due), (step, said, lease.eta)
            else:
                placed = lease.events.filter(from_state=State.PENDING).order_by("seq").first()
                if placed is not None and placed.to_state == State.PROVISIONING:
                    assert placed.at <= due
                    kept += 1
                del promised[pk]
        for lease in Lease.objects.filter(state=State.PENDING, eta__certainty="certain"):
            before, said = promised.get(lease.pk), lease.eta["at"] if lease.eta else ""
            assert before is None or said <= before, "a certain start moves to an earlier second only"
            promised[lease.pk] = said
    assert kept >= 3
    assert Promise.objects.count() == Lease.objects.filter(state=State.PENDING, eta__certainty="certain").count()


def test_nobody_extends_into_what_a_waiting_lease_was_promised() -> None:
    make_host(gpus=8)
    price()
    runs = make_active_lease(request="A100_80G x8", term=until(3600))
    waits = make_lease(make_tenant(), "A100_80G x8", at=after(10), term=until(20_000))
    place(at=after(20))

    def extend(seconds: float) -> Lease:
        return promises.keeping(lambda: term_changes.change_end(lease_id=runs.pk, end_at=after(seconds), at=after(30)))

    with pytest.raises(DevicesTaken):
        extend(7200)
    runs.refresh_from_db()
    assert runs.end_at == after(3600)
    assert extend(1800).end_at == after(1800)
    lifecycle.end(lease_id=waits.pk, reason=EndReason.TENANT, at=after(40))
    assert extend(7200).end_at == after(7200)


def test_what_renews_itself_has_no_end_that_an_eta_could_count_on() -> None:
    make_host(gpus=8)
    price()
    price(term="reserved:P1W")
    runs = make_active_lease(request="A100_80G x8", term={"kind": "reserved", "period": "P1W", "renew": True})
    waits = make_lease(make_tenant(), "A100_80G x8", at=after(10))
    place(at=after(20))
    waits.refresh_from_db()
    assert waits.eta == {"at": None, "certainty": "unknown"}

    Lease.objects.filter(pk=runs.pk).update(renew=False)
    place(at=after(21))

    waits.refresh_from_db()
    assert waits.eta is not None
    assert waits.eta["certainty"] == "certain"
