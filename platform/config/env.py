"""Settings that differ between environments; a value that cannot be used stops start-up with a sentence."""

import os
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured


def text(name: str, default: str | None = None) -> str:
    """Return the variable `GPUYARD_<name>` or, for a few names of the trade (DATABASE_URL), the bare name."""
    value = os.environ.get(f"GPUYARD_{name}", os.environ.get(name, default))
    if value is None:
        raise ImproperlyConfigured(f"Set {name} (or GPUYARD_{name}) in the environment.")
    return value


def flag(name: str, *, default: bool) -> bool:
    value = text(name, "1" if default else "0").lower()
    if value not in {"0", "1", "true", "false", "yes", "no"}:
        raise ImproperlyConfigured(f"{name} is {value!r}; 1 or 0 would be right.")
    return value in {"1", "true", "yes"}


def seconds(name: str, default: int) -> int:
    value = text(name, str(default))
    if not value.isascii() or not value.isdigit():
        raise ImproperlyConfigured(f"{name} is {value!r}; a whole number of seconds would be right.")
    return int(value)


def count(name: str, default: int) -> int:
    """Return a whole number, such as how many of something there may be."""
    value = text(name, str(default))
    if not value.isascii() or not value.isdigit():
        raise ImproperlyConfigured(f"{name} is {value!r}; a whole number would be right.")
    return int(value)


def hex_key(name: str, default: str | None) -> str:
    """Return 64 hexadecimal digits: 32 bytes of a key."""
    value = text(name, default).lower()
    if len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise ImproperlyConfigured(f"{name} must be 64 hexadecimal digits.")
    return value


def database(url: str) -> dict[str, object]:
    """Return Django's form of `postgresql://user:password@host:port/name`; a host of `%2Fpath` is a socket folder."""
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"} or not parts.path.strip("/"):
        raise ImproperlyConfigured("DATABASE_URL must read postgresql://user:password@host:port/name.")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
    }


def mailer(url: str) -> dict[str, object]:
    """Return Django's form of `smtp://user:password@host:port` (STARTTLS where there is a user) or `smtps://...`.

    `console://` writes letters to the log of the process.
    """
    parts = urlsplit(url)
    if parts.scheme == "console":
        return {"BACKEND": "django.core.mail.backends.console.EmailBackend"}
    if parts.scheme not in {"smtp", "smtps"} or not parts.hostname:
        raise ImproperlyConfigured("MAIL_URL must read smtp://user:password@host:port, smtps://... or console://.")
    options: dict[str, object] = {"host": parts.hostname, "port": parts.port or 25, "timeout": 10}
    if parts.scheme == "smtps":
        options |= {"port": parts.port or 465, "use_ssl": True}
    if parts.username:
        options |= {"username": unquote(parts.username), "password": unquote(parts.password or "")}
        options |= {"use_tls": parts.scheme == "smtp"}
    return {"BACKEND": "django.core.mail.backends.smtp.EmailBackend", "OPTIONS": options}
