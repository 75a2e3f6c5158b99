"""How people sign in: what django-allauth asks us, and what a session has shown of the person behind it.

Nobody signs up by himself: members are added to an organization, staff by other staff, and whoever has no password yet
sets one through a reset. Tries are counted in PostgreSQL before a password is hashed, because one check costs most of a
second of CPU, and because counters that many processes share must be exact.
"""

import base64
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.authentication import get_authentication_records
from allauth.core.internal.httpkit import get_client_ip
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.base.forms import AuthenticateForm, ReauthenticateForm
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse

from accounts.models import User
from apikit import clock, rate_limits, sealing
from apikit.requests import request_id_of
from audit import log

SEALED_FOR = "accounts|authenticator"
TOO_MANY = "Too many tries. Wait {wait_s} s, or sign in with a passkey."


def shows_second_factor(request: HttpRequest) -> bool:
    """Say whether this session has shown a second factor: a code, a security key, or a passkey."""
    return any(record["method"] == "mfa" for record in get_authentication_records(request, _person(request)))


def count_try(policy: str, subject: str) -> None:
    """Count one more try before anything is checked. Raises ValidationError, with how long to wait, above the quota."""
    try:
        rate_limits.count(policy, subject=subject[:200], at=clock.now())
    except rate_limits.RateLimited as refusal:
        raise ValidationError(TOO_MANY.format(wait_s=refusal.retry_after_s), code="too_many_login_attempts") from None


class SignIn(DefaultAccountAdapter):  # type: ignore[misc]
    """Passwords: who may try, how often, and where to go after."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        named = {credentials[name] for name in ("email", "username") if credentials.get(name)}
        count_try("sign_in_address", f"ip:{get_client_ip(request)}")
        for subject in _tried(named):
            count_try("sign_in", f"person:{subject}")

    def login(self, request: HttpRequest, user: User) -> None:
        with transaction.atomic():
            super().login(request, user)
            shown = [record.get("type", record["method"]) for record in get_authentication_records(request, user)]
            log.record(
                actor=user.public_id,
                organization=None,
                action="person.signed_in",
                target=user.public_id,
                after={"with": shown},
                request_id=request_id_of(request),
                at=clock.now(),
            )

    def get_login_redirect_url(self, request: HttpRequest) -> str:
        return reverse("admin:index") if _person(request).is_staff else super().get_login_redirect_url(request)


def _tried(named: set[str]) -> list[str]:
    """Return whose tries these are: of the account, by whichever of its names; of what was typed, if there is none."""
    meant = Q()
    for name in named:
        meant |= Q(email__iexact=name) | Q(username__iexact=name)
    people = User.objects.filter(meant) if named else User.objects.none()
    return sorted(person.public_id for person in people) or sorted({name.lower() for name in named})


class SecondFactors(DefaultMFAAdapter):  # type: ignore[misc]
    """Secrets of authenticator apps are sealed like all other secrets at rest."""

    def encrypt(self, text: str) -> str:
        return base64.b64encode(sealing.seal(text.encode(), context=SEALED_FOR)).decode()

    def decrypt(self, encrypted_text: str) -> str:
        return sealing.unseal(base64.b64decode(encrypted_text), context=SEALED_FOR).decode()

    def get_totp_issuer(self) -> str:
        return str(settings.MFA_TOTP_ISSUER)


class _Counted:
    """A form for a code, whose tries are counted for the person: six digits are soon guessed."""

    user: User

    def clean_code(self) -> str:
        count_try("second_factor", f"person:{self.user.public_id}")
        code: str = super().clean_code()  # type: ignore[misc]
        return code


class CodeForm(_Counted, AuthenticateForm): ...  # type: ignore[misc]


class CodeAgainForm(_Counted, ReauthenticateForm): ...  # type: ignore[misc]


def _person(request: HttpRequest) -> User:
    person: User = request.user  # type: ignore[assignment]
    return person
