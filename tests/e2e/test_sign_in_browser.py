"""In a real browser: a passkey is made and opens the operators' pages, and our own rules refuse no script or style."""

from pathlib import Path
from typing import Any

import pytest

from accounts.models import User
from tests.e2e import chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(chromium.PROGRAM is None, reason="needs chromium"),
]
PASSWORD = "correct horse battery"


def test_a_passkey_is_made_and_opens_the_operators_pages(live_server: Any, settings: Any, tmp_path: Path) -> None:
    settings.STAFF_SECOND_FACTOR = True
    User.objects.create_user("ada@example.org", "ada@example.org", PASSWORD, is_staff=True, is_superuser=True)
    with chromium.browser(tmp_path) as page:
        page.add_authenticator()
        page.open(f"{live_server.url}/admin/")
        assert page.at() == "/accounts/login/"

        page.fill(login="ada@example.org", password=PASSWORD)
        page.click("form[action$='/login/'] button[type=submit]")
        page.wait("location.pathname == '/accounts/2fa/'")
        assert "need a second factor" in page.text()

        page.open(f"{live_server.url}/accounts/2fa/webauthn/add/")
        page.wait("document.querySelector('[name=password]')")
        page.fill(password=PASSWORD)
        page.click("form[action$='/reauthenticate/'] button[type=submit]")
        page.wait("document.querySelector('[name=passwordless]')")
        page.fill(name="my phone")
        page.click("[name=passwordless]")
        page.click("#mfa_webauthn_add")
        page.wait("!location.pathname.endsWith('/webauthn/add/')")

        page.open(f"{live_server.url}/accounts/")
        page.click("header form button")
        page.wait("document.querySelector('#passkey_login')")
        page.click("#passkey_login")
        page.wait("location.pathname == '/admin/' && document.readyState == 'complete'")

        assert "How the platform is" in page.text()
        assert page.faults == []
