"""People sign in through the real pages: password, code, session, and what the operators' pages ask for."""

import time
from base64 import b64decode
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.core import mail
from django.test import Client
from django.urls import NoReverseMatch, reverse

from accounts import sessions, signing_in
from accounts.models import User
from apikit import clock, sealing
from audit.models import Entry
from tenants.models import Role
from tests.factories import NOON, make_organization
from tests.tenants.conftest import make_member

pytestmark = pytest.mark.django_db
LOGIN = "/accounts/login/"
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def _asked(settings: Any) -> Iterator[None]:
    settings.STAFF_SECOND_FACTOR = True
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the real one takes most of a second
    with clock.frozen(NOON):  # tries are counted in fixed windows
        yield


def make_person(email: str = "ada@example.org", **options: Any) -> User:
    return User.objects.create_user(email, email, PASSWORD, **options)


def sign_in(client: Client, person: User, password: str = PASSWORD) -> Any:
    return client.post(LOGIN, {"login": person.email, "password": password})


def code_of(secret: str, step: int = 0) -> str:
    return format_hotp_value(hotp_value(secret, int(time.time()) // 30 + step))


def with_app(client: Client, person: User) -> str:
    """Sign in, say the password again, and add an authenticator app; return its secret."""
    sign_in(client, person)
    assert client.get(reverse("mfa_activate_totp"))["Location"].startswith(reverse("account_reauthenticate"))
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    secret: str = client.get(reverse("mfa_activate_totp")).context["form"].secret
    added = client.post(reverse("mfa_activate_totp"), {"code": code_of(secret)})
    assert added.status_code == 302
    return secret


def wait_for_a_fresh_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 30 s pass, so that the next code is another: one code is good for one time."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 30)


def test_staff_reach_the_operators_pages_with_a_second_factor_and_not_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    person, client = make_person(is_staff=True, is_superuser=True), Client()
    nobody = client.get("/admin/")
    assert (nobody.status_code, urlsplit(nobody["Location"]).path) == (302, "/admin/login/")
    sent_on = client.get(nobody["Location"])
    assert sent_on["Location"] == f"{LOGIN}?next=%2Fadmin%2F"

    secret = with_app(client, person)
    for address in ("/admin/", "/admin/leasing/lease/", "/admin/logout/"):
        refused = client.get(address, follow=True)
        assert refused.redirect_chain, address
        assert "Host" not in refused.content.decode()
    assert client.get("/admin/login/")["Location"] == reverse("mfa_index")

    client.post(reverse("account_logout"))
    wait_for_a_fresh_step(monkeypatch)
    half = sign_in(client, person)
    assert half["Location"] == reverse("mfa_authenticate")
    assert client.get("/admin/").status_code == 302
    whole = client.post(reverse("mfa_authenticate"), {"code": code_of(secret)})

    assert whole["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200
    with_what = [entry.after["with"] for entry in Entry.objects.filter(action="person.signed_in").order_by("position")]
    assert with_what == [["password"], ["password", "totp"]]


def test_where_none_is_asked_for_the_pages_say_so(settings: Any) -> None:
    settings.STAFF_SECOND_FACTOR = False
    client = Client()
    sign_in(client, make_person(is_staff=True, is_superuser=True))

    assert "for demonstration only" in client.get("/admin/").content.decode()


def test_a_person_who_is_no_staff_gets_no_operators_page() -> None:
    client = Client()
    sign_in(client, make_person())

    assert client.get("/admin/", follow=True).status_code == 403


def test_a_code_is_good_once_and_the_secret_behind_it_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    person, client = make_person(), Client()
    secret = with_app(client, person)
    wait_for_a_fresh_step(monkeypatch)
    used = code_of(secret)

    answers = []
    for browser in (Client(), Client()):
        sign_in(browser, person)
        answers.append(browser.post(reverse("mfa_authenticate"), {"code": used}).status_code)

    assert answers == [302, 200]
    kept = Authenticator.objects.get(user=person, type=Authenticator.Type.TOTP).data["secret"]
    assert secret not in kept
    assert signing_in.SecondFactors().decrypt(kept) == secret
    with pytest.raises(sealing.CannotUnseal):
        sealing.unseal(b64decode(kept), context="elsewhere")


def test_the_eleventh_try_is_refused_before_a_password_is_hashed_and_from_any_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    person = make_person()
    hashed = []
    check = User.check_password
    monkeypatch.setattr(User, "check_password", lambda self, raw: (hashed.append(raw), check(self, raw))[1])
    for _ in range(10):
        assert sign_in(Client(), person, "wrong").status_code == 200
    tries = len(hashed)

    refused = sign_in(Client(), person)

    assert "Too many tries" in refused.content.decode()
    assert len(hashed) == tries
    assert sign_in(Client(), make_person("eve@example.org")).status_code == 302


def test_an_account_has_one_quota_by_whichever_of_its_names_it_is_tried() -> None:
    User.objects.create_user("ada", "ada@example.org", PASSWORD)
    for name in ["ada", "ADA@example.org", "ada@example.org", "Ada", "ada"] * 2:
        assert Client().post(LOGIN, {"login": name, "password": "wrong"}).status_code == 200

    for name in ("ada", "ada@example.org"):
        refused = Client().post(LOGIN, {"login": name, "password": PASSWORD})
        assert "Too many tries" in refused.content.decode(), name
    assert sign_in(Client(), make_person("eve@example.org")).status_code == 302


def test_names_of_nobody_have_a_quota_each() -> None:
    for _ in range(10):
        Client().post(LOGIN, {"login": "nobody@example.org", "password": "wrong"})

    refused = Client().post(LOGIN, {"login": "Nobody@example.org", "password": "wrong"})

    assert "Too many tries" in refused.content.decode()
    assert "Too many tries" not in Client().post(LOGIN, {"login": "other", "password": "wrong"}).content.decode()


def test_codes_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    person, client = make_person(), Client()
    secret = with_app(client, person)
    wait_for_a_fresh_step(monkeypatch)
    guesser = Client()
    sign_in(guesser, person)
    for _ in range(10):
        guesser.post(reverse("mfa_authenticate"), {"code": "000000"})

    refused = guesser.post(reverse("mfa_authenticate"), {"code": code_of(secret)})

    assert (refused.status_code, "_auth_user_id" in guesser.session) == (200, False)


def test_a_session_ends_when_idle_and_after_a_working_day(monkeypatch: pytest.MonkeyPatch) -> None:
    person, client = make_person(), Client()
    now = [time.time()]
    monkeypatch.setattr(sessions.time, "time", lambda: now[0])

    def status_after(seconds: int) -> int:
        now[0] += seconds
        return client.get("/accounts/").status_code

    sign_in(client, person)
    assert [status_after(seconds) for seconds in (0, 890, 890, 901)] == [200, 200, 200, 302]

    sign_in(client, person)
    busy = [status_after(600) for _ in range(50)]
    assert busy == [200] * 49 + [302]  # 8 h after the first


def test_nobody_signs_up_or_takes_another_address() -> None:
    client = Client()
    form = {"email": "new@example.org", "password1": PASSWORD}

    assert "Nobody signs up here" in client.post(reverse("account_signup"), form).content.decode()
    assert not User.objects.exists()
    with pytest.raises(NoReverseMatch):
        reverse("account_email")


def test_a_member_who_never_had_a_password_sets_one_by_a_letter() -> None:
    membership = make_member(make_organization(), Role.DEVELOPER)
    client = Client()

    client.post(reverse("account_reset_password"), {"email": membership.user.email})
    (letter,) = mail.outbox
    address = next(word for word in letter.body.split() if "/password/reset/key/" in word)
    form = client.get(urlsplit(address).path, follow=True)
    client.post(form.redirect_chain[-1][0], {"password1": PASSWORD, "password2": PASSWORD})
    sign_in(client, membership.user)

    page = client.get("/accounts/").content.decode()
    assert membership.organization.public_id in page
    named = {"Gpuyard-Organization": membership.organization.public_id}
    assert client.get("/api/v1/leases", headers=named).status_code == 200


def test_a_reset_for_nobody_looks_the_same() -> None:
    make_person()
    answers = [
        Client().post(reverse("account_reset_password"), {"email": email})
        for email in ("ada@example.org", "nobody@example.org")
    ]

    assert {(answer.status_code, answer["Location"]) for answer in answers} == {
        (302, reverse("account_reset_password_done"))
    }


def test_pages_run_no_script_of_others_and_none_inline() -> None:
    client = Client()
    sign_in(client, make_person())
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    for address in (reverse("mfa_index"), reverse("mfa_activate_totp"), reverse("mfa_add_webauthn"), "/accounts/"):
        answer = client.get(address)
        policy = answer["Content-Security-Policy"]
        assert answer.status_code == 200, address
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert " style=" not in answer.content.decode()
