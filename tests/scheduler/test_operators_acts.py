"""What an operator does, each act with a reason in the admin and in the audit log: ban, let in again, refund."""

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from accounts.models import User
from agents import enrolment, maintenance
from agents.models import Host
from agents.protocol import EnrolRequest
from apikit import clock
from audit.models import Entry
from billing import reconcile, wallets
from leasing import requesting
from leasing.models import Lease, Quote
from leasing.states import EndReason, State
from scheduler import bans, planning, recovery
from tenants import organizations
from tenants.models import Organization
from tests.apikit.conftest import Caller
from tests.factories import (
    after,
    end_and_clean,
    hear,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    price,
    wanted,
)

pytestmark = pytest.mark.django_db
REASON = "stolen card"


@pytest.fixture
def tenant() -> Organization:
    make_host(gpus=4)
    price()
    return make_tenant()


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("root@example.com", password="a long enough password"))
    return client


def act(operator: Client, page: str, action: str, *chosen: object, reason: str | None = REASON) -> str:
    """Choose rows and an act on a page of the admin; with a reason, or without one yet."""
    said = {"action": action, "_selected_action": [str(getattr(each, "pk", None)) for each in chosen]}
    why = {"reason": reason} if reason else {}
    answer = operator.post(reverse(f"admin:{page}_changelist"), said | why, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def entries(action: str) -> list[Entry]:
    return list(Entry.objects.filter(action=action))


def test_a_banned_organization_is_refused_with_the_reason_and_its_leases_and_quotes_end(
    tenant: Organization, operator: Client
) -> None:
    with clock.frozen(after(60)):
        caller = Caller(tenant)
        running, waiting = make_active_lease(tenant, at=after(10)), make_lease(tenant, "A100_80G x4", at=after(10))
        caller.post("/api/v1/quotes", {"request": "A100_80G"})
        hear(running, at=after(60))

        act(operator, "tenants_organization", "ban", tenant)
        refused = caller.get("/api/v1/leases")

    running.refresh_from_db()
    waiting.refresh_from_db()
    assert (running.state, running.ending_reason, running.ending_detail) == (State.ENDING, "operator", REASON)
    assert waiting.state == State.ENDED
    assert {quote.state for quote in Quote.objects.all()} == {Quote.State.CANCELLED}
    assert refused.status_code == 403
    assert REASON in refused.json()["detail"]
    (entry,) = entries("organization.banned")
    assert (entry.why, entry.organization_id) == (REASON, tenant.pk)
    assert entry.actor.startswith("user:")


def test_without_a_reason_the_page_asks_for_one_and_nothing_happens(tenant: Organization, operator: Client) -> None:
    page = act(operator, "tenants_organization", "ban", tenant, reason=None)

    tenant.refresh_from_db()
    assert 'name="reason"' in page
    assert tenant.banned_at is None
    assert entries("organization.banned") == []


def test_hosts_of_a_banned_owner_take_nobody_new_and_what_others_run_there_goes_on(tenant: Organization) -> None:
    with clock.frozen(after(60)):
        lease = make_active_lease(tenant, at=after(10))
        owner = Host.objects.get().owner

        bans.ban(organization=owner, reason=REASON, by="user:1", at=after(60))

        lease.refresh_from_db()
        lines = planning.offers(
            organization=tenant, currency=tenant.currency, term="on_demand", region=None, request=None, at=after(61)
        )
    assert lease.state == State.ACTIVE
    assert Host.objects.get().scheduling == Host.Scheduling.CORDONED
    assert sum(line["available"] for line in lines) == 0


def test_who_is_let_in_again_has_the_same_keys(tenant: Organization, operator: Client) -> None:
    with clock.frozen(after(60)):
        caller = Caller(tenant)
        act(operator, "tenants_organization", "ban", tenant)
        act(operator, "tenants_organization", "unban", tenant, reason="a mistake")

        assert caller.get("/api/v1/leases").status_code == 200
    (entry,) = entries("organization.unbanned")
    assert (entry.before, entry.why) == ({"banned": REASON}, "a mistake")


def balance(tenant: Organization) -> int:
    return wallets.balance(owner=tenant.pk, currency=tenant.currency, at=after(5000)).balance_micros


@pytest.fixture
def ended(tenant: Organization) -> Lease:
    lease = make_active_lease(tenant, at=after(10))
    made: Lease = end_and_clean(lease, at=after(3600))
    assert made.charged_micros
    return made


def test_a_refund_gives_all_back_once_and_the_books_balance(
    tenant: Organization, ended: Lease, operator: Client
) -> None:
    before = balance(tenant)
    with clock.frozen(after(4000)):
        act(operator, "leasing_lease", "refund", ended, reason="the network was down")
        act(operator, "leasing_lease", "refund", ended, reason="again")

    assert balance(tenant) == before + (ended.charged_micros or 0)
    (entry,) = entries("lease.refunded")
    assert entry.why == "the network was down"
    assert entry.target == ended.public_id
    assert reconcile.findings() == []


def test_what_runs_is_not_refunded_and_the_page_says_why(tenant: Organization, operator: Client) -> None:
    lease = make_active_lease(tenant, at=after(10))
    with clock.frozen(after(100)):
        page = act(operator, "leasing_lease", "refund", lease)

    assert "end it first" in page
    assert entries("lease.refunded") == []


def test_a_refund_needs_the_right_to_post(tenant: Organization, ended: Lease, client: Client) -> None:
    reader = User.objects.create_user("reader@example.com", password="a long enough password", is_staff=True)
    reader.user_permissions.add(*Permission.objects.filter(codename__in=["view_lease", "change_lease"]))
    client.force_login(reader)

    said = {"action": "refund", "_selected_action": [str(ended.pk)], "reason": "x"}
    answer = client.post(reverse("admin:leasing_lease_changelist"), said)

    assert answer.status_code in {302, 403}
    assert entries("lease.refunded") == []


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("agents_host", {"cordon", "uncordon", "drain", "quarantine", "release", "retire", "declare_lost", "verify"}),
        ("agents_device", {"cordon", "uncordon", "fail", "restore"}),
        ("leasing_lease", {"end_with_reason", "refund"}),
        ("tenants_organization", {"ban", "unban"}),
        ("agents_alarm", {"settle"}),
    ],
)
def test_every_act_that_an_operator_needs_is_on_its_page(
    tenant: Organization, operator: Client, page: str, wanted: set[str]
) -> None:
    offered = {
        name
        for model, pages in admin.site._registry.items()
        if model._meta.label_lower.replace(".", "_") == page
        for name in pages.actions or ()
    }

    assert wanted <= {str(name) for name in offered}


