"""Signatures of deliveries: the Standard Webhooks specification (standardwebhooks.com), symmetric form.

Signed is `{id}.{timestamp}.{body}` with HMAC-SHA256; the secret is `whsec_` and the base64 of 32 random bytes.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable

_PREFIX = "whsec_"
_SECRET_BYTES = 32


def make_secret() -> str:
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def headers(*, message_id: str, timestamp: int, body: str, secrets_: Iterable[str]) -> dict[str, str]:
    """Return the three headers. `secrets_`: the present secret first; each signs, so that receivers can change over."""
    signed = f"{message_id}.{timestamp}.{body}".encode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{_signature(secret, signed)}" for secret in secrets_),
    }


def _signature(secret: str, signed: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
