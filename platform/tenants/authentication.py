"""How a request says who is calling: an API key in the Authorization header, or a session with CSRF."""

import hmac
from datetime import datetime, timedelta
from typing import Any

from django.db.models import OuterRef, Q, Subquery
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, NotFound, PermissionDenied
from rest_framework.request import Request

from accounts.models import User
from apikit import clock
from audit import ids
from tenants import key_text, keys
from tenants.models import ApiKey, Membership, Role
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
        at = arrival(request)
        key = _find(public, at=at)
        if key is None or not hmac.compare_digest(bytes(key.secret_sha256), key_text.digest(text.strip())):
            raise AuthenticationFailed(_REFUSED)
        role = _role_of_maker(key)
        _note_use(key, at=at)
        return Principal(key.organization, role=role, scopes=frozenset(key.scopes), api_key=key), key

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
        mine = Membership.objects.select_related("organization").filter(user=user)
        membership = mine.filter(organization_id=organization_id).first() if organization_id else None
        if membership is None:
            raise NotFound
        return Principal(membership.organization, role=Role(membership.role), scopes=None, user=user), None


def arrival(request: Request) -> datetime:
    """Return the database's time of this request; read once, and the same for whoever asks later."""
    http_request: Any = request._request
    if not hasattr(http_request, "arrived_at"):
        http_request.arrived_at = clock.now()
    moment: datetime = http_request.arrived_at
    return moment


def _find(public: str, *, at: datetime) -> ApiKey | None:
    makers = Membership.objects.filter(organization=OuterRef("organization"), user=OuterRef("created_by"))
    return (
        ApiKey.objects.select_related("organization", "created_by")
        .annotate(maker_role=Subquery(makers.values("role")[:1]))
        .filter(keys.live(at=at), public=public)
        .first()
    )


def _role_of_maker(key: ApiKey) -> Role | None:
    """Return the maker's role today: a key may never exceed its maker, who may have left or been given less."""
    if key.created_by is None:
        return None
    role = key.maker_role  # type: ignore[attr-defined]
    if role is None or not key.created_by.is_active:
        raise AuthenticationFailed(_REFUSED)
    return Role(role)


def _note_use(key: ApiKey, *, at: datetime) -> None:
    if key.last_used_at is None or key.last_used_at <= at - USE_IS_NOTED_EVERY:
        stale = Q(last_used_at__isnull=True) | Q(last_used_at__lte=at - USE_IS_NOTED_EVERY)
        ApiKey.objects.filter(stale, pk=key.pk).update(last_used_at=at)