def test_a_request_that_was_under_way_when_the_ban_came_makes_no_lease_and_no_quote(tenant: Organization) -> None:
    before = Organization.objects.get(pk=tenant.pk)  # as its request has read it
    asked = wanted(tenant, at=after(60))
    bans.ban(organization=tenant, reason=REASON, by="user:1", at=after(60))

    with pytest.raises(organizations.Banned, match=REASON):
        requesting.request_lease(organization_id=tenant.pk, wanted=asked, at=after(60))
    with pytest.raises(organizations.Banned, match=REASON):
        planning.quote(organization=before, wanted=asked, ttl_s=60, at=after(60))

    assert (Lease.objects.count(), Quote.objects.count()) == (0, 0)


def test_a_window_of_maintenance_opens_no_host_of_a_banned_owner_again(tenant: Organization) -> None:
    host = Host.objects.get()
    window = {"starts_at": after(7200), "ends_at": after(9000), "message": "new disks", "lead_s": 3600}
    maintenance.announce(host_id=host.pk, by="user:1", at=after(0), **window)  # type: ignore[arg-type]
    maintenance.tick(at=after(3601))
    bans.ban(organization=host.owner, reason=REASON, by="user:1", at=after(3700))

    maintenance.tick(at=after(9001))

    host.refresh_from_db()
    assert host.scheduling == Host.Scheduling.CORDONED


def test_a_token_of_a_banned_owner_brings_no_host(tenant: Organization) -> None:
    zone = Host.objects.get().zone.slug
    _, token = enrolment.invite(
        organization=tenant, zone=zone, name="late", access="public", created_by="user:1", at=after(0)
    )
    bans.ban(organization=tenant, reason=REASON, by="user:1", at=after(10))

    asked = EnrolRequest(
        token=token, signing_key="a" * 64, sealing_key="b" * 64, fingerprint={}, hostname="late", simulated=True
    )
    with pytest.raises(enrolment.TokenRefused):
        enrolment.enrol(request=asked, at=after(20))


def test_a_page_that_is_old_ends_nothing_twice_and_records_nothing(tenant: Organization, operator: Client) -> None:
    with clock.frozen(after(60)):
        lease = make_active_lease(tenant, at=after(10))
        hear(lease, at=after(60))
        recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(50))

        page = act(operator, "leasing_lease", "end_with_reason", lease)

    assert "It is ending already." in page
    assert entries("lease.ended_by_operator") == []
    assert Lease.objects.get().ending_reason == "tenant"
