"""The life of API keys: made, renamed, rotated with an overlap, revoked. Their spelling stands in `key_text.py`."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from accounts.models import User
from apikit.errors import DomainError, InvalidInput
from audit import log
from tenants import key_text, roles
from tenants.models import ApiKey, Organization
from tenants.principal import Principal

OVERLAP_LIMIT_S = 30 * 24 * 3600


class MayNotGrant(DomainError):
    slug = "permission-denied"
    title = "The caller may not do this"
    status = 403


class KeyIsOver(DomainError):
    """It is revoked, expired, or was rotated already."""

    slug = "invalid-transition"
    title = "That cannot be done in this state"
    status = 409


def live(*, at: datetime) -> Q:
    """The filter for keys that are good at `at`."""
    return Q(revoked_at__isnull=True) & (Q(expires_at__isnull=True) | Q(expires_at__gt=at))


@transaction.atomic
def create(
    *,
    organization: Organization,
    name: str,
    scopes: Iterable[str],
    expires_at: datetime | None,
    created_by: User | None,
    live: bool = True,
    at: datetime,
    actor: str = "system:keys",
    request_id: str = "",
) -> tuple[ApiKey, str]:
    """Make a key and return it with its text, which nobody can ever read again. Raises InvalidInput.

    created_by: whose rights bound the key for its whole life; None: made by the platform. live=False: `gy_test_`.
    """
    wanted = sorted(set(scopes))
    _check_scopes(wanted)
    if expires_at is not None and expires_at <= at:
        fault = {"pointer": "/expires_at", "code": "out_of_range", "detail": "It must lie in the future."}
        raise InvalidInput("A key must live for a while.", errors=[fault])
    public, text = key_text.make(live=live)
    key = ApiKey.objects.create(
        organization=organization,
        name=name,
        public=public,
        secret_sha256=key_text.digest(text),
        scopes=wanted,
        created_by=created_by,
        expires_at=expires_at,
        created_at=at,
    )
    after = {"name": name, "scopes": wanted, "public": public}
    _record("api_key.created", key, actor=actor, request_id=request_id, at=at, after=after)
    return key, text


@transaction.atomic
def revoke(*, key: ApiKey, at: datetime, actor: str, request_id: str = "") -> ApiKey:
    """End the key now. Doing it again changes nothing."""
    key = ApiKey.objects.select_for_update(no_key=True, of=("self",)).get(pk=key.pk)
    if key.revoked_at is not None:
        return key
    key.revoked_at = at
    key.version += 1
    key.save(update_fields=["revoked_at", "version"])
    _record("api_key.revoked", key, actor=actor, request_id=request_id, at=at)
    return key


@transaction.atomic
def grant(
    *,
    by: Principal,
    name: str,
    scopes: Iterable[str],
    expires_at: datetime | None,
    at: datetime,
    request_id: str = "",
) -> tuple[ApiKey, str]:
    """Make a key for a caller, within what he may do himself. Raises InvalidInput, MayNotGrant."""
    wanted = list(scopes)
    _check_within(by, wanted)
    return create(
        organization=by.organization,
        name=name,
        scopes=wanted,
        expires_at=expires_at,
        created_by=by.person,
        at=at,
        actor=by.actor,
        request_id=request_id,
    )


@transaction.atomic
def rename(*, key: ApiKey, name: str, at: datetime, actor: str, request_id: str = "") -> ApiKey:
    """Give the key another name. The caller holds the row's lock."""
    before, key.name = key.name, name
    key.version += 1
    key.save(update_fields=["name", "version"])
    _record(
        "api_key.renamed", key, actor=actor, request_id=request_id, at=at, before={"name": before}, after={"name": name}
    )
    return key


@transaction.atomic
def rotate(
    *, key: ApiKey, by: Principal, overlap_s: int, at: datetime, request_id: str = ""
) -> tuple[ApiKey, ApiKey, str]:
    """Make a key with the same rights and let the old one live on for `overlap_s` seconds.

    Returns (old, new, text of the new). Raises KeyIsOver, and MayNotGrant: whoever rotates a key holds its text.
    """
    key = ApiKey.objects.select_for_update(no_key=True, of=("self",)).select_related("organization").get(pk=key.pk)
    if key.revoked_at is not None or key.replaced_by_id is not None or (key.expires_at and key.expires_at <= at):
        raise KeyIsOver("The key is revoked, expired or rotated already.", state="over", actions=[])
    _check_within(by, key.scopes)
    new, text = create(
        organization=key.organization,
        name=key.name,
        scopes=key.scopes,
        expires_at=key.expires_at,
        created_by=by.person,
        at=at,
        actor=by.actor,
        request_id=request_id,
    )
    ends = at + timedelta(seconds=overlap_s)
    key.replaced_by = new
    key.expires_at = min(ends, key.expires_at) if key.expires_at else ends
    key.version += 1
    key.save(update_fields=["replaced_by", "expires_at", "version"])
    after = {"replaced_by": new.public_id, "overlap_s": overlap_s}
    _record("api_key.rotated", key, actor=by.actor, request_id=request_id, at=at, after=after)
    return key, new, text


def _check_within(by: Principal, scopes: Iterable[str]) -> None:
    lacking = sorted(set(scopes) - roles.scopes_within(by.permissions))
    if lacking:
        raise MayNotGrant(f"Nobody grants what he lacks: {', '.join(lacking)}.", lacking=lacking)


def _record(
    action: str, key: ApiKey, *, actor: str, request_id: str, at: datetime, before: Any = None, after: Any = None
) -> None:
    log.record(
        actor=actor,
        organization=key.organization_id,
        action=action,
        target=key.public_id,
        before=before,
        after=after,
        request_id=request_id,
        at=at,
    )


def _check_scopes(wanted: list[str]) -> None:
    faults = [
        {"pointer": "/scopes", "code": "bad_value", "detail": "Not a scope.", "nearest": list(roles.SCOPES)}
        for scope in wanted
        if scope not in roles.SCOPES
    ]
    if not wanted:
        faults = [{"pointer": "/scopes", "code": "bad_value", "detail": "A key needs at least one scope."}]
    if faults:
        raise InvalidInput("These scopes cannot be given.", errors=faults[:1])
