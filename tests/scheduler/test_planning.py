"""Offers, plans, quotes and "now or not at all": what is shown can be had, and nobody overtakes the queue."""

from datetime import timedelta

import pytest

from leasing import quote_allowance, quotes
from leasing.models import Allocation, Lease, Quote
from leasing.states import State
from scheduler import planning
from tenants.models import Organization
from tests.factories import NOON, after, make_active_lease, make_host, make_lease, make_tenant, place, price, wanted

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Organization:
    make_host(gpus=8, name="eight")
    make_host(gpus=2, name="two")
    price()
    return make_tenant()


def offers(tenant: Organization, request: str | None = None) -> list[tuple[str, int, int]]:
    found = planning.offers(
        organization=tenant, currency="XTS", term="on_demand", region=None, request=request, at=after(5)
    )
    return [(line["gpu_model"], line["most_in_one_machine"], line["available"]) for line in found]


def test_an_offer_is_what_calendar_and_live_hosts_leave(tenant: Organization) -> None:
    assert offers(tenant) == [("A100_80G", 8, 10)]

    make_active_lease(request="A100_80G x6")

    assert offers(tenant) == [("A100_80G", 2, 4)]
    assert offers(tenant, "A100_80G x3") == []
    assert offers(tenant, "2*A100_80G x2") == [("A100_80G", 2, 4)]


def test_what_a_waiting_lease_will_take_is_not_offered_to_others(tenant: Organization) -> None:
    make_lease(request="A100_80G x8")

    assert offers(tenant) == [("A100_80G", 2, 2)]
    with pytest.raises(planning.NoCapacity):
        planning.request_now(organization=tenant, wanted=wanted(tenant, "A100_80G x4"), at=after(1), created_by="test")


def test_a_refusal_says_why_when_and_what_would_work(tenant: Organization) -> None:
    make_active_lease(request="A100_80G x8", term={"kind": "on_demand", "end_at": after(3600)})

    with pytest.raises(planning.NoCapacity) as refused:
        planning.request_now(organization=tenant, wanted=wanted(tenant, "A100_80G x4"), at=after(9), created_by="t")

    facts = refused.value.facts
    assert {line["code"] for line in facts["reasons"]} == {"busy", "devices"}
    # The end, then 30 s of stop grace and 180 s of cleaning.
    assert facts["eta"] == {"at": "2027-03-01T13:03:30Z", "certainty": "certain"}
    assert "A100_80G x2" in [help_["request"] for help_ in facts["would_help"]]
    assert not Lease.objects.filter(organization=tenant).exists()


def test_a_pending_lease_shows_its_place_why_and_when(tenant: Organization) -> None:
    make_active_lease(request="A100_80G x8", term={"kind": "on_demand", "end_at": after(3600)})
    first, second = make_lease(request="A100_80G x8", at=after(10)), make_lease(request="A100_80G x8", at=after(20))

    place(at=after(21))

    first.refresh_from_db(), second.refresh_from_db()
    assert (first.queue_place, second.queue_place) == (1, 2)
    assert first.eta == {"at": "2027-03-01T13:03:30Z", "certainty": "certain"}
    assert second.eta == {"at": None, "certainty": "unknown"}
    assert "busy" in first.why_waiting["text"]


def test_a_quote_holds_named_devices_at_a_frozen_price_and_is_redeemed_once(tenant: Organization) -> None:
    quote = planning.quote(organization=tenant, wanted=wanted(tenant, "A100_80G x8"), ttl_s=120, at=NOON)
    assert offers(tenant) == [("A100_80G", 2, 2)]

    lease = planning.redeem(organization=tenant, quote=quote, said={}, at=after(60), created_by="test")
    again = planning.redeem(organization=tenant, quote=quote, said={}, at=after(61), created_by="test")

    assert lease.pk == again.pk
    assert lease.state == State.PROVISIONING
    assert lease.price_micros_per_hour == quote.price_micros_per_hour == 8 * 3_600_000
    held = set(Allocation.objects.filter(quote=quote).values_list("device", flat=True))
    assert held == set(Allocation.objects.filter(lease=lease).values_list("device", flat=True))


