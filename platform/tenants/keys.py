"""API keys: `gy_live_` + 8 public characters + `_` + 32 base62 + 6 base62 of the CRC-32 of all before.

The check digits catch a mistyped or cut key without a database read, and let scanners of leaked secrets be exact.
"""

import hashlib
import re
import secrets
import zlib
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from accounts.models import User
from apikit.errors import DomainError, InvalidInput
from audit import log
from tenants import roles
from tenants.models import ApiKey, Organization

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FORM = re.compile(r"gy_(?:live|test)_([0-9A-Za-z]{8})_[0-9A-Za-z]{38}", re.ASCII)
_CHECK_LENGTH = 6  # 62 ** 6 > 2 ** 32
OVERLAP_LIMIT_S = 30 * 24 * 3600


class KeyIsOver(DomainError):
    """It is revoked, expired, or was rotated already."""

    slug = "invalid-transition"
    title = "That cannot be done in this state"
    status = 409


def public_part(text: str) -> str | None:
    """Return the 8 public characters of a well-formed key with right check digits, or None."""
    match = _FORM.fullmatch(text)
    if match is None or _check(text[:-_CHECK_LENGTH]) != text[-_CHECK_LENGTH:]:
        return None
    return match[1]


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("ascii")).digest()


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
    public = _random(8)
    text = f"gy_{'live' if live else 'test'}_{public}_{_random(32)}"
    text += _check(text)
    key = ApiKey.objects.create(
        organization=organization,
        name=name,
        public=public,
        secret_sha256=digest(text),
        scopes=wanted,
        created_by=created_by,
        expires_at=expires_at,
        created_at=at,
    )
    log.record(
        actor=actor,
        organization=organization.pk,
        action="api_key.created",
        target=key.public_id,
        after={"name": name, "scopes": wanted, "public": public},
        request_id=request_id,
        at=at,
    )
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
    log.record(
        actor=actor,
        organization=key.organization_id,
        action="api_key.revoked",
        target=key.public_id,
        request_id=request_id,
        at=at,
    )
    return key


@transaction.atomic
def rotate(
    *, key: ApiKey, overlap_s: int, at: datetime, actor: str, request_id: str = ""
) -> tuple[ApiKey, ApiKey, str]:
    """Make a key with the same rights and let the old one live on for `overlap_s` seconds.

    Returns (old, new, text of the new). Raises KeyIsOver.
    """
    key = ApiKey.objects.select_for_update(no_key=True, of=("self",)).select_related("organization").get(pk=key.pk)
    if key.revoked_at is not None or key.replaced_by_id is not None or (key.expires_at and key.expires_at <= at):
        raise KeyIsOver("The key is revoked, expired or rotated already.", actions=[])
    new, text = create(
        organization=key.organization,
        name=key.name,
        scopes=key.scopes,
        expires_at=key.expires_at,
        created_by=key.created_by,
        at=at,
        actor=actor,
        request_id=request_id,
    )
    ends = at + timedelta(seconds=overlap_s)
    key.replaced_by = new
    key.expires_at = min(ends, key.expires_at) if key.expires_at else ends
    key.version += 1
    key.save(update_fields=["replaced_by", "expires_at", "version"])
    log.record(
        actor=actor,
        organization=key.organization_id,
        action="api_key.rotated",
        target=key.public_id,
        after={"replaced_by": new.public_id, "overlap_s": overlap_s},
        request_id=request_id,
        at=at,
    )
    return key, new, text


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


def _random(length: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(length))


def _check(text: str) -> str:
    number = zlib.crc32(text.encode("ascii"))
    digits = ""
    for _ in range(_CHECK_LENGTH):
        number, digit = divmod(number, 62)
        digits = _BASE62[digit] + digits
    return digits
