"""One that fails stops no other, and a person is told."""

from typing import Any

import pytest

from agents.models import Alarm
from leasing import calendar, lifecycle, quotes
from leasing.models import Lease, Quote
from scheduler import converging, planning
from tests.factories import NOON, after, make_host, make_lease, make_tenant, place, price, say, wanted

pytestmark = pytest.mark.django_db


def test_a_quote_that_cannot_be_closed_stops_no_other_and_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(gpus=3)
    price()
    tenant = make_tenant()
    made = [planning.quote(organization=tenant, wanted=wanted(tenant), ttl_s=60 + n, at=NOON) for n in range(3)]
    release = calendar.release

    def fail_for_the_first(*, at: Any, of: Any) -> int:
        if dict(of.children).get("quote") == made[0]:
            raise ValueError("this row is poisoned")
        return release(at=at, of=of)

    monkeypatch.setattr(calendar, "release", fail_for_the_first)

    assert quotes.expire_due(at=after(120)) == 2
    assert list(Quote.objects.order_by("expires_at").values_list("state", flat=True)) == ["open", "expired", "expired"]
    alarm = Alarm.objects.get(closed_at=None)
    assert (alarm.kind, alarm.subject) == ("quote_stuck", made[0].public_id)
    assert "this row is poisoned" in alarm.detail

    monkeypatch.undo()
    assert quotes.expire_due(at=after(125)) == 1
    assert not Alarm.objects.filter(closed_at=None).exists()


def test_a_lease_that_fails_five_looks_opens_an_alarm_which_closes_once_it_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_host(gpus=1)
    price()
    lease = make_lease()
    place(at=NOON)
    say(lease, "ready", at=after(1))

    def fail(**_: Any) -> Lease:
        raise ValueError("no meter for it")

    monkeypatch.setattr(lifecycle, "activate", fail)
    opened = []
    for _ in range(6):
        lease.refresh_from_db()
        converging.converge(at=max(lease.check_at, after(1)))
        opened.append(Alarm.objects.filter(kind="lease_stuck", subject=lease.public_id, closed_at=None).count())

    assert opened == [0, 0, 0, 0, 1, 1]
    assert "no meter for it" in Alarm.objects.get().detail
    monkeypatch.undo()
    lease.refresh_from_db()
    converging.converge(at=lease.check_at)
    assert not Alarm.objects.filter(closed_at=None).exists()
