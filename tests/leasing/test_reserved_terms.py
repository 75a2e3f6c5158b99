"""Reserved terms end to end: tiers of discount, the commitment, early ends, hosts that die, extensions, what is free.

The commitment is the least charge of the price version that was promised (docs/decisions/0004).
"""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from nacl.public import PrivateKey

from agents.models import Host, Workload
from billing import ledger, metering, payouts, price_list, receipt_check, receipts, reconcile, wallets
from billing.models import PriceVersion
from leasing import term_changes
from leasing.models import Lease
from leasing.states import EndReason, State
from scheduler import converging, recovery
from tenants import vault
from tenants.models import Secret
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
)  # fmt: skip

pytestmark = pytest.mark.django_db
DAY_S = 86_400
LIST = 3_600_000  # micro-units an hour, 1,000 a second
TIERS = {"P1W": (3_240_000, 7 * DAY_S), "P1M": (2_700_000, 28 * DAY_S), "P1Y": (1_980_000, 365 * DAY_S)}


@pytest.fixture(autouse=True)
def _pool() -> None:
    make_host(name="first")
    make_host(name="second")
    price(micros=LIST)


def publish(term: str, *, micros: int, at: datetime = NOON, **terms: Any) -> PriceVersion:
    series = price_list.Series("A100_80G", "sim", "verified", term, "active", "XTS")
    return price_list.publish(
        series=series, price_micros_per_hour=micros, starts_at=at, cause="test", at=at, **terms
    )  # fmt: skip


def reserve(period: str, **asked: Any) -> Lease:
    micros, minimum_s = TIERS[period]
    publish(f"reserved:{period}", micros=micros, minimum_s=minimum_s)
    tenant = make_tenant(micros=10**12)
    return make_active_lease(tenant, term={"kind": "reserved", "period": period}, **asked)


def lose_host(lease: Lease, *, heard: float) -> Host:
    hear(lease, at=after(heard))
    Workload.objects.filter(reference=lease.public_id).update(last_valid_until=after(heard + 60))
    host = Host.objects.get(workloads__reference=lease.public_id, workloads__wanted=True)
    Host.objects.filter(pk=host.pk).update(state=Host.State.LOST)
    return host


def move_to_the_other_host(lease: Lease, *, heard: float) -> float:
    """Let its host die; return the second from which it runs on the other."""
    lose_host(lease, heard=heard)
    converging.converge(at=after(heard + 31))
    ready = heard + 60 + settings.WORKLOAD_STOP_GRACE_S + settings.FENCE_MARGIN_S + 5
    place(at=after(ready))
    say(lease, "ready", at=after(ready))
    converging.converge(at=after(ready + 1))
    lease.refresh_from_db()
    assert (lease.state, lease.epoch) == (State.ACTIVE, 2)
    return ready


@pytest.mark.parametrize("period", TIERS)
def test_the_longer_the_term_the_lower_the_price_and_an_early_end_pays_the_commitment(period: str) -> None:
    lease = reserve(period)
    micros, minimum_s = TIERS[period]

    assert metering.cost(reference=lease.public_id, at=after(3602)).charged_micros == micros
    ended = end_and_clean(lease, at=after(3602))

    assert ended.charged_micros == micros * minimum_s // 3600
    assert reconcile.findings() == []


def test_after_the_commitment_an_early_end_pays_what_was_used() -> None:
    lease = reserve("P1M")
    micros, minimum_s = TIERS["P1M"]

    ended = end_and_clean(lease, at=after(2 + minimum_s + 7))

    assert ended.charged_micros == micros * (minimum_s + 7) // 3600


@pytest.mark.parametrize("reason", [EndReason.OPERATOR, EndReason.HOST_LOST])
def test_nobody_pays_a_commitment_that_the_platform_ended(reason: EndReason) -> None:
    lease = reserve("P1W")

    recovery.end_now(lease=lease, reason=reason, at=after(102))
    say(lease, "gone", at=after(103))
    converging.converge(at=after(104))

    lease.refresh_from_db()
    assert lease.charged_micros == 3_240_000 * lease_seconds(lease) // 3600
    assert lease_seconds(lease) <= 100


