"""Every route x method x caller x ownership, read from the resolver. A route that is not in the table below fails."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.urls import get_resolver

from agents import enrolment, maintenance
from agents.models import Execution, Host
from apikit import clock
from audit import ids
from billing import budgets, invoicing, payments
from billing.models.terms import BudgetAction
from leasing import images, volumes
from outbox import endpoints
from scheduler import planning
from tenants import keys, roles, vault
from tenants.door_checks import doors, methods_of
from tenants.group_models import Group, GroupMember
from tenants.models import Organization, Role
from tenants.principal import Principal
from tests.apikit.conftest import Caller
from tests.factories import (
    NOON,
    make_gpu_model,
    make_host,
    make_lease,
    make_tenant,
    make_zone,
    price,
    storage_price,
    wanted,
)
from tests.tenants.conftest import MemberCaller, make_member

# What each door needs, written by hand from the design and compared with the doors: route -> "method:permission ...".
EXPECTED = {
    "hosts": "get:hosts:read",
    "hosts/<str:id>": "get:hosts:read patch:hosts:write",
    "hosts/<str:id>/actions/<str:action>": "post:hosts:write",
    "hosts/<str:id>/devices": "get:hosts:read",
    "hosts/<str:id>/events": "get:hosts:read",
    "hosts/<str:id>/score": "get:hosts:read",
    "hosts/<str:id>/self-tests": "get:hosts:read",
    "hosts/<str:id>/maintenance": "get:hosts:read post:hosts:write",
    "hosts/<str:id>/maintenance/<str:maintenance_id>": "delete:hosts:write",
    "hosts/<str:id>/earnings": "get:billing:read",
    "hosts/<str:id>/summary": "get:billing:read",
    "hosts/<str:id>/price-advice": "get:billing:read",
    "enrolments": "get:hosts:read post:hosts:write",
    "enrolments/<str:id>": "get:hosts:read delete:hosts:write",
    "wallet": "get:billing:read",
    "wallet/top-ups": "get:billing:read post:billing:write",
    "wallet/top-ups/<str:id>": "get:billing:read",
    "wallet/vouchers": "post:billing:write",
    "ledger-entries": "get:billing:read",
    "statements": "get:billing:read",
    "invoices": "get:billing:read",
    "invoices/<str:id>.html": "get:billing:read",
    "invoices/<str:id>.csv": "get:billing:read",
    "invoices/<str:id>.pdf": "get:billing:read",
    "invoices/<str:id>": "get:billing:read",
    "budgets": "get:billing:read post:billing:write",
    "budgets/<str:id>": "get:billing:read patch:billing:write delete:billing:write",
    "earnings": "get:billing:read",
    "payouts": "get:billing:read post:billing:write",
    "gpu-models": "get:leases:read",
    "gpu-models/<slug:slug>": "get:leases:read",
    "regions": "get:leases:read",
    "webhooks": "get:webhooks:read post:webhooks:write",
    "webhooks/<str:id>": "get:webhooks:read patch:webhooks:write delete:webhooks:write",
    "webhooks/<str:id>/actions/test": "post:webhooks:write",
    "webhooks/<str:id>/actions/rotate": "post:webhooks:write",
    "webhooks/<str:id>/deliveries": "get:webhooks:read",
    "webhooks/<str:id>/deliveries/<str:delivery_id>": "get:webhooks:read",
    "webhooks/<str:id>/deliveries/<str:delivery_id>/actions/replay": "post:webhooks:write",
    "leases": "get:leases:read post:leases:write",
    "leases/<str:id>": "get:leases:read patch:leases:write delete:leases:write",
    "leases/<str:id>/events": "get:leases:read",
    "leases/<str:id>/logs": "get:leases:read",
    "leases/<str:id>/metrics": "get:leases:read",
    "leases/<str:id>/exec": "post:leases:write",
    "leases/<str:id>/exec/<str:exec_id>": "get:leases:write",
    "leases/<str:id>/members": "get:leases:read",
    "leases/<str:id>/charges": "get:leases:read",
    "leases/<str:id>/receipt": "get:leases:read",
    "leases/<str:id>/actions/end": "post:leases:write",
    "leases/<str:id>/actions/cancel": "post:leases:write",
    "leases/<str:id>/actions/<str:action>": "post:leases:write",
    "images": "get:leases:read post:leases:write",
    "images/<str:id>": "get:leases:read delete:leases:write",
    "volumes": "get:leases:read post:leases:write",
    "volumes/<str:id>": "get:leases:read delete:leases:write",
    "secrets": "get:leases:read post:leases:write",
    "secrets/<str:id>": "get:leases:read delete:leases:write",
    "offers": "get:leases:read",
    "quotes": "get:leases:read post:leases:write",
    "quotes/<str:id>": "get:leases:read delete:leases:write",
    "quotes/<str:id>/actions/cancel": "post:leases:write",
    "api-keys": "get:keys:read post:keys:write",
    "api-keys/<str:id>": "get:keys:read patch:keys:write delete:keys:write",
    "api-keys/<str:id>/actions/rotate": "post:keys:write",
    "members": "get:members:read post:members:write",
    "members/<str:id>": "get:members:read patch:members:write delete:members:write",
    "groups": "get:members:read post:members:write",
    "groups/<str:id>": "get:members:read patch:members:write delete:members:write",
    "groups/<str:id>/members": "get:members:read post:members:write",
    "groups/<str:id>/members/<str:member_id>": "delete:members:write",
    "audit-events": "get:audit:read",
}
OPEN = {"market/prices", "market/history", "market/receipt-keys", "openapi.json", "docs"}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("hosts/<str:id>/actions/<str:action>", "post"): {"reason": "test"},
    ("webhooks/<str:id>", "patch"): {"enabled": True},
    ("leases/<str:id>", "patch"): {"name": "n"},
    ("budgets/<str:id>", "patch"): {"name": "n"},
    ("leases/<str:id>/actions/<str:action>", "post"): {"by_s": 3600},
    ("api-keys/<str:id>", "patch"): {"name": "n"},
    ("members/<str:id>", "patch"): {"role": "viewer"},
    ("groups/<str:id>", "patch"): {"name": "n"},
}
READ_SCOPES = tuple(scope for scope in roles.SCOPES if scope.endswith(":read"))
TRIED: list[tuple[str, str, str, str]] = []
pytestmark = pytest.mark.django_db


def real_doors() -> dict[str, Any]:
    found = doors(get_resolver().url_patterns)
    return {
        route.removeprefix("api/v1/"): getattr(callback, "view_class", None) or getattr(callback, "cls", None)
        for route, callback in found
        if route.startswith("api/v1/") and route.removeprefix("api/v1/") not in OPEN
    }


def policy_of(route: str) -> dict[str, str]:
    return dict(entry.split(":", 1) for entry in EXPECTED[route].split())


@pytest.fixture(autouse=True)
def _noon() -> Iterator[None]:
    with clock.frozen(NOON + timedelta(days=40)):
        yield


def test_the_table_is_that_of_the_doors() -> None:
    found = {
        route: " ".join(f"{method}:{view.policy[method]}" for method in methods_of(view))
        for route, view in real_doors().items()
    }

    assert {route: set(entry.split()) for route, entry in found.items()} == {
        route: set(entry.split()) for route, entry in EXPECTED.items()
    }


# An object of an organization for each route with an id: its public id.


def _principal(organization: Organization) -> Principal:
    return Principal(organization, role=None, scopes=None)


def _host(owner: Organization) -> str:
    return make_host(owner=owner).public_id


def _enrolment(owner: Organization) -> str:
    zone = make_zone().slug
    row, _ = enrolment.invite(
        organization=owner, zone=zone, name="n", access="private", created_by="test", at=clock.now()
    )
    return row.public_id


def _payment(owner: Organization) -> str:
    begun = payments.begin(
        owner=owner.pk, currency="XTS", amount_minor=100, provider="p", key=str(owner.pk), at=clock.now()
    )
    return begun.public_id


def _invoice(owner: Organization) -> str:
    draft = invoicing.draft(owner=owner.pk, currency="XTS", start=NOON, end=NOON + timedelta(days=1), items=[])
    return invoicing.finalize(invoice_id=draft.pk, at=clock.now()).public_id


def _budget(owner: Organization) -> str:
    made = budgets.create(
        owner=owner.pk, currency="XTS", amount_micros=1_000_000, name="b", label="", thresholds_bp=[10_000],
        action=BudgetAction.NOTIFY, time_zone="UTC", at=clock.now(),
    )  # fmt: skip
    return made.public_id


def _webhook(owner: Organization) -> str:
    by = _principal(owner)
    made, _ = endpoints.register(by=by, url="https://hook.test/", subscribed=["lease.ended"], at=clock.now())
    return made.public_id


def _delivery(owner: Organization) -> str:
    hook = owner.webhook_endpoints.get()
    return endpoints.send_test(endpoint=hook, at=clock.now()).public_id


def _lease(owner: Organization) -> str:
    return make_lease(owner, at=clock.now()).public_id


def _quote(owner: Organization) -> str:
    make_host(state_since=clock.now(), last_heard_at=clock.now())
    made = planning.quote(organization=owner, wanted=wanted(owner, at=clock.now()), ttl_s=300, at=clock.now())
    return made.public_id


def _image(owner: Organization) -> str:
    values = {"slug": "mine", "name": "mine", "reference": "docker.io/me/mine:1"}
    return images.register(organization=owner, values=values, at=clock.now(), actor="test").public_id


def _secret(owner: Organization) -> str:
    return vault.store(organization=owner, name="TOKEN", value="v", at=clock.now(), actor="test")[0].public_id


def _volume(owner: Organization) -> str:
    storage_price()
    made = volumes.create(organization_id=owner.pk, name="data", size_gib=1, region=None, at=clock.now(), actor="test")
    return made.public_id


def _key(owner: Organization) -> str:
    made, _ = keys.create(
        organization=owner, name="k", scopes=["leases:read"], expires_at=None, created_by=None, at=clock.now()
    )
    return made.public_id


def _member(owner: Organization) -> str:
    return make_member(owner, Role.VIEWER).public_id


def _group(owner: Organization) -> str:
    return Group.objects.create(organization=owner, name="g", role=Role.VIEWER).public_id


def _in_group(group: str) -> str:
    found = Group.objects.get(pk=ids.decode("group", group))
    inside = make_member(found.organization, Role.VIEWER)
    GroupMember.objects.create(group=found, membership=inside)
    return inside.public_id


def _execution(lease_id: str) -> str:
    row = Execution.objects.create(
        host=Host.objects.first() or make_host(), reference=lease_id, member=0, epoch=1, argv=["true"], timeout_s=60,
        asked_by="test", asked_at=NOON, answer_by=NOON, answered_at=NOON,
    )  # fmt: skip
    return row.public_id


def _maintenance(host: str) -> str:
    pk = ids.decode("host", host)
    assert pk is not None
    now = clock.now()
    return maintenance.announce(
        host_id=pk, starts_at=now + timedelta(days=1), ends_at=now + timedelta(days=2), message="new disks",
        lead_s=3600, by="test", at=now,
    ).public_id  # fmt: skip


MAKERS: dict[str, Callable[[Organization], str]] = {
    "hosts": _host, "enrolments": _enrolment, "wallet/top-ups": _payment, "invoices": _invoice, "budgets": _budget,
    "webhooks": _webhook, "leases": _lease, "quotes": _quote, "api-keys": _key, "members": _member,
    "images": _image, "secrets": _secret, "volumes": _volume, "groups": _group,
}  # fmt: skip


class Objects:
    """The path of a route for an object of an organization, or for one that is nowhere."""

    def __init__(self, route: str) -> None:
        self.route = route
        head = route.partition("/<str:id>")[0]
        self.maker = MAKERS.get(head) if "<str:id>" in route else None

    def of(self, owner: Organization) -> str:
        path = self.route
        if self.maker is not None:
            path = path.replace("<str:id>", self.maker(owner))
        if "<str:delivery_id>" in path:
            path = path.replace("<str:delivery_id>", _delivery(owner))
        if "<str:member_id>" in path:
            path = path.replace("<str:member_id>", _in_group(path.split("/")[1]))
        if "<str:maintenance_id>" in path:
            path = path.replace("<str:maintenance_id>", _maintenance(path.split("/")[1]))
        if "<str:exec_id>" in path:
            path = path.replace("<str:exec_id>", _execution(path.split("/")[1]))
        return self._rest(path)

    def nowhere(self, example: str) -> str:
        """The same path with ids of the same form that were never given out."""
        parts = []
        for part, pattern in zip(example.split("/"), self.route.split("/"), strict=True):
            stem, dot, ending = part.partition(".")
            fresh = ids.encode(stem.rpartition("_")[0], ids.new()) + dot + ending
            parts.append(fresh if "<str:" in pattern and "_" in stem else part)
        return "/".join(parts)

    @staticmethod
    def _rest(path: str) -> str:
        action = "cordon" if path.startswith("hosts") else "extend"
        return path.replace("<str:action>", action).replace("<slug:slug>", "A100_80G")


def callers(organization: Organization) -> dict[str, tuple[Caller, frozenset[str] | None]]:
    """Who calls, and what he may do; None: nobody knows him."""
    found: dict[str, tuple[Caller, frozenset[str] | None]] = {
        role.value: (MemberCaller(organization, role), roles.of_role(role)) for role in Role
    }
    reader = MemberCaller(organization, Role.OWNER, scopes=READ_SCOPES)
    found["read-only key"] = (reader, roles.permissions(role=Role.OWNER, scopes=frozenset(READ_SCOPES)))
    revoked = MemberCaller(organization, Role.OWNER)
    keys.revoke(key=revoked.key, at=clock.now(), actor="test")
    found["revoked key"] = (revoked, None)
    anonymous = Caller(organization)
    anonymous.secret = ""
    found["anonymous"] = (anonymous, None)
    return found


@pytest.mark.parametrize("route", EXPECTED)
def test_nobody_gets_what_is_not_his(route: str) -> None:
    make_zone()
    price()
    make_gpu_model()
    mine, theirs = make_tenant(), make_tenant(name="Others")
    objects = Objects(route)
    own, foreign = objects.of(mine), objects.of(theirs)
    who = callers(mine)

    for method, permission in policy_of(route).items():
        for name, (caller, may) in who.items():
            for ownership, path in (("own", own), ("foreign", foreign), ("missing", objects.nowhere(foreign))):
                answer = _try(caller, method, route, path)
                TRIED.append((route, method, name, ownership))
                _judge(answer, may, permission, f"{name}: {method} {ownership} {path}", ownership, objects)


def _try(caller: Caller, method: str, route: str, path: str) -> Any:
    """Send it and undo whatever it did, so that the next caller finds the same world."""
    body = None if method in {"get", "delete"} else BODIES.get((route, method), {})
    headers: dict[str, str | None] = {"If_Match": "*"} if method in {"patch", "delete"} else {}
    if not caller.secret:
        headers["Authorization"] = None
    with transaction.atomic():
        answer = caller.send(method.upper(), f"/api/v1/{path}", body, **headers)
        transaction.set_rollback(True)
    return answer


def _judge(
    answer: Any, may: frozenset[str] | None, permission: str, what: str, ownership: str, objects: Objects
) -> None:
    assert answer.status_code < 500, (what, answer.content)
    if may is None:
        assert answer.status_code == 401, (what, answer.content)
    elif permission not in may:
        assert answer.status_code == 403, (what, answer.content)
    elif objects.maker is not None and ownership != "own":
        assert answer.status_code == 404, (what, answer.content)
        assert answer.json()["detail"] == "It does not exist, or it is not yours.", what
    elif objects.maker is not None and "api-keys" not in objects.route and "members" not in objects.route:
        assert answer.status_code not in {401, 403, 404}, (what, answer.content)
