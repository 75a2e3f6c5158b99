"""A lease with a price cap waits for its price, says so, and leases by itself."""

from datetime import datetime

import pytest

from billing import metering, price_list
from leasing.models import Lease
from leasing.states import State
from scheduler import converging
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    place,
    price,
    say,
)

pytestmark = pytest.mark.django_db
DEAR, CHEAP = 3_600_000, 1_800_000
SERIES = price_list.Series("A100_80G", "sim", "verified", "on_demand", "active", "XTS")


def becomes(micros: int, *, at: datetime) -> None:
    price_list.publish(series=SERIES, price_micros_per_hour=micros, starts_at=at, cause="market", at=at)


def capped(micros: int) -> Lease:
    return make_lease(make_tenant(), constraints={"max_price_micros": micros})


def test_it_says_that_it_waits_for_the_price_and_what_the_price_is_now() -> None:
    make_host(gpus=1)
    price(micros=DEAR)
    lease = capped(2_000_000)

    place(at=after(10))

    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert lease.why_waiting is not None
    assert lease.why_waiting["price"] == {
        "cap": {"amount": "2.000000", "currency": "XTS"},
        "now": {"amount": "3.600000", "currency": "XTS"},
    }  # fmt: skip
    assert "once the price is 2.00 XTS or lower; it is 3.60 XTS now" in lease.why_waiting["text"]
    becomes(2_500_000, at=after(60))
    place(at=after(61))
    lease.refresh_from_db()
    assert lease.why_waiting is not None
    assert lease.why_waiting["price"]["now"]["amount"] == "2.500000"


def test_it_leases_by_itself_when_the_price_falls_and_pays_that_price() -> None:
    make_host(gpus=1)
    price(micros=DEAR)
    lease = capped(2_000_000)
    place(at=after(10))
    becomes(CHEAP, at=after(60))

    place(at=after(61))
    say(lease, "ready", at=after(70))
    converging.converge(at=after(70))

    lease.refresh_from_db()
    assert (lease.state, lease.price_micros_per_hour) == (State.ACTIVE, CHEAP)
    say(lease, "ready", at=after(3670))
    assert metering.cost(reference=lease.public_id, at=after(3670)).charged_micros == CHEAP


def test_it_leases_by_itself_when_capacity_at_its_price_comes() -> None:
    make_host(gpus=1)
    price(micros=CHEAP)
    running = make_active_lease(at=NOON)
    lease = capped(2_000_000)
    place(at=after(10))
    lease.refresh_from_db()
    assert lease.why_waiting is not None
    assert (lease.state, lease.why_waiting["price"]) == (State.PENDING, None)
    end_and_clean(running, at=after(60))

    place(at=after(62))

    lease.refresh_from_db()
    assert (lease.state, lease.price_micros_per_hour) == (State.PROVISIONING, CHEAP)


def test_what_waits_for_its_price_keeps_nothing_from_those_who_pay_it() -> None:
    make_host(gpus=1)
    price(micros=DEAR)
    capped(2_000_000)
    place(at=after(10))
    other = make_lease(make_tenant(), at=after(20))

    place(at=after(30))

    other.refresh_from_db()
    assert other.state == State.PROVISIONING