@pytest.mark.parametrize("waits", [False, True])
def test_who_leaves_while_his_host_is_lost_is_let_go(waits: bool) -> None:
    lease = reserve("P1W")
    lose_host(lease, heard=102)
    if waits:
        Host.objects.update(state=Host.State.LOST)
    converging.converge(at=after(133))
    lease.refresh_from_db()
    assert lease.state in (State.INTERRUPTED, State.PENDING)

    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(140))
    converging.converge(at=after(1000))

    lease.refresh_from_db()
    assert (lease.state, lease.charged_micros) == (State.ENDED, TIERS["P1W"][0] * 100 // 3600)
    assert reconcile.findings() == []


def test_who_leaves_after_his_lease_runs_elsewhere_pays_the_commitment() -> None:
    lease = reserve("P1W")
    ready = move_to_the_other_host(lease, heard=102)

    ended = end_and_clean(lease, at=after(ready + 50))

    assert ended.charged_micros == TIERS["P1W"][0] * TIERS["P1W"][1] // 3600


@pytest.mark.parametrize("how", ["restart", "on_exit"])
def test_who_restarts_a_lease_and_leaves_before_it_runs_again_pays_the_commitment(how: str) -> None:
    """It was as good as a lost host: nobody who knew it was bound by anything."""
    lease = reserve("P1W", on_exit="restart")
    micros, minimum_s = TIERS["P1W"]
    hear(lease, at=after(102))
    if how == "restart":
        recovery.restart_now(lease=lease, at=after(102))
    else:
        say(lease, "exited", at=after(102), exit_code=1)
        converging.converge(at=after(103))
    lease.refresh_from_db()
    assert lease.state == State.PROVISIONING

    ended = end_and_clean(lease, at=after(104))

    assert ended.charged_micros == micros * minimum_s // 3600
    assert reconcile.findings() == []


def test_who_restarts_a_lease_whose_host_dies_then_is_let_go() -> None:
    lease = reserve("P1W")
    hear(lease, at=after(102))
    recovery.restart_now(lease=lease, at=after(102))
    lose_host(lease, heard=103)
    converging.converge(at=after(134))

    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(140))
    converging.converge(at=after(1000))

    lease.refresh_from_db()
    assert (lease.state, lease.charged_micros) == (State.ENDED, TIERS["P1W"][0] * 100 // 3600)


@pytest.mark.parametrize(
    ("failure", "by_tenant"),
    [
        ("secret_missing", True),
        ("secret kept", False),
        ("secret unreadable", False),
        ("image_denied", True),
        ("engine_error", False),
    ],
)
def test_a_restart_from_what_its_tenant_took_away_is_no_way_out(failure: str, by_tenant: bool) -> None:
    """He deletes the secret or the image that it starts from: no host could start it. A host that says so falsely, to
    earn the commitment, is not believed; nor is it his doing, or a reason not to end, that we lost our own key."""
    lease = reserve("P1W")
    micros, minimum_s = TIERS["P1W"]
    if failure.startswith("secret"):
        Lease.objects.update(secrets=["TOKEN"])
        Host.objects.update(sealing_key=bytes(PrivateKey.generate().public_key).hex())
    if failure == "secret kept":
        vault.store(organization=lease.organization, name="TOKEN", value="x", actor="t", at=NOON)
        Secret.objects.update(created_at=NOON)
    hear(lease, at=after(102))
    if failure == "secret unreadable":
        vault.store(organization=lease.organization, name="LOGIN", value="ada:x", actor="t", at=NOON)
        Secret.objects.update(created_at=NOON)
        Lease.objects.update(secrets=[], registry_secret="LOGIN")
    recovery.restart_now(lease=Lease.objects.get(), at=after(102))
    if failure == "secret unreadable":
        Secret.objects.update(sealed=b"sealed by a key that is gone")
    at_s = 103.0
    while Lease.objects.get().state not in (State.ENDING, State.ENDED):
        assert at_s < 3000
        say(lease, "cleaning", at=after(at_s), failure="secret_missing" if "secret" in failure else failure)
        converging.converge(at=after(at_s + 1))
        place(at=after(at_s + 400))
        at_s += 400
    converging.converge(at=after(at_s + 2000))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDED, EndReason.FAILED_TO_START)
    assert lease.charged_micros == (micros * minimum_s // 3600 if by_tenant else micros * 100 // 3600)
    assert reconcile.findings() == []


@pytest.mark.parametrize("how", ["shortened", "completed", "given up"])
def test_there_is_no_way_around_the_commitment(how: str) -> None:
    lease = reserve("P1W")
    micros, minimum_s = TIERS["P1W"]
    over = after(200)
    if how == "shortened":
        term_changes.shorten(lease_id=lease.pk, end_at=over, at=after(102))
    elif how == "completed":
        say(lease, "exited", at=over, exit_code=0)
    else:
        hear(lease, at=after(102))
        recovery.park_now(lease=lease, keep="queue", at=after(102))
        assert lease.end_at is not None
        over = lease.end_at
    hear(lease, at=over)

    converging.converge(at=over + timedelta(seconds=1))
    say(lease, "gone", at=over + timedelta(seconds=2))
    converging.converge(at=over + timedelta(seconds=3))

    lease.refresh_from_db()
    assert (lease.state, lease.charged_micros) == (State.ENDED, micros * minimum_s // 3600)
    assert reconcile.findings() == []


@pytest.mark.parametrize("moved", [False, True])
def test_a_term_that_is_served_to_its_end_pays_what_was_used(moved: bool) -> None:
    lease = reserve("P1W")
    assert lease.end_at is not None
    if moved:  # to and fro: it ends when it was to end
        term_changes.change_end(lease_id=lease.pk, end_at=lease.end_at + timedelta(days=1), at=after(50))
        term_changes.shorten(lease_id=lease.pk, end_at=lease.end_at, at=after(60))
    hear(lease, at=after(102))
    recovery.restart_now(lease=lease, at=after(102))  # and is not used for ten minutes
    say(lease, "ready", at=after(702))
    converging.converge(at=after(703))
    hear(lease, at=lease.end_at)

    converging.converge(at=lease.end_at + timedelta(seconds=1))
    say(lease, "gone", at=lease.end_at + timedelta(seconds=2))
    converging.converge(at=lease.end_at + timedelta(seconds=3))

    lease.refresh_from_db()
    assert lease.charged_micros == TIERS["P1W"][0] * (7 * DAY_S - 600) // 3600


def lease_seconds(lease: Lease) -> int:
    return metering.cost(reference=lease.public_id, at=after(10 * DAY_S)).seconds


def test_the_commitment_follows_the_tenant_to_another_host_at_the_promised_price() -> None:
    lease = reserve("P1W")
    publish("reserved:P1W", micros=9_000_000, minimum_s=99 * DAY_S, at=after(50))  # dearer, for others
    ready = move_to_the_other_host(lease, heard=102)

    ended = end_and_clean(lease, at=after(ready + 100))

    micros, minimum_s = TIERS["P1W"]
    assert ended.charged_micros == micros * minimum_s // 3600  # once, not once per host
    lines = metering.cost(reference=lease.public_id, at=after(10 * DAY_S)).lines
    assert {line.price_micros_per_hour for line in lines if line.seconds} == {micros}
    assert reconcile.findings() == []


def test_each_owner_earns_for_his_own_seconds_and_the_last_for_the_missing_ones() -> None:
    lease = reserve("P1W")
    first, second = Host.objects.get(workloads__reference=lease.public_id), None
    ready = move_to_the_other_host(lease, heard=102)
    second = Host.objects.exclude(pk=first.pk).get()

    ended = end_and_clean(lease, at=after(ready + 100))

    shares = []
    for host in (first, second):
        earnings = payouts.earnings_of(owner=host.owner_id, currency="XTS", at=after(DAY_S))
        shares.append(ledger.balance_micros(earnings))
    assert shares[0] == 3_240_000 * 100 // 3600 * 9 // 10
    assert sum(shares) == ended.charged_micros * 9 // 10


def test_an_extension_keeps_the_discount_whatever_the_list_says_by_then() -> None:
    lease = reserve("P1M")
    publish("reserved:P1M", micros=LIST * 2, minimum_s=0, at=after(50))
    before = lease.end_at
    assert before is not None

    term_changes.renew_by_hand(lease_id=lease.pk, periods=1, at=after(60))
    lease.refresh_from_db()
    assert lease.end_at is not None
    assert lease.end_at > before
    hear(lease, at=before + timedelta(hours=1))

    cost = metering.cost(reference=lease.public_id, at=before + timedelta(hours=1))
    assert {line.price_micros_per_hour for line in cost.lines} == {TIERS["P1M"][0]}


@pytest.mark.parametrize(("ran_s", "charged"), [(300, 0), (599, 0), (600, 600_000), (4000, 4_000_000)])
def test_what_the_platform_interrupts_within_the_first_minutes_is_free(ran_s: int, charged: int) -> None:
    publish("on_demand", micros=LIST, at=after(1), free_if_interrupted_s=600)
    lease = make_active_lease(make_tenant(), at=after(10), on_interrupt="end")
    lose_host(lease, heard=12 + ran_s)

    converging.converge(at=after(12 + ran_s + 31))
    say(lease, "gone", at=after(12 + ran_s + 40))
    converging.converge(at=after(12 + ran_s + 41))

    lease.refresh_from_db()
    assert (lease.ending_reason, lease.charged_micros) == (EndReason.HOST_LOST, charged)
    assert reconcile.findings() == []


def test_what_the_tenant_ends_in_the_first_minutes_is_paid_by_the_second() -> None:
    publish("on_demand", micros=LIST, at=after(1), free_if_interrupted_s=600)
    lease = make_active_lease(make_tenant(), at=after(10))

    assert end_and_clean(lease, at=after(12 + 300)).charged_micros == 300_000


def test_what_nobody_can_pay_of_a_commitment_is_no_expense_of_ours() -> None:
    publish("reserved:P1Y", micros=LIST, minimum_s=365 * DAY_S)
    tenant = make_tenant(micros=10_000_000)
    lease = make_active_lease(tenant, term={"kind": "reserved", "period": "P1Y"})
    owner = Host.objects.get(workloads__reference=lease.public_id).owner_id

    ended = end_and_clean(lease, at=after(602))

    assert ended.charged_micros == 10_000_000  # ten minutes, and all that was left
    assert wallets.balance(owner=tenant.pk, currency="XTS", at=after(700)).balance_micros == 0
    earnings = payouts.earnings_of(owner=owner, currency="XTS", at=after(700))
    assert ledger.balance_micros(earnings) == 9_000_000
    assert receipt_check.verify(receipts.export(reference=lease.public_id, at=after(700))) == []
    assert reconcile.findings() == []


def test_a_commitment_takes_nothing_that_another_lease_has_used_already() -> None:
    publish("reserved:P1Y", micros=LIST, minimum_s=365 * DAY_S)
    tenant = make_tenant(micros=10_000_000)
    other = make_active_lease(tenant)
    lease = make_active_lease(tenant, term={"kind": "reserved", "period": "P1Y"})

    ended = end_and_clean(lease, at=after(1002))  # it finishes a second later

    used_by_the_other = 1_001_000
    assert ended.charged_micros == 10_000_000 - used_by_the_other
    assert metering.cost(reference=other.public_id, at=after(1003)).charged_micros == used_by_the_other
    assert reconcile.findings() == []
