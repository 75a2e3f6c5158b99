"""Where money was lost, or nobody looked at it: what a review suspected of resizing, resuming, quotes and spot."""

from typing import Any

import pytest
from django.db.models import F

from agents.models import Host
from apikit import clock
from billing import budgets, downtime, holds, metering, price_list, reconcile
from billing.models.terms import BudgetAction
from leasing import parking, requesting
from leasing.models import Lease
from leasing.states import EndReason, State
from scheduler import converging, planning, recovery, resizing
from tenants.models import Organization, Role
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    hear,
    make_active_lease,
    make_host,
    make_tenant,
    place,
    price,
    say,
    wanted,
)
from tests.tenants.conftest import MemberCaller

pytestmark = pytest.mark.django_db
DEARER = 7_200_000


def _hold_price() -> None:
    series = price_list.Series("A100_80G", "sim", "verified", "on_demand", "hold", "XTS")
    price_list.publish(series=series, price_micros_per_hour=360_000, starts_at=NOON, cause="test", at=NOON)


def _cap(tenant: Organization, *, micros: int = 10_000) -> None:
    budgets.create(
        owner=tenant.pk, name="small", currency="XTS", amount_micros=micros, label="", thresholds_bp=[10_000],
        action=BudgetAction.REFUSE, time_zone="UTC", at=NOON,
    )  # fmt: skip


def _park(lease: Lease, keep: str, *, at_s: float) -> None:
    hear(lease, at=after(at_s))
    recovery.park_now(lease=lease, keep=keep, at=after(at_s))
    say(lease, "gone", at=after(at_s))
    converging.converge(at=after(at_s + 1))


def _run_again(lease: Lease, *, at_s: float) -> Lease:
    place(at=after(at_s))
    say(lease, "ready", at=after(at_s + 1))
    converging.converge(at=after(at_s + 2))
    lease.refresh_from_db()
    return lease


def _resize(lease: Lease, request: str, *, at_s: float) -> Lease:
    hear(lease, at=after(at_s))
    return resizing.resize(lease=lease, request=requesting.read_request(request), at=after(at_s))


def _pay_out(tenant: Organization, micros: int) -> None:
    """Take all but so much out of a wallet: a hold for something else."""
    holds.place(
        owner=tenant.pk, currency="XTS", amount_micros=1_000_000_000 - micros, reference="else",
        expires_at=after(10**6), at=NOON,
    )  # fmt: skip


def test_a_used_up_budget_refuses_a_dearer_model_and_lets_a_cheaper_one_through() -> None:
    tenant = make_tenant()
    make_host()
    price()
    lease = make_active_lease(tenant)
    make_host(model="H100_80G", last_heard_at=after(100))
    price("H100_80G", micros=DEARER)
    make_host(model="L4_24G", last_heard_at=after(100))
    price("L4_24G", micros=1_000_000)
    _cap(tenant)

    with pytest.raises(budgets.BudgetExceeded):
        _resize(lease, "H100_80G", at_s=100)

    assert _resize(lease, "L4_24G", at_s=100).sku == "L4_24G"


@pytest.mark.parametrize("keep", ["hold", "queue"])
def test_a_used_up_budget_refuses_that_a_parked_lease_starts_again(keep: str) -> None:
    tenant = make_tenant()
    make_host()
    price()
    _hold_price()
    lease = make_active_lease(tenant)
    _park(lease, keep, at_s=102)
    _cap(tenant)

    with pytest.raises(budgets.BudgetExceeded):
        parking.resume(lease_id=lease.pk, at=after(200))

    assert Lease.objects.get(pk=lease.pk).state == State.PARKED


@pytest.mark.parametrize("keep", ["hold", "queue"])
def test_a_parked_lease_starts_again_only_with_the_money_for_its_first_minutes(keep: str) -> None:
    tenant = make_tenant()
    make_host()
    price()
    _hold_price()
    lease = make_active_lease(tenant)
    _park(lease, keep, at_s=102)
    _pay_out(tenant, 600_000 + 99_000)  # ten minutes are 600,000; it has run for 100,000 and owes for the hold

    with pytest.raises(holds.InsufficientFunds):
        parking.resume(lease_id=lease.pk, at=after(200))

    assert Lease.objects.get(pk=lease.pk).state == State.PARKED


