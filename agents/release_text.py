"""A release of the agent as its operators sign it: what is checked before any of it is kept or run (AGENT.md, 19).

    {manifest: {version, sha256, size, python [3, 12], needs {package: least version}}, signature,
     certificate: {key, until}, certificate_signature}

A root key, which lies offline and which every host pinned when it enrolled, signs a certificate for a signing key and
its end; the signing key signs the manifest; the manifest names the wheel by its hash. Keys are Ed25519 in hex,
signatures in base64 over the texts below. Pure values, used by both sides.
"""

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nacl import bindings

from agents.protocol import canonical_json

MAX_BYTES = 16 * 1024 * 1024
_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){1,3}", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


class NotGood(ValueError):
    """The release is not what it should be; the sentence says why."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a good document says. needs: packages that must be installed beside it, and their least versions."""

    version: str
    sha256: str
    size: int
    python: tuple[int, ...]
    needs: dict[str, str]


def manifest_text(manifest: dict[str, Any]) -> bytes:
    """Return the bytes that the signing key signs."""
    return b"gpuyard-release-v1\n" + canonical_json(manifest)


def certificate_text(certificate: dict[str, Any]) -> bytes:
    """Return the bytes that the root key signs."""
    return b"gpuyard-release-key-v1\n" + canonical_json(certificate)


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers, which compare as versions do. Raises NotGood for any other text."""
    if not _VERSION.fullmatch(version):
        raise NotGood(f"{version!r:.40} is no version such as 1.2.3")
    return tuple(map(int, version.split(".")))


def read(document: Any, *, root_key: str, at: datetime) -> Release:
    """Return what is in a document that is signed as it must be. Raises NotGood."""
    try:
        manifest, certificate = document["manifest"], document["certificate"]
        seals = document["signature"], document["certificate_signature"]
        key, until = certificate["key"], datetime.fromisoformat(certificate["until"])
        is_certified = _is_signed(root_key, certificate_text(certificate), seals[1])
    except (KeyError, TypeError, ValueError):
        raise NotGood("the release cannot be read") from None
    if not is_certified:
        raise NotGood("the key that signed the release is not certified by the root key that this host pinned")
    if until.tzinfo is None or at >= until:
        raise NotGood(f"the key that signed the release was good until {certificate['until']}")
    if not _is_signed(key, manifest_text(manifest), seals[0]):
        raise NotGood("the release is not signed by the key that is certified for it")
    return _release(manifest)


def _release(manifest: dict[str, Any]) -> Release:
    try:
        version, sha256, size = manifest["version"], manifest["sha256"], manifest["size"]
        python, needs = tuple(manifest["python"]), manifest["needs"]
        readable = _HASH.fullmatch(sha256) and type(size) is int and 0 < size <= MAX_BYTES
        readable = readable and all(type(number) is int for number in python)
        for least in (version, *needs.values()):
            numbers(least)
    except (KeyError, TypeError, AttributeError):
        raise NotGood("the manifest cannot be read") from None
    if not readable:
        raise NotGood("the manifest cannot be read")
    return Release(version=version, sha256=sha256, size=size, python=python, needs=dict(needs))


def _is_signed(key: str, text: bytes, signature: str) -> bool:
    try:
        bindings.crypto_sign_open(base64.b64decode(signature, validate=True) + text, bytes.fromhex(key))
    except Exception:  # PyNaCl raises several kinds for a bad signature or key: all mean no
        return False
    return True
