"""Single sign-on from our page over an identity provider and back: who gets in, and which answers let nobody in."""

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from django.conf import settings
from django.contrib import admin
from django.db import connection
from django.test import Client, override_settings

from accounts.models import User
from config import sign_in
from tests.accounts.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, running

pytestmark = pytest.mark.django_db
LOGIN = "/accounts/oidc/sso/login/"
ADA = {"sub": "ada-1", "email": "ada@example.org", "email_verified": True, "preferred_username": "ada"}


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with running(IdentityProvider(dict(ADA))) as found:
        providers = sign_in.oidc_provider(issuer=found.url, client_id=CLIENT_ID, secret=CLIENT_SECRET)
        with override_settings(
            INSTALLED_APPS=[*settings.INSTALLED_APPS, *sign_in.OIDC_APPS],
            SOCIALACCOUNT_PROVIDERS=providers,
            ROOT_URLCONF="tests.accounts.urls_with_single_sign_on",
        ):
            _make_tables()
            yield found
        for model in [model for model in admin.site._registry if model._meta.app_label == "socialaccount"]:
            admin.site.unregister(model)  # the app is not there any more for who comes next


def _make_tables() -> None:
    """Make what `manage.py migrate` makes where single sign-on is turned on; the test's end takes it back."""
    from allauth.socialaccount import models, providers

    providers.registry.loaded = False  # it was asked before our settings were there
    providers.registry.load()
    with connection.schema_editor() as editor:
        for model in (models.SocialApp, models.SocialAccount, models.SocialToken):
            editor.create_model(model)


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada", "ada@example.org")


def leave(client: Client, query: str = "") -> str:
    """Press the button on our page; return the provider's address that the browser is sent to."""
    answer = client.post(f"{LOGIN}?process=login{query}")
    assert answer.status_code == 302, answer.content
    return str(answer["Location"])


def visit(address: str) -> str:
    """Sign in at the provider; return where it sends the browser back to."""
    url = urlsplit(address)
    there = http.client.HTTPConnection(str(url.hostname), url.port, timeout=30)
    there.request("GET", f"{url.path}?{url.query}")
    back = there.getresponse().headers["Location"]
    there.close()
    return str(back)


def come_back(client: Client, address: str) -> Any:
    url = urlsplit(address)
    return client.get(f"{url.path}?{url.query}")


def signed_in(client: Client) -> str | None:
    return client.session.get("_auth_user_id")


def round_trip(client: Client) -> Any:
    return come_back(client, visit(leave(client)))


def test_who_is_there_already_gets_in(provider: IdentityProvider, ada: User) -> None:
    client = Client()

    answer = round_trip(client)

    assert (answer.status_code, answer["Location"]) == (302, "/accounts/")
    assert signed_in(client) == str(ada.pk)
    assert User.objects.count() == 1


def test_the_provider_is_asked_with_a_nonce_a_state_and_a_challenge_of_this_sign_in(provider: IdentityProvider) -> None:
    asked = [parse_qs(urlsplit(leave(Client())).query) for _ in range(2)]

    for name in ("nonce", "state", "code_challenge"):
        assert len(asked[0][name][0]) >= 16
        assert asked[0][name] != asked[1][name]
    assert asked[0]["redirect_uri"] == ["http://testserver/accounts/oidc/sso/login/callback/"]
    assert set(asked[0]["scope"][0].split()) == {"openid", "profile", "email"}


def test_a_link_does_not_change_what_the_provider_is_asked(provider: IdentityProvider) -> None:
    forged = urlencode({"redirect_uri": "https://evil.example/", "nonce": "known", "prompt": "none"})
    link = urlencode({"auth_params": forged, "scope": "offline_access"})

    asked = parse_qs(urlsplit(leave(Client(), f"&{link}")).query)

    assert asked["redirect_uri"][0].startswith("http://testserver/")
    assert asked["nonce"] != ["known"]
    assert "prompt" not in asked
    assert "offline_access" not in asked["scope"][0]


LIES: dict[str, dict[str, Any]] = {
    "another nonce": {"claims": {"nonce": "another"}},
    "no nonce": {"claims": {"nonce": None}},
    "another audience": {"claims": {"aud": "somebody-else"}},
    "others in the audience": {"claims": {"aud": [CLIENT_ID, "somebody-else"]}},
    "for another party": {"claims": {"azp": "somebody-else"}},
    "expired": {"claims": {"exp": 1_700_000_000}},
    "no expiry": {"claims": {"exp": None}},
    "another issuer": {"claims": {"iss": "https://evil.example"}},
    "another key": {"signs_with": generate_private_key(65537, 2048)},
    "no signature": {"algorithm": "none"},
    "no id_token": {"gives_id_token": False},
    "another person's userinfo": {"userinfo": {"sub": "eve-1"}},
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_is_not_right_lets_nobody_in(provider: IdentityProvider, ada: User, lie: str) -> None:
    for name, value in LIES[lie].items():
        setattr(provider, name, value)
    client = Client()

    answer = round_trip(client)

    assert answer.status_code < 500
    assert signed_in(client) is None


@pytest.mark.parametrize("change", [{"state": "forged"}, {"state": ""}, {"code": "forged"}])
def test_a_way_back_that_this_browser_did_not_begin_lets_nobody_in(
    provider: IdentityProvider, ada: User, change: dict[str, str]
) -> None:
    client = Client()
    back = urlsplit(visit(leave(client)))
    query = {name: values[0] for name, values in parse_qs(back.query).items()} | change

    come_back(client, f"{back.path}?{urlencode(query)}")

    assert signed_in(client) is None


def test_the_way_back_of_one_browser_lets_no_other_in_and_is_good_once(provider: IdentityProvider, ada: User) -> None:
    mine, others = Client(), Client()
    back = visit(leave(mine))

    come_back(others, back)
    assert signed_in(others) is None
    come_back(mine, back)
    assert signed_in(mine) == str(ada.pk)
    mine.logout()
    come_back(mine, back)
    assert signed_in(mine) is None


def test_an_address_that_the_provider_did_not_verify_is_nobodys(provider: IdentityProvider, ada: User) -> None:
    provider.person["email_verified"] = False
    client = Client()

    round_trip(client)

    assert signed_in(client) is None


def test_who_is_not_there_is_not_made(provider: IdentityProvider) -> None:
    client = Client()

    round_trip(client)

    assert signed_in(client) is None
    assert User.objects.count() == 0
