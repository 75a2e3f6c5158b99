"""Settings of how people sign in (django-allauth), and for how long."""

from typing import Any

from config import env

_DEBUG = env.flag("DEBUG", default=False)
_BEHIND_TLS = env.flag("BEHIND_TLS", default=False)

AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "account"
LOGOUT_REDIRECT_URL = "account_login"

# The operators' pages open only to a session that has shown a second factor. Off for a demonstration, and they say so.
STAFF_SECOND_FACTOR = env.flag("STAFF_SECOND_FACTOR", default=not _DEBUG)

SESSION_COOKIE_AGE = 8 * 3600  # a working day, however busy
SESSION_IDLE_S = env.seconds("SESSION_IDLE_S", 15 * 60)
SESSION_EXPIRE_AT_BROWSER_CLOSE = True

# What codes were used and how often somebody tried; in the database, so that all processes see it.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.db.DatabaseCache",
        "LOCATION": "accounts_cache",
        "OPTIONS": {"MAX_ENTRIES": 10_000},
    }
}

ACCOUNT_ADAPTER = "accounts.signing_in.SignIn"
ACCOUNT_LOGIN_METHODS = {"email", "username"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"  # whoever adds a member answers for the address, and a reset proves it
ACCOUNT_SESSION_REMEMBER = False
ACCOUNT_LOGOUT_ON_PASSWORD_CHANGE = True
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_RATE_LIMITS = {"login_failed": "10/5m/key"}  # of codes, under our own exact counters
# How many proxies of ours append to X-Forwarded-For: an address further left is whatever the caller wrote.
ALLAUTH_TRUSTED_PROXY_COUNT = env.count("PROXIES", 1 if _BEHIND_TLS else 0)

MFA_ADAPTER = "accounts.signing_in.SecondFactors"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_ALLOW_UNVERIFIED_EMAIL = True  # nobody can sign up with another's address
MFA_RECOVERY_CODES_SHOW_ONCE = True
MFA_TOTP_TOLERANCE = 1  # a step of 30 s before and after: clocks differ, and people type (RFC 6238, 5.2)
MFA_TOTP_ISSUER = env.text("SIGN_IN_NAME", "gpuyard")
MFA_FORMS = {"authenticate": "accounts.signing_in.CodeForm", "reauthenticate": "accounts.signing_in.CodeAgainForm"}

# Single sign-on (the extra `oidc`): an identity provider of the platform's own, which is believed about addresses that
# it calls verified. Who is not there yet is not made. Run `manage.py migrate` after turning it on.
_OIDC_ISSUER = env.text("OIDC_ISSUER", "")
SOCIALACCOUNT_ONLY = False
SOCIALACCOUNT_AUTO_SIGNUP = False
SOCIALACCOUNT_EMAIL_AUTHENTICATION_AUTO_CONNECT = True
SOCIALACCOUNT_PROVIDERS: dict[str, Any] = {}
OIDC_APPS = ["allauth.socialaccount", "allauth.socialaccount.providers.openid_connect"]


def oidc_provider(*, issuer: str, client_id: str, secret: str, name: str = "single sign-on") -> dict[str, Any]:
    """Return SOCIALACCOUNT_PROVIDERS for one identity provider."""
    app = {
        "provider_id": "sso",
        "name": name,
        "client_id": client_id,
        "secret": secret,
        "settings": {"server_url": issuer, "email_authentication": True},
    }
    ours = "accounts.single_sign_on.SingleSignOn"
    return {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "provider_class": ours, "APPS": [app]}}


if _OIDC_ISSUER:
    SOCIALACCOUNT_PROVIDERS = oidc_provider(
        issuer=_OIDC_ISSUER,
        client_id=env.text("OIDC_CLIENT_ID"),
        secret=env.text("OIDC_CLIENT_SECRET"),
        name=env.text("OIDC_NAME", "single sign-on"),
    )


def oidc_apps() -> list[str]:
    """Return the apps that single sign-on needs; none without an issuer."""
    return OIDC_APPS if _OIDC_ISSUER else []


# Letters (only resets of passwords): a demonstration writes them to the log of the process.
DEFAULT_FROM_EMAIL = env.text("MAIL_FROM", "gpuyard@localhost")
MAILERS = {"default": env.mailer(env.text("MAIL_URL", "console://" if _DEBUG else "smtp://127.0.0.1:25"))}
