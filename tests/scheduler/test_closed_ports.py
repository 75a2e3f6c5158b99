"""A host whose ports nobody reaches gets no lease that publishes any, and the refusal says so."""

import pytest

from agents import capacity
from agents.models import Host, PortCheck
from leasing.states import State
from tests.factories import NOON, make_host, make_lease, make_tenant, place, price

pytestmark = pytest.mark.django_db


def closed_host() -> Host:
    host = make_host(gpus=2)
    PortCheck.objects.create(host=host, reachable=False)
    capacity.changed([host.pk])
    return host


def test_only_what_publishes_no_ports_comes_on_a_host_whose_ports_are_closed() -> None:
    host = closed_host()
    price()
    serving = make_lease(make_tenant(), "A100_80G", ports=[8000])
    computing = make_lease(make_tenant(), "A100_80G")

    place(at=NOON)

    serving.refresh_from_db()
    computing.refresh_from_db()
    assert (serving.state, computing.state) == (State.PENDING, State.PROVISIONING)
    assert "whose ports cannot be reached" in str(serving.why_waiting)
    PortCheck.objects.filter(host=host).update(reachable=True)
    capacity.changed([host.pk])
    place(at=NOON)
    serving.refresh_from_db()
    assert serving.state == State.PROVISIONING
