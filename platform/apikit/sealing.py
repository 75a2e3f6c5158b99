"""Secrets at rest: AES-256-GCM. The context (organization|lease|name) is authenticated, so two rows cannot be swapped.

A sealed value is: key id (one byte of length, then its ASCII), 12 bytes of nonce, ciphertext with tag. The first key of
`settings.SEALING_KEYS` seals; every key in it unseals, so a key is rotated by putting a new one in front.
"""

import base64
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

_NONCE_BYTES = 12


class CannotUnseal(Exception):
    """The value was changed, moved to another place, or sealed with a key that is gone."""


def seal(plain: bytes, *, context: str) -> bytes:
    """Return `plain` sealed for `context`, the place where it will be read."""
    key_id, key = next(iter(_keys().items()))
    nonce = os.urandom(_NONCE_BYTES)
    name = key_id.encode("ascii")
    return bytes([len(name)]) + name + nonce + AESGCM(key).encrypt(nonce, plain, context.encode())


def unseal(sealed: bytes, *, context: str) -> bytes:
    """Return what `seal` was given. Raises CannotUnseal."""
    name_end = 1 + sealed[0] if sealed else 1
    key = _keys().get(sealed[1:name_end].decode("ascii", "replace"))
    if key is None:
        raise CannotUnseal("The key that sealed this value is not among SEALING_KEYS.")
    nonce, ciphertext = sealed[name_end : name_end + _NONCE_BYTES], sealed[name_end + _NONCE_BYTES :]
    try:
        return AESGCM(key).decrypt(nonce, ciphertext, context.encode())
    except (InvalidTag, ValueError):
        raise CannotUnseal("The value was changed, or belongs to another place.") from None


def key_id_of(sealed: bytes) -> str:
    """Return which key sealed it: for the job that seals again with the newest."""
    return sealed[1 : 1 + sealed[0]].decode("ascii")


def _keys() -> dict[str, bytes]:
    """Read SEALING_KEYS: "id:base64 of 32 bytes" with commas between, the newest first."""
    keys = {}
    for item in settings.SEALING_KEYS.split(","):
        key_id, _, encoded = item.strip().partition(":")
        keys[key_id] = base64.b64decode(encoded, validate=True)
        if len(keys[key_id]) != 32 or not key_id.isascii() or not 0 < len(key_id) < 64:
            raise ImproperlyConfigured("Each of SEALING_KEYS reads id:base64-of-32-bytes.")
    return keys
