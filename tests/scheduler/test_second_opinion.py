"""An engine that errs meets the checker before anything comes of it: nothing is bound, and an operator is called."""

from dataclasses import replace
from typing import Any

import pytest

from agents.models import Alarm
from leasing.models import Allocation, Lease, Quote
from leasing.states import State
from scheduler import placing, planning, second_opinion
from scheduler.placement import Ask, Placement, Refusal, decide
from scheduler.pool import Pool
from tenants.models import Organization
from tests.factories import after, make_active_lease, make_host, make_lease, make_tenant, place, price, wanted

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant(monkeypatch: pytest.MonkeyPatch) -> Organization:
    """One machine with all its GPUs let, and an engine that takes them for free."""
    make_host(gpus=4)
    price()
    make_active_lease(request="A100_80G x4")

    def blind(pool: Pool, ask: Ask, **_: Any) -> Placement | Refusal:
        views = [
            replace(view, devices=tuple(replace(device, busy=()) for device in view.devices)) for view in pool.views()
        ]
        return decide(views, ask, explain=False)

    monkeypatch.setattr(Pool, "decide", blind)
    monkeypatch.setattr(Pool, "decide_again", blind)
    placing.forget()
    return make_tenant()


def test_a_placement_that_breaks_a_rule_is_refused_counted_and_an_operator_is_called(tenant: Organization) -> None:
    lease, bound = make_lease(request="A100_80G x2"), Allocation.objects.count()
    before = second_opinion.DISAGREEMENTS._value.get()

    place(at=after(5))

    lease.refresh_from_db()
    assert (lease.state, lease.why_waiting["code"], Allocation.objects.count()) == (State.PENDING, "fault", bound)
    alarm = Alarm.objects.get(kind=second_opinion.ALARM)
    assert alarm.subject == lease.public_id
    assert "a unit is taken" in alarm.detail
    assert second_opinion.DISAGREEMENTS._value.get() > before


def test_quotes_and_requests_for_now_are_looked_at_too(tenant: Organization) -> None:
    asked = wanted(tenant, "A100_80G x2")

    with pytest.raises(second_opinion.Unlawful):
        planning.quote(organization=tenant, wanted=asked, ttl_s=60, at=after(5))
    with pytest.raises(second_opinion.Unlawful):
        planning.request_now(organization=tenant, wanted=asked, at=after(5), created_by="test")

    assert not Quote.objects.exists()
    assert not Lease.objects.filter(organization=tenant).exists()
