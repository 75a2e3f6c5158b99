from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings

from agents import fence, workloads
from agents.models import Host, Workload
from agents.protocol import ProtocolError
from tests.factories import NOON, after, make_host

pytestmark = pytest.mark.django_db
REFERENCE = "lease_00000000000000000000000001"


def want(host: Host, **changes: Any) -> Workload:
    spec = {"image": "pytorch", "devices": [d.uuid for d in host.devices.all()]}
    terms = {"reference": REFERENCE, "member": 0, "epoch": 1, "spec": spec, "valid_for_s": 60, "stop_grace_s": 30}
    return workloads.want(**(terms | {"host_id": host.pk, "not_after": None, "at": NOON} | changes))


def handed_out(workload: Workload, until: datetime) -> Workload:
    Workload.objects.filter(pk=workload.pk).update(last_valid_until=until)
    workload.refresh_from_db()
    return workload


def test_wanting_twice_is_wanting_once() -> None:
    host = make_host()
    first = want(host)
    host.refresh_from_db()
    generation = host.generation

    again = want(host, at=after(5))

    host.refresh_from_db()
    assert (again.pk, again.wanted_at, host.generation) == (first.pk, NOON, generation)


def test_what_is_new_moves_the_generation_of_its_host_alone() -> None:
    host, other = make_host(), make_host()

    want(host)

    assert Host.objects.get(pk=host.pk).generation == host.generation + 1
    assert Host.objects.get(pk=other.pk).generation == other.generation


def test_a_lower_epoch_is_refused_also_on_another_host() -> None:
    want(make_host(), epoch=3)

    with pytest.raises(workloads.StaleEpoch):
        want(make_host(), epoch=2)

    assert Workload.objects.count() == 1


def test_an_epoch_that_was_given_up_does_not_come_back() -> None:
    host = make_host()
    want(host)
    workloads.unwant(reference=REFERENCE, at=after(1), reason="end")

    with pytest.raises(workloads.StaleEpoch):
        want(host)


def test_one_epoch_cannot_mean_two_things() -> None:
    host = make_host()
    want(host)

    with pytest.raises(workloads.WorkloadConflict):
        want(host, spec={"image": "other", "devices": []})
    with pytest.raises(workloads.WorkloadConflict):
        want(make_host(), spec={"image": "pytorch", "devices": [d.uuid for d in host.devices.all()]})


def test_a_spec_with_devices_of_another_host_or_unknown_fields_is_refused() -> None:
    host = make_host()

    with pytest.raises(workloads.UnknownDevices):
        want(host, spec={"image": "pytorch", "devices": [make_host().devices.get().uuid]})
    with pytest.raises(ProtocolError):
        want(host, spec={"image": "pytorch", "devices": [], "privileged": True})

    assert not Workload.objects.exists()
    assert Host.objects.get(pk=host.pk).generation == host.generation


def test_moving_the_end_reaches_the_host() -> None:
    host = make_host()
    want(host)

    moved = want(host, not_after=after(3600))

    assert moved.not_after == after(3600)
    assert Host.objects.get(pk=host.pk).generation == host.generation + 2


def test_giving_up_one_epoch_leaves_the_next_wanted() -> None:
    old, new = make_host(), make_host()
    handed_out(want(old), after(60))
    want(new, epoch=2)

    assert workloads.unwant(reference=REFERENCE, epoch=1, at=after(5), reason="host lost") == 1

    assert [(w.epoch, w.wanted) for w in workloads.of(REFERENCE)] == [(1, False), (2, True)]
    assert not workloads.all_gone(REFERENCE, 1)
    assert workloads.unwant(reference=REFERENCE, epoch=1, at=after(6), reason="again") == 0


def test_what_no_answer_ever_named_is_gone_at_once() -> None:
    want(make_host())

    workloads.unwant(reference=REFERENCE, at=after(2), reason="end")

    workload = Workload.objects.get()
    assert workloads.all_gone(REFERENCE, 1)
    assert fence.safe_at(workload) == after(2)


def test_the_fence_has_no_instant_while_the_workload_is_wanted() -> None:
    assert fence.safe_at(handed_out(want(make_host()), after(60))) is None


def test_the_fence_of_a_silent_host_is_the_last_renewal_with_grace_and_margin() -> None:
    handed_out(want(make_host(), stop_grace_s=20), after(60))
    workloads.unwant(reference=REFERENCE, at=after(35), reason="host lost")

    assert fence.safe_at(Workload.objects.get()) == after(60 + 20) + timedelta(seconds=settings.FENCE_MARGIN_S)


def test_the_fence_never_lies_before_the_workload_was_given_up() -> None:
    handed_out(want(make_host()), after(60))
    workloads.unwant(reference=REFERENCE, at=after(1000), reason="end")

    assert fence.safe_at(Workload.objects.get()) == after(1000)


def test_an_acknowledgement_opens_the_fence() -> None:
    handed_out(want(make_host()), after(600))
    workloads.unwant(reference=REFERENCE, at=after(5), reason="end")
    Workload.objects.update(gone_at=after(7))

    assert fence.safe_at(Workload.objects.get()) == after(7)
    assert workloads.of(REFERENCE) == []
