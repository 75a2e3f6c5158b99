"""Organizations: founded with an owner, by code and by command; and their GPU quota."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import IntegrityError, transaction

from apikit.errors import DomainError, InvalidInput
from audit.models import Entry
from tenants import key_text, organizations, quotas
from tenants.models import ApiKey, Membership, Organization, Role
from tests.factories import NOON, make_organization
from tests.tenants.conftest import make_member, make_user

pytestmark = pytest.mark.django_db


def test_an_organization_is_founded_with_its_owner() -> None:
    owner = make_user()

    organization = organizations.found(name="Zoë & Söhne GmbH", owner=owner, currency="CNY", at=NOON)

    assert organization.slug == "zo-s-hne-gmbh"
    assert organization.public_id.startswith("org_")
    assert Membership.objects.get(organization=organization).role == Role.OWNER
    assert Entry.objects.get().after == {"name": "Zoë & Söhne GmbH", "owner": owner.public_id}


def test_a_name_is_taken_once() -> None:
    organizations.found(name="Acme", owner=None, currency="CNY", at=NOON)

    with pytest.raises(DomainError, match="already"):
        organizations.found(name="ACME!", owner=None, currency="CNY", at=NOON)


@pytest.mark.parametrize("wrong", [{"time_zone": "Mars/Olympus"}, {"name": "云计算"}])
def test_what_cannot_be_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        organizations.found(**{"name": "Acme", "owner": None, "currency": "CNY", "at": NOON, **wrong})  # type: ignore[arg-type]


def test_the_database_refuses_a_currency_that_is_none() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        make_organization(currency="cny")


def test_the_command_prints_a_key_that_works_once() -> None:
    out = StringIO()

    call_command(
        "create_organization", "Acme", "--owner", "Boss@Example.org", "--currency", "XTS", "--key", "x", stdout=out
    )

    [organization_line, key_line] = out.getvalue().splitlines()
    secret = key_line.split()[1]
    key = ApiKey.objects.get()
    assert organization_line.split()[1] == Organization.objects.get().public_id
    assert key_text.public_part(secret) == key.public
    assert bytes(key.secret_sha256) == key_text.digest(secret)
    assert key.created_by is not None
    assert key.created_by.email == "boss@example.org"
    with pytest.raises(CommandError, match="already"):
        call_command("create_organization", "Acme", "--owner", "boss@example.org", stdout=out)


def test_the_quota_is_a_bound() -> None:
    organization = quotas.lock(make_organization(gpu_quota=8).pk)

    quotas.check_gpus(organization=organization, in_use=6, wanted=2)
    with pytest.raises(quotas.GpuQuotaExceeded) as caught:
        quotas.check_gpus(organization=organization, in_use=7, wanted=2)
    assert caught.value.facts == {"quota": 8, "in_use": 7, "wanted": 2}


def test_a_person_is_a_member_once() -> None:
    membership = make_member(make_organization(), Role.VIEWER)

    with pytest.raises(IntegrityError), transaction.atomic():
        make_member(membership.organization, Role.OWNER, user=membership.user)