def test_a_quote_that_is_over_gives_its_devices_back(tenant: Organization) -> None:
    quote = planning.quote(organization=tenant, wanted=wanted(tenant, "A100_80G x8"), ttl_s=60, at=NOON)

    with pytest.raises(quotes.QuoteExpired):
        planning.redeem(organization=tenant, quote=quote, said={}, at=after(61), created_by="test")
    quotes.expire_due(at=after(61))

    quote.refresh_from_db()
    assert quote.state == Quote.State.EXPIRED
    assert offers(tenant) == [] or offers(tenant)[0][1] == 8


def test_quotes_count_against_the_quota(tenant: Organization) -> None:
    Organization.objects.filter(pk=tenant.pk).update(gpu_quota=8)
    planning.quote(organization=tenant, wanted=wanted(tenant, "A100_80G x8"), ttl_s=60, at=NOON)

    with pytest.raises(Exception, match="8 of 8 GPUs"):
        make_lease(tenant)


def test_quotes_that_nobody_redeems_hold_gpus_only_so_long(tenant: Organization) -> None:
    Organization.objects.filter(pk=tenant.pk).update(gpu_quota=8)  # 8 x 1800 GPU-seconds in 24 hours
    begun = []
    for number in range(2):  # 8 x 900 each; one is cancelled, one expires
        at = after(1_000 * number)
        begun.append(planning.quote(organization=tenant, wanted=wanted(tenant, "A100_80G x8"), ttl_s=900, at=at))
        if number == 0:
            quotes.cancel(quote_id=begun[0].pk, at=after(890))
    quotes.expire_due(at=after(1_900))

    with pytest.raises(quote_allowance.QuoteAllowanceUsedUp) as refused:
        planning.quote(organization=tenant, wanted=wanted(tenant, "A100_80G x1"), ttl_s=1, at=after(2_000))

    facts = {"allowed_gpu_s": 14_400, "used_gpu_s": 14_400, "asked_gpu_s": 1}
    assert (refused.value.facts, refused.value.status) == (facts, 409)
    assert refused.value.retry_after_s == 86_400 - 2_000 + 1
    assert make_lease(tenant, at=after(2_001)).pk  # a lease is none of it
    day_later = after(86_400)
    assert planning.quote(organization=tenant, wanted=wanted(tenant, "A100_80G x1"), ttl_s=60, at=day_later).pk


def test_what_is_redeemed_uses_nothing_up_and_others_have_their_own(tenant: Organization) -> None:
    Organization.objects.filter(pk=tenant.pk).update(gpu_quota=9)
    for number in range(2):
        quote = planning.quote(
            organization=tenant, wanted=wanted(tenant, "A100_80G x4"), ttl_s=900, at=after(number)
        )  # fmt: skip
        planning.redeem(organization=tenant, quote=quote, said={}, at=after(number + 1), created_by="test")

    quote_allowance.check(organization=Organization.objects.get(pk=tenant.pk), gpus=9, ttl_s=1_800, at=after(10))
    with pytest.raises(quote_allowance.QuoteAllowanceUsedUp):
        quote_allowance.check(organization=Organization.objects.get(pk=tenant.pk), gpus=9, ttl_s=1_801, at=after(10))


def test_a_plan_prices_everything_and_writes_nothing(tenant: Organization) -> None:
    plan = planning.plan(organization=tenant, wanted=wanted(tenant, "A100_80G x4", term="2h"), at=NOON)

    assert plan["price_micros_per_hour"] == 4 * 3_600_000
    assert plan["estimated_total_micros"] == 8 * 3_600_000
    assert [member["gpus"] for member in plan["placement"]] == [4]
    assert not Lease.objects.exists()
    assert not Allocation.objects.exists()


def test_a_refused_plan_says_when_it_could_start(tenant: Organization) -> None:
    make_active_lease(request="A100_80G x8", term={"kind": "on_demand", "end_at": NOON + timedelta(hours=1)})

    plan = planning.plan(organization=tenant, wanted=wanted(tenant, "A100_80G x4", term="2h"), at=after(5))

    assert plan["placement"] is None
    assert plan["start"] == {"at": "2027-03-01T13:03:30Z", "certainty": "certain"}


def test_outside_its_owners_hours_a_host_is_offered_to_nobody_but_him() -> None:
    # NOON is a Monday; the market may have it in the evening only.
    host = make_host(gpus=2, hours=[{"days": [0], "from": "20:00", "to": "08:00"}])
    price()
    owner = host.owner
    Organization.objects.filter(pk=owner.pk).update(currency="XTS")

    assert offers(make_tenant()) == []
    assert offers(owner) == [("A100_80G", 2, 2)]
