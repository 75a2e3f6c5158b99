"""The operators' admin shows every model of the platform apps, and what is append-only cannot be changed there."""

import re
from typing import Any

import pytest
from django.contrib.admin.sites import site
from django.test import Client
from django.urls import reverse

from accounts.models import User
from apikit import clock
from audit.models import Entry
from outbox import messages
from outbox.models import Delivery, Endpoint, Message
from tenants import keys
from tenants.models import ApiKey, Membership, Organization, Role
from tests.factories import make_organization
from tests.tenants.conftest import make_member, make_user

pytestmark = pytest.mark.django_db
MODELS = [User, Organization, Membership, ApiKey, Entry, Message, Endpoint, Delivery]


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", "root@example.org"))
    return client


@pytest.fixture
def rows() -> dict[type[Any], Any]:
    at = clock.now()
    organization = make_organization("<b>Acme</b>")
    membership = make_member(organization, Role.OWNER)
    key, _ = keys.create(
        organization=organization, name="k", scopes=["leases:read"], expires_at=None, created_by=make_user(), at=at
    )
    messages.post(topic="lease.ended", key="k", payload={}, organization_id=organization.pk, at=at)
    endpoint = Endpoint.objects.create(organization=organization, url="https://x.test/", events=[], secret=b"canary")
    delivery = Delivery.objects.create(endpoint=endpoint, message_id=key.pk, topic="t", body="{}", due_at=at)
    found = [membership.user, organization, membership, key, Entry.objects.get(), Message.objects.get()]
    return dict(zip(MODELS, [*found, endpoint, delivery], strict=True))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_model_is_listed_found_and_opened(operator: Client, rows: dict[type[Any], Any], model: type[Any]) -> None:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"

    listed = operator.get(reverse(f"{name}_changelist"), {"q": str(rows[model].pk)})
    opened = operator.get(reverse(f"{name}_change", args=[rows[model].pk]))
    not_found = operator.get(reverse(f"{name}_changelist"), {"q": "no such thing ' %"})

    assert (listed.status_code, opened.status_code, not_found.status_code) == (200, 200, 200)
    assert re.search(r"\b1 (result|" + re.escape(str(model._meta.verbose_name)) + ")", listed.content.decode(), re.I)
    for page in (listed, opened):
        assert b"<b>Acme</b>" not in page.content
        assert b"canary" not in page.content


@pytest.mark.parametrize("model", [Entry, Message, ApiKey, Endpoint, Delivery], ids=lambda model: model.__name__)
def test_nothing_is_deleted_by_hand(operator: Client, rows: dict[type[Any], Any], model: type[Any]) -> None:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_delete"

    assert operator.post(reverse(name, args=[rows[model].pk]), {"post": "yes"}).status_code == 403
    assert model.objects.filter(pk=rows[model].pk).exists()


def test_an_operator_revokes_a_key_and_is_recorded(operator: Client, rows: dict[type[Any], Any]) -> None:
    key = rows[ApiKey]

    operator.post(
        reverse("admin:tenants_apikey_changelist"), {"action": "revoke_keys", "_selected_action": [str(key.pk)]}
    )

    key.refresh_from_db()
    assert key.revoked_at is not None
    entry = Entry.objects.get(action="api_key.revoked")
    assert (entry.target, entry.actor.split(":")[0]) == (key.public_id, "operator")


def test_a_changed_quota_is_recorded_with_before_and_after(operator: Client, rows: dict[type[Any], Any]) -> None:
    organization = rows[Organization]
    form = {
        "name": organization.name, "slug": organization.slug, "time_zone": "UTC", "currency": "CNY", "gpu_quota": "128",
        "queue_weight": "100",
        "memberships-TOTAL_FORMS": "0", "memberships-INITIAL_FORMS": "0",
    }  # fmt: skip

    answer = operator.post(reverse("admin:tenants_organization_change", args=[organization.pk]), form)

    assert answer.status_code == 302
    entry = Entry.objects.get(action="organization.changed")
    assert (entry.before, entry.after) == ({"gpu_quota": 64}, {"gpu_quota": 128})


def test_every_model_of_ours_has_an_admin() -> None:
    # Answers kept for retries and rate counters have composite keys, which the admin cannot show, and live for a day.
    assert {model.__name__ for model in MODELS} <= {model.__name__ for model in site._registry}
