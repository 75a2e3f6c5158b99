"""What a request asks the database: few questions, and as many with much as with little."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apikit import clock
from audit import ids
from leasing.models import Lease
from tenants.models import Organization, Role
from tests.factories import NOON, make_active_lease, make_host, make_image, make_lease, make_tenant, price
from tests.tenants.conftest import MemberCaller

LEASES = "/api/v1/leases"
BODY = {"request": "A100_80G", "image": "pytorch_latest"}
Counting = Callable[[int], Any]


@pytest.fixture(autouse=True)
def _noon() -> Iterator[None]:
    with clock.frozen(NOON):
        yield


@pytest.fixture
def tenant() -> Organization:
    make_host(gpus=8)
    price()
    make_image()
    return make_tenant()


def fill(tenant: Organization, count: int) -> None:
    """Give the tenant leases that are over, far more than a page."""
    first = make_lease(tenant)
    over = {"state": "ended", "ended_at": NOON, "ending_reason": "tenant"}
    rows = []
    for number in range(count):
        row = Lease.objects.get(pk=first.pk)
        row.pk, row.requested_at = ids.new(), NOON + timedelta(seconds=number)
        for name, value in over.items():
            setattr(row, name, value)
        rows.append(row)
    Lease.objects.bulk_create(rows, batch_size=500)


@pytest.mark.django_db(transaction=True)
def test_a_lease_is_created_with_ten_questions(tenant: Organization, django_assert_num_queries: Counting) -> None:
    caller = MemberCaller(tenant, Role.DEVELOPER)
    caller.post(LEASES, BODY)

    # key; kept answer and counts; BEGIN; claim; catalogue and image; lock, quota, budgets, price; hold; lease, event,
    # notice; answer kept; COMMIT.
    with django_assert_num_queries(10):
        assert caller.post(LEASES, BODY).status_code == 201
    with django_assert_num_queries(10):
        assert caller.post(LEASES, {**BODY, "request": "A100_80G | A100_80G x2"}).status_code == 201


@pytest.mark.django_db
@pytest.mark.parametrize("query", ["limit=100", "limit=100&state=ended", "limit=5"])
def test_a_page_of_leases_asks_the_same_with_three_leases_and_with_a_thousand(tenant: Organization, query: str) -> None:
    caller = MemberCaller(tenant, Role.VIEWER)
    make_active_lease(tenant), make_active_lease(tenant)
    caller.get(f"{LEASES}?limit=1")
    few = questions(caller, f"{LEASES}?{query}")
    fill(tenant, 1000)
    make_active_lease(tenant), make_active_lease(tenant)

    first = caller.get(f"{LEASES}?{query}").json()

    assert questions(caller, f"{LEASES}?{query}") == few <= 8
    # Of those that were never placed nothing else is asked: key, count, page.
    assert questions(caller, f"{LEASES}?{query}&cursor={first['next_cursor']}") == 3


@pytest.mark.django_db
def test_one_lease_asks_the_same_with_one_gpu_and_with_eight(tenant: Organization) -> None:
    make_host(gpus=8)
    caller = MemberCaller(tenant, Role.VIEWER)
    one, eight = make_active_lease(tenant), make_active_lease(tenant, "A100_80G x8")
    caller.get(f"{LEASES}/{one.public_id}")

    asked = {questions(caller, f"{LEASES}/{lease.public_id}") for lease in (one, eight)}

    assert len(asked) == 1
    assert max(asked) <= 12


def questions(caller: MemberCaller, address: str) -> int:
    with CaptureQueriesContext(connection) as asked:
        assert caller.get(address).status_code == 200
    return len(asked)
