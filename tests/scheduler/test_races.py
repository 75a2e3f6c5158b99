"""Two hundred tenants at one door for the last four GPUs: the calendar lets one in. (Without its constraints it does
not: `ALTER TABLE ... DROP CONSTRAINT` in the last test shows that this test would see it.)
"""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from apikit import clock
from leasing import requesting
from leasing.models import Allocation, Lease
from leasing.states import State
from scheduler import placing, planning
from tenants.models import Organization
from tests.factories import after, make_host, make_image, make_tenant, price, wanted

pytestmark = pytest.mark.django_db(transaction=True)
REQUESTS = 200
AT_ONCE = 20
WINDOW_S = 0.02  # between looking and taking, so that many look before one takes


@pytest.fixture
def tenants(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Organization]]:
    make_host(gpus=4)
    price()
    look = planning.consider

    def look_slowly(**asked: Any) -> planning.Decision:
        found = look(**asked)
        time.sleep(WINDOW_S)
        return found

    monkeypatch.setattr(planning, "consider", look_slowly)
    make_image()
    with clock.frozen(after(60)):
        yield [make_tenant(micros=100_000_000, gpu_quota=2000) for _ in range(AT_ONCE)]


def _ask(tenant: Organization, *, refuse: bool) -> str:
    try:
        at = clock.now()
        request = wanted(tenant, "A100_80G x4", at=at)
        if refuse:
            planning.request_now(organization=tenant, wanted=request, at=at, created_by="race")
            return "leased"
        requesting.request_lease(organization_id=tenant.pk, wanted=request, at=at, created_by="race")
        return "pending"
    except planning.NoCapacity:
        return "refused"
    finally:
        connections.close_all()


def _race(tenants: list[Organization], *, refuse: bool) -> Counter[str]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(_ask, tenants[n % AT_ONCE], refuse=refuse) for n in range(REQUESTS)]
        return Counter(future.result() for future in asked)


def test_two_hundred_now_or_never_requests_for_the_last_four_gpus_make_one_lease(tenants: list[Organization]) -> None:
    outcome = _race(tenants, refuse=True)

    assert outcome == {"leased": 1, "refused": REQUESTS - 1}
    assert Lease.objects.count() == 1
    assert Allocation.objects.count() == 4


def test_two_hundred_patient_requests_make_one_lease_and_a_queue_of_the_rest(tenants: list[Organization]) -> None:
    _race(tenants, refuse=False)

    def place() -> None:
        try:
            placing.place_pending(at=clock.now(), grace_s=30)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(place) for _ in range(8)]:
            future.result()

    assert Lease.objects.filter(state=State.PROVISIONING).count() == 1
    waiting = Lease.objects.filter(state=State.PENDING)
    assert waiting.count() == REQUESTS - 1
    assert all(lease.why_waiting["code"] == "no_capacity" for lease in waiting)
    assert Allocation.objects.count() == 4


def test_without_the_constraint_the_race_would_be_seen(tenants: list[Organization]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conname LIKE '%at_a_time'"
            " AND conrelid = 'leasing_allocation'::regclass"
        )
        guards = cursor.fetchall()
        for name, _ in guards:
            cursor.execute(f'ALTER TABLE leasing_allocation DROP CONSTRAINT "{name}"')
    try:
        outcome = _race(tenants, refuse=True)

        assert outcome["leased"] > 1
    finally:
        Allocation.objects.all().delete()
        with connection.cursor() as cursor:
            for name, definition in guards:
                cursor.execute(f'ALTER TABLE leasing_allocation ADD CONSTRAINT "{name}" {definition}')
