"""What an owner sees of his money: it adds up to the ledger, falls on the right host, and says when it knows little."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from agents.models import Host
from apikit import clock
from billing import close, payouts, price_list
from leasing.states import State
from scheduler import converging, host_money
from scheduler.host_money import Market
from tenants import keys
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    hear,
    make_active_lease,
    make_host,
    make_organization,
    make_tenant,
    place,
    price,
    say,
)

pytestmark = pytest.mark.django_db
HOUR = 3600


@pytest.fixture
def host() -> Host:
    host = make_host(owner=make_organization("Owner", currency="XTS", time_zone="UTC"), gpus=2, enrolled_at=NOON)
    price()
    return host


def earned(host: Host, *, at: float, days: int = 3) -> host_money.Earnings:
    return host_money.earnings(host=host, days=host_money.days_until(at=after(at), count=days, time_zone="UTC"))


def run(seconds: float, request: str = "A100_80G x2", *, at: float = 0) -> Any:
    lease = make_active_lease(make_tenant(), request, at=after(at))
    return end_and_clean(lease, at=after(at + 2 + seconds))


def test_days_and_leases_add_up_to_the_ledger_to_the_micro_unit(host: Host) -> None:
    run(777)
    run(13 * HOUR + 1, at=1000)  # over midnight
    close.close_due(at=after(20 * HOUR))

    found = earned(host, at=20 * HOUR)

    payable = payouts.payable_micros(owner=host.owner_id, currency="XTS", at=after(20 * HOUR))
    assert found.total.earned_micros == payable > 0
    assert sum(one.earned_micros for one in found.by_day.values()) == payable
    assert sum(one.earned_micros for one in found.by_lease.values()) == payable
    assert found.total.gpu_seconds == 2 * (777 + 13 * HOUR + 1)
    assert len(found.by_lease) == 2
    assert [day.isoformat() for day in found.by_day] == ["2027-03-01", "2027-03-02"]


def test_what_runs_counts_up_to_now(host: Host) -> None:
    lease = make_active_lease(make_tenant(), "A100_80G")
    hear(lease, at=after(502))

    found = earned(host, at=502)

    assert found.total.gpu_seconds == 500
    assert found.total.gross_micros == 500 * 1000
    assert found.total.earned_micros == 450_000  # less ten percent


def test_a_lease_that_moved_earns_each_host_its_own_seconds(host: Host) -> None:
    other = make_host(owner=host.owner, gpus=2, enrolled_at=NOON)
    lease = make_active_lease(make_tenant(), "A100_80G x2")
    first = lease.members.get().host
    Host.objects.filter(pk=first.pk).update(state=Host.State.LOST, last_heard_at=after(102))
    converging.converge(at=after(140))
    say(lease, "gone", at=after(150))
    Host.objects.filter(pk=first.pk).update(state=Host.State.LOST)
    place(at=after(151))
    say(lease, "ready", at=after(160))
    converging.converge(at=after(160))
    lease.refresh_from_db()
    assert lease.state == State.ACTIVE
    hear(lease, at=after(460))

    by_host = {one.pk: earned(one, at=460).total.gpu_seconds for one in (host, other)}

    assert by_host[first.pk] == 2 * 100
    assert sum(by_host.values()) == 2 * 400
    parts = [earned(one, at=460).total.earned_micros for one in (host, other)]
    assert sum(parts) == 2 * 400 * 1000 * 9 // 10


def test_use_is_what_was_sold_of_what_there_was_since_enrolment(host: Host) -> None:
    run(1800, "A100_80G")

    had = host_money.capacity_s(host, start=NOON - timedelta(days=9), end=after(HOUR))

    assert had == 2 * HOUR
    assert earned(host, at=HOUR).total.gpu_seconds * 10_000 // had == 2500


def test_the_floor_that_is_advised_is_the_least_price_that_covers_the_cost() -> None:
    market = Market(hosts=5, capacity_s=1000 * HOUR, sold=((500_000, 200 * HOUR), (1_000_000, 300 * HOUR)))

    assert market.used_bp == 5000
    assert host_money.advised_floor(market, cost_micros=0) == 0
    assert host_money.advised_floor(market, cost_micros=600_000) == 1_000_000
    assert (
        host_money.income_per_gpu_hour(market, floor_micros=0, cost_micros=0) == (200 * 450_000 + 300 * 900_000) // 1000
    )
    assert host_money.income_per_gpu_hour(market, floor_micros=1_000_000, cost_micros=600_000) == 300 * 300_000 // 1000


def test_thin_data_is_said_and_no_figure_made_of_it() -> None:
    few_hosts = Market(hosts=2, capacity_s=10_000 * HOUR, sold=((500_000, 5_000 * HOUR),))
    few_hours = Market(hosts=9, capacity_s=10_000 * HOUR, sold=((500_000, 49 * HOUR),))

    assert [host_money.advised_floor(one, cost_micros=0) for one in (few_hosts, few_hours)] == [None, None]


def test_a_day_of_a_time_zone_has_the_hours_it_has() -> None:
    at = NOON.replace(month=3, day=29)  # clocks went forward in Berlin on the 28th, in 2027
    days = host_money.days_until(at=at, count=3, time_zone="Europe/Berlin")

    hours = [(last.timestamp() - first.timestamp()) / HOUR for _, first, last in days]
    assert hours == [24, 23, 14]  # until 12:00 UTC, which is 14:00 there


def ask(host: Host, path: str, *, scopes: tuple[str, ...] = ("billing:read", "hosts:read")) -> Any:
    _, secret = keys.create(
        organization=host.owner, name="t", scopes=scopes, expires_at=None, created_by=None, at=clock.now()
    )
    return Client().get(f"/api/v1/hosts/{host.public_id}/{path}", headers={"Authorization": f"Bearer {secret}"})


def test_the_doors_show_it_and_say_that_it_is_simulated(host: Host) -> None:
    run(1800)
    with clock.frozen(after(2 * HOUR)):
        earnings = ask(host, "earnings?days=2").json()
        summary = ask(host, "summary").json()
        advice = ask(host, "price-advice?cost_micros_per_gpu_hour=100000").json()
        refused = ask(host, "earnings", scopes=("hosts:read",))
        bad = ask(host, "earnings?days=0")

    assert (earnings["simulated"], earnings["currency"], len(earnings["by_day"])) == (True, "XTS", 2)
    assert earnings["total"]["earned"]["amount"] == "3.240000"
    assert summary["use"]["used_bp"] == 2500
    assert summary["idle_hour"][0]["a_sold_hour_brings"]["amount"] == "3.240000"
    assert summary["figures"] == []
    assert summary["idle_hour"][0]["an_idle_hour_costs"] is None
    assert advice["items"][0]["data"]["is_thin"] is True
    assert advice["items"][0]["advised_floor"] is None
    assert "income(f)" in advice["items"][0]["formula"]
    assert (refused.status_code, bad.status_code) == (403, 422)


def test_another_owners_host_is_not_there(host: Host) -> None:
    stranger = make_host()
    _, secret = keys.create(
        organization=stranger.owner, name="t", scopes=("billing:read",), expires_at=None, created_by=None, at=NOON
    )
    for path in ("earnings", "summary", "price-advice"):
        url = f"/api/v1/hosts/{host.public_id}/{path}"
        assert Client().get(url, headers={"Authorization": f"Bearer {secret}"}).status_code == 404


def test_spot_prices_count_in_the_market(host: Host) -> None:
    run(600)
    series = price_list.Series(sku="A100_80G", region="sim", tier="verified", term="spot", use="active", currency="XTS")
    price_list.publish(series=series, price_micros_per_hour=1_000_000, starts_at=NOON, cause="test", at=NOON)
    found = host_money.market(sku="A100_80G", region="sim", tier="verified", at=after(HOUR))

    assert found.sold == ((3_600_000, 1200),)
    assert (found.hosts, found.capacity_s) == (1, 2 * HOUR)
    assert host_money.prices_now(host, sku="A100_80G", at=after(10)) == {"on_demand": 3_600_000, "spot": 1_000_000}
