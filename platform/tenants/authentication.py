"""How a request says who is calling: an API key in the Authorization header, or a session with CSRF."""

import hmac
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from django.db.models import Q
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, NotFound, PermissionDenied
from rest_framework.request import Request

from accounts.models import User
from apikit import clock, statements
from apikit.statements import Columns, Statement, columns_of
from audit import ids
from tenants import key_text
from tenants.models import ApiKey, Membership, Organization, Role
from tenants.principal import Principal

USE_IS_NOTED_EVERY = timedelta(minutes=1)  # a write per request would cost more than the request
_REFUSED = "The API key is not valid: mistyped, revoked or expired."


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer gy_live_...`; never a query parameter. A wrong checksum costs no database read."""

    def authenticate(self, request: Request) -> tuple[Any, ApiKey] | None:
        header = request.headers.get("Authorization")
        if header is None:
            return None
        scheme, _, text = header.partition(" ")
        public = key_text.public_part(text.strip()) if scheme.lower() == "bearer" else None
        if public is None:
            raise AuthenticationFailed(_REFUSED)
        found = _find(request, public)
        if found is None or not hmac.compare_digest(bytes(found.key.secret_sha256), key_text.digest(text.strip())):
            raise AuthenticationFailed(_REFUSED)
        key, at = found.key, arrival(request)
        if not key.is_live(at=at):
            raise AuthenticationFailed(_REFUSED)
        _refuse_banned(key.organization)
        role = _role_of_maker(found)
        _note_use(key, at=at)
        scopes, groups = frozenset(key.scopes), found.group_roles if role is not None else frozenset()
        return Principal(key.organization, role=role, scopes=scopes, api_key=key, group_roles=groups), key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class MemberSessionAuthentication(SessionAuthentication):
    """A signed-in person; `Gpuyard-Organization` names which of his organizations he acts for."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        user = getattr(request._request, "user", None)
        if not isinstance(user, User) or not user.is_active:
            return None
        self.enforce_csrf(request)
        wanted = request.headers.get("Gpuyard-Organization")
        if wanted is None:
            raise PermissionDenied("Name the organization in the header Gpuyard-Organization.")
        organization_id = ids.decode("org", wanted)
        mine = Membership.objects.select_related("organization").prefetch_related("groups_in__group").filter(user=user)
        membership = mine.filter(organization_id=organization_id).first() if organization_id else None
        if membership is None:
            raise NotFound
        organization = membership.organization
        _refuse_banned(organization)
        groups = frozenset(Role(row.group.role) for row in membership.groups_in.all())
        principal = Principal(organization, role=Role(membership.role), scopes=None, user=user, group_roles=groups)
        return principal, None


def _refuse_banned(organization: Organization) -> None:
    if organization.banned_at is not None:
        raise PermissionDenied(f"{organization.name} is banned from this platform: {organization.banned_reason}")


def arrival(request: Request) -> datetime:
    """Return the database's time of this request; read once, and the same for whoever asks later."""
    http_request: Any = request._request
    if not hasattr(http_request, "arrived_at"):
        http_request.arrived_at = clock.now()
    moment: datetime = http_request.arrived_at
    return moment


def _arrived(request: Request, moment: datetime) -> None:
    """Note the time that the database has said along with an answer."""
    http_request: Any = request._request
    if not hasattr(http_request, "arrived_at"):
        http_request.arrived_at = clock.as_read(moment)


class _Found(NamedTuple):
    key: ApiKey
    maker_role: str | None  # in the key's organization, today
    group_roles: frozenset[Role]  # of the groups that the maker is in there, today


def _find(request: Request, public: str) -> _Found | None:
    """Return the key with its organization and its maker, and note when the request came: one question for all."""
    key, tenant, maker = _columns()
    (rows,) = statements.run_first(Statement(_select(), [public]))
    if not rows:
        return None
    asked_at, role, groups, *values = rows[0]
    _arrived(request, asked_at)
    found = key.read(values[: key.width])
    assert found is not None
    owner = tenant.read(values[key.width : key.width + tenant.width])
    assert owner is not None
    found.organization = owner
    found.created_by = maker.read(values[key.width + tenant.width :])
    return _Found(found, role, frozenset(Role(name) for name in groups))


def _columns() -> tuple[Columns[ApiKey], Columns[Organization], Columns[User]]:
    return columns_of(ApiKey, "k"), columns_of(Organization, "o"), columns_of(User, "u")


@cache
def _select() -> str:
    key, tenant, maker = _columns()
    return f"""
SELECT clock_timestamp(), m.role, ARRAY(
        SELECT g.role FROM tenants_groupmember i JOIN tenants_group g ON g.id = i.group_id WHERE i.membership_id = m.id
    ), {key.sql}, {tenant.sql}, {maker.sql}
FROM tenants_apikey k JOIN tenants_organization o ON o.id = k.organization_id
    LEFT JOIN accounts_user u ON u.id = k.created_by_id
    LEFT JOIN tenants_membership m ON m.organization_id = k.organization_id AND m.user_id = k.created_by_id
WHERE k.public = %s"""  # noqa: S608 -- names of columns only


def _role_of_maker(found: _Found) -> Role | None:
    """Return the maker's role today: a key may never exceed its maker, who may have left or been given less."""
    maker = found.key.created_by
    if maker is None:
        return None
    if found.maker_role is None or not maker.is_active:
        raise AuthenticationFailed(_REFUSED)
    return Role(found.maker_role)


def _note_use(key: ApiKey, *, at: datetime) -> None:
    if key.last_used_at is None or key.last_used_at <= at - USE_IS_NOTED_EVERY:
        stale = Q(last_used_at__isnull=True) | Q(last_used_at__lte=at - USE_IS_NOTED_EVERY)
        ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=at)