def test_who_gave_his_gpus_up_starts_again_at_the_price_of_that_day_and_sees_it_before() -> None:
    tenant = make_tenant()
    make_host()
    price()
    lease = make_active_lease(tenant)
    _park(lease, "queue", at_s=102)
    price(micros=DEARER, starts_at=after(150))
    caller = MemberCaller(tenant, Role.DEVELOPER)
    path = f"/api/v1/leases/{lease.public_id}/actions/resume"

    with clock.frozen(after(200)):
        Host.objects.update(last_heard_at=after(200))
        plan = caller.post(f"{path}?dry_run=1").json()["plan"]
        assert Lease.objects.get(pk=lease.pk).state == State.PARKED
        resumed = caller.post(path).json()

    assert plan["price_per_hour"]["amount"] == "7.200000"
    assert (resumed["state"], resumed["price"]) == ("pending", None)
    assert _run_again(lease, at_s=201).price_micros_per_hour == DEARER
    hear(lease, at=after(302))
    assert metering.cost(reference=lease.public_id, at=after(302)).charged_micros == 100 * 1_000 + 100 * 2_000
    end_and_clean(lease, at=after(303))
    assert reconcile.findings() == []


def test_the_plan_of_a_resume_that_has_to_wait_says_why() -> None:
    tenant = make_tenant()
    make_host()
    price()
    lease = make_active_lease(tenant)
    _park(lease, "queue", at_s=102)
    Host.objects.update(last_heard_at=after(105))
    make_active_lease(at=after(110))
    caller = MemberCaller(tenant, Role.DEVELOPER)

    with clock.frozen(after(120)):
        plan = caller.post(f"/api/v1/leases/{lease.public_id}/actions/resume?dry_run=1").json()["plan"]

    assert (plan["placement"], plan["queue_place"]) == (None, 1)
    assert plan["why_waiting"]["text"]


def test_what_resumes_dearer_than_its_cap_waits() -> None:
    make_host()
    price()
    lease = make_active_lease(constraints={"max_price": {"amount_micros": 4_000_000, "currency": "XTS"}})
    _park(lease, "queue", at_s=102)
    price(micros=DEARER, starts_at=after(150))

    parking.resume(lease_id=lease.pk, at=after(200))
    Host.objects.update(last_heard_at=after(201))
    place(at=after(201))

    lease.refresh_from_db()
    assert lease.state == State.PENDING


@pytest.mark.parametrize("how", ["held", "lost", "reserved"])
def test_who_kept_his_part_of_the_promise_resumes_at_the_promised_price(how: str) -> None:
    make_host(name="first")
    price()
    price(term="reserved:P1M")
    _hold_price()
    lease = make_active_lease(term={"kind": "reserved", "period": "P1M"} if how == "reserved" else "on_demand")
    _park(lease, "queue" if how == "reserved" else "hold", at_s=102)
    if how == "lost":
        parking.lose_hold(lease_id=lease.pk, last_good=after(120), at=after(130), reason="host_lost")
        converging.converge(at=after(131))
    for sold in ("on_demand", "reserved:P1M"):
        price(micros=DEARER, starts_at=after(150), term=sold)

    parking.resume(lease_id=lease.pk, at=after(200))
    Host.objects.update(last_heard_at=after(201))

    assert _run_again(lease, at_s=201).state == State.ACTIVE
    assert lease.price_micros_per_hour == 3_600_000


