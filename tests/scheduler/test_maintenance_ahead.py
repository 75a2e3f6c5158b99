"""A new lease keeps clear of a machine that will be away in its time, and is told where nothing else has room."""

from typing import Any

import pytest

from agents import maintenance
from leasing.models import Lease
from scheduler import placing, planning
from tests.factories import after, make_host, make_lease, make_tenant, price, wanted

pytestmark = pytest.mark.django_db
DAY = 86_400


def _reasons(lease: Lease) -> list[str]:
    return list(lease.events.get(reason="placed").facts["reasons"])


def test_it_goes_elsewhere_while_there_is_room_and_says_so_where_there_is_none() -> None:
    away, stays = make_host(gpus=2, name="away"), make_host(gpus=2, name="stays")
    price()
    tenant = make_tenant(micros=10**12)
    maintenance.announce(
        host_id=away.pk, starts_at=after(2 * DAY), ends_at=after(2 * DAY + 3600), message="disk", lead_s=3600,
        by="owner", at=after(1),
    )  # fmt: skip
    short: dict[str, Any] = {"term": {"end_at": after(DAY)}}
    long: dict[str, Any] = {"term": {"end_at": after(3 * DAY)}}

    plan = planning.plan(organization=tenant, wanted=wanted(tenant, at=after(5), **long), at=after(5))
    assert plan["placement"][0]["host"] == stays.public_id
    leases = [make_lease(tenant, at=after(10 + n), **asked) for n, asked in enumerate((long, {}, long, short))]
    placing.place_pending(at=after(60), grace_s=30)

    hosts = [lease.members.get().host_id for lease in leases]
    assert hosts == [stays.pk, stays.pk, away.pk, away.pk]
    told = [[reason for reason in _reasons(lease) if reason.startswith("maintenance:")] for lease in leases]
    assert told == [[], [], ["maintenance:2027-03-03T12:00:00Z"], []]


def test_a_window_far_away_or_withdrawn_keeps_nobody_off() -> None:
    host = make_host(gpus=1)
    price()
    far = maintenance.announce(
        host_id=host.pk, starts_at=after(30 * DAY), ends_at=after(31 * DAY), message="", lead_s=3600, by="owner",
        at=after(1),
    )  # fmt: skip
    lease = make_lease(make_tenant())
    placing.place_pending(at=after(60), grace_s=30)
    assert not any(reason.startswith("maintenance:") for reason in _reasons(lease))
    maintenance.withdraw(maintenance_id=far.pk, by="owner", at=after(70))
