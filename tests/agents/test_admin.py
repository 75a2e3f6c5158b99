from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from accounts.models import User
from agents import host_events, host_life
from agents.measurement_records import MeasuredMinute
from agents.models import Alarm, Host
from audit.models import Entry
from tests.agents.conftest import Clock
from tests.agents.fake_agent import make_online_agent
from tests.agents.test_sync import start
from tests.factories import NOON, make_host

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("op", email="op@example.org", password="long enough to be one"))
    return client


def act(operator: Client, row: Any, action: str, **data: Any) -> Any:
    name = row._meta.model_name
    body = {"action": action, "_selected_action": [str(row.pk)]} | data
    return operator.post(reverse(f"admin:agents_{name}_changelist"), body, follow=True)


def test_every_table_of_this_app_has_a_page_that_opens(at: Clock, operator: Client) -> None:
    agent = make_online_agent()
    start(agent)
    agent.sync(logs=[{"lease": "lease_00000000000000000000000001", "member": 0, "epoch": 1, "offset": 0, "text": "x"}])
    host_events.raise_alarm(kind="test", detail="x", at=NOON)
    pages = {model for model in admin.site._registry if model._meta.app_label == "agents"}

    for model in pages:
        path = reverse(f"admin:agents_{model._meta.model_name}_changelist")
        assert operator.get(path).status_code == 200, model
        assert operator.get(f"{path}?q=node").status_code == 200, model
        row = model._default_manager.first()
        if row is not None:
            one = reverse(f"admin:agents_{model._meta.model_name}_change", args=[row.pk])
            assert operator.get(one).status_code == 200, model
    assert set(apps.get_app_config("agents").get_models()) - pages == {MeasuredMinute}  # GET /leases/{id}/metrics


@pytest.mark.parametrize(
    ("action", "scheduling", "state"),
    [
        ("cordon", "cordoned", "online"),
        ("drain", "draining", "online"),
        ("quarantine", "open", "quarantined"),
        ("retire", "open", "retired"),
    ],
)
def test_an_act_on_a_host_asks_for_a_reason_and_is_recorded(
    at: Clock, operator: Client, action: str, scheduling: str, state: str
) -> None:
    host = make_host()

    asked = act(operator, host, action)
    assert b'name="reason"' in asked.content
    host.refresh_from_db()
    assert (host.scheduling, host.state) == ("open", "online")
    act(operator, host, action, reason="the roof leaks")

    host.refresh_from_db()
    assert (host.scheduling, host.state) == (scheduling, state)
    entry = Entry.objects.get(target=host.public_id)
    assert (entry.why, entry.organization_id) == ("the roof leaks", host.owner_id)
    assert entry.actor.startswith("user:")


def test_a_refusal_is_shown_and_nothing_is_done(at: Clock, operator: Client) -> None:
    host = make_host()

    answer = act(operator, host, "declare_lost", reason="no power")

    assert b"cannot become lost" in answer.content
    assert Host.objects.get().state == "online"


def test_a_quarantined_host_is_released_to_be_verified_again(at: Clock, operator: Client) -> None:
    host = make_host()
    host_life.quarantine(host_id=host.pk, reason="two machines", at=NOON)

    act(operator, host, "release", reason="the copy is gone")

    host.refresh_from_db()
    assert (host.state, host.tier) == ("unverified", "unverified")
    assert not Alarm.objects.filter(closed_at=None).exists()


def test_a_device_is_failed_and_restored_over_a_self_test(at: Clock, operator: Client) -> None:
    agent = make_online_agent(gpus=1)
    device = agent.row.devices.get()
    act(operator, device, "fail", reason="smells")
    device.refresh_from_db()
    assert device.health == "failed"

    act(operator, device, "restore", reason="replaced")
    wish = agent.sync()["wishes"][0]
    agent.sync(events=[agent.selftest_event(wish)])

    device.refresh_from_db()
    assert device.health == "healthy"


def test_secrets_and_tenants_output_are_not_on_the_pages(at: Clock, operator: Client) -> None:
    agent = make_online_agent()
    desired = start(agent)
    item = {"lease": desired["lease"], "member": 0, "epoch": 1, "offset": 0, "text": "tenant-output-7"}
    agent.sync(logs=[item])
    chunk = agent.row.workloads.get().log_chunks.get()

    page = operator.get(reverse("admin:agents_logchunk_change", args=[chunk.pk]))

    assert b"tenant-output-7" not in page.content
    assert (
        agent.signing_key not in operator.get(reverse("admin:agents_host_change", args=[agent.row.pk])).content.decode()
    )
