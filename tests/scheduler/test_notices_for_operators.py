"""Operators see notices and moves, and move a lease by hand with a reason that is recorded."""

import pytest
from django.test import Client

from accounts.models import User
from apikit import clock
from audit.models import Entry
from console import measures
from leasing.notice_models import LeaseMove, Notice
from scheduler import moving
from tests.factories import after, make_active_lease, make_host, price

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser(username="op", email="op@example.invalid", password="x" * 20))
    return client


def test_a_lease_is_moved_from_the_admin_with_a_reason_in_the_audit_log(operator: Client) -> None:
    make_host()
    price()
    lease = make_active_lease()
    make_host()
    form = {"action": "move_with_reason", "_selected_action": [str(lease.pk)], "reason": "a fan is loud"}

    with clock.frozen(after(100)):
        answer = operator.post("/admin/leasing/lease/", form, follow=True)

    assert answer.status_code == 200
    assert Notice.objects.get(lease=lease).ends_at == after(220)
    entry = Entry.objects.get(action="lease.moved_by_operator")
    assert (entry.target, entry.why) == (lease.public_id, "a fan is loud")


def test_a_lease_without_another_place_stays_and_the_operator_is_told(operator: Client) -> None:
    make_host()
    price()
    lease = make_active_lease()
    form = {"action": "move_with_reason", "_selected_action": [str(lease.pk)], "reason": "a fan is loud"}

    with clock.frozen(after(100)):
        answer = operator.post("/admin/leasing/lease/", form, follow=True)

    assert b"No other machine has room" in answer.content
    assert not Notice.objects.exists()


def test_the_pages_of_notices_moves_and_steps_show(operator: Client) -> None:
    make_host()
    price()
    lease = make_active_lease()
    make_host()
    moving.off_its_host(lease=lease, by="user:1", reason="test", at=after(100))

    for page in ("leasing/notice", "leasing/leasemove", "scheduler/spotstep", f"leasing/lease/{lease.pk}/change"):
        assert operator.get(f"/admin/{page}/").status_code == 200, page


def test_notices_and_moves_are_measured() -> None:
    make_host()
    price()
    lease = make_active_lease()
    make_host()
    moving.off_its_host(lease=lease, by="user:1", reason="test", at=after(100))
    LeaseMove.objects.update(done_at=after(220))

    text = measures.exposition(at=after(230)).decode()

    assert 'gpuyard_notices_open{cause="move"} 1.0' in text
    assert "gpuyard_lease_moves_gpu_milli 1000.0" in text