@pytest.mark.parametrize("act", ["resize", "move"])
@pytest.mark.parametrize("guarded", [True, False])
def test_who_names_a_version_acts_on_no_other(act: str, guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = make_tenant()
    make_host(gpus=4)
    price()
    lease = make_active_lease(tenant)
    make_host(gpus=4)
    caller = MemberCaller(tenant, Role.DEVELOPER)
    usable_until, passes = recovery.usable_until, 0

    def somebody_is_faster(lease: Lease, **when: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == 1:
            Lease.objects.filter(pk=lease.pk).update(version=F("version") + 1, name="other")
        return usable_until(lease, **when)

    monkeypatch.setattr(recovery, "usable_until", somebody_is_faster)
    headers = {"If-Match": f'"{lease.version}"'} if guarded else {}
    body = {"request": "A100_80G x2"} if act == "resize" else {}
    with clock.frozen(after(10)):
        Host.objects.update(last_heard_at=after(10))
        answer = caller.post(f"/api/v1/leases/{lease.public_id}/actions/{act}", body, **headers)

    now = Lease.objects.get(pk=lease.pk)
    assert (answer.status_code, now.epoch) == ((412, 1) if guarded else (200, 2))
    assert now.name == ("" if guarded else "other")  # the door's own transaction takes all of it back


def test_a_spot_gang_that_gave_a_machine_up_gets_that_back_too_where_its_run_is_free() -> None:
    make_host(name="first")
    make_host(name="second")
    price()
    price(term="spot", micros=1_800_000)
    lease = make_active_lease(request="2*A100_80G", term="spot")
    _resize(lease, "A100_80G", at_s=102)
    say(lease, "ready", at=after(103))
    converging.converge(at=after(104))
    hear(lease, at=after(200))
    Host.objects.filter(lease_members__lease=lease, lease_members__epoch=2).update(state=Host.State.LOST)

    converging.converge(at=after(231))

    assert metering.cost(reference=lease.public_id, at=after(9999)).charged_micros == 0
    assert reconcile.findings() == []


def test_a_spot_lease_that_its_host_fails_twice_within_its_minimum_runtime_is_interrupted_twice_and_free() -> None:
    host = make_host()
    price()
    price(term="spot", micros=1_800_000)
    lease = make_active_lease(term="spot", on_interrupt="wait_for_host")
    for lost_at in (100, 300):
        hear(lease, at=after(lost_at))
        Host.objects.filter(pk=host.pk).update(state=Host.State.LOST)
        converging.converge(at=after(lost_at + 31))
        lease.refresh_from_db()
        assert lease.state == State.INTERRUPTED
        say(lease, "ready", at=after(lost_at + 50))
        converging.converge(at=after(lost_at + 51))
        lease.refresh_from_db()
        assert lease.state == State.ACTIVE

    assert metering.cost(reference=lease.public_id, at=after(300)).charged_micros == 0
    assert reconcile.findings() == []


def test_a_quote_whose_machine_has_died_waits_for_another_at_the_promised_price() -> None:
    tenant = make_tenant()
    host = make_host()
    price()
    quote = planning.quote(organization=tenant, wanted=wanted(tenant), ttl_s=900, at=NOON)
    price(micros=DEARER, starts_at=after(30))
    Host.objects.filter(pk=host.pk).update(state=Host.State.LOST, state_since=after(40))

    lease = planning.redeem(organization=tenant, quote=quote, said={}, at=after(60), created_by="test")
    again = planning.redeem(organization=tenant, quote=quote, said={}, at=after(61), created_by="test")

    assert (again.pk, lease.state, lease.epoch) == (lease.pk, State.PENDING, 0)
    make_host(last_heard_at=after(62))
    assert _run_again(lease, at_s=62).price_micros_per_hour == 3_600_000


def test_a_lease_ends_whose_meter_is_beyond_reckoning() -> None:
    make_host()
    price(micros=price_list.MOST_MICROS_PER_HOUR)
    lease = make_active_lease(make_tenant(micros=10**18))

    ended = end_and_clean(lease, at=after(3 * 366 * 86_400))

    assert (ended.state, ended.ending_reason) == (State.ENDED, EndReason.TENANT)
    assert ended.charged_micros is not None
    assert 0 < ended.charged_micros <= (2**63 - 1) // 3600
    assert downtime.void_all(reference=lease.public_id, reason="absurd", at=after(10**9)) == ended.charged_micros
