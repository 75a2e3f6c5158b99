"""Releases of the agent as an operator would make and sign them: this agent's own files under another version."""

import base64
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

from nacl.signing import SigningKey

from agents import release_text

ROOT = Path(__file__).parents[2]
VERSION_LINE = 'AGENT_VERSION = "0.1.0"'


def wheel(version: str, **changed: tuple[str, str]) -> bytes:
    """Return a wheel of the agent. changed: module of agents.node -> (text in it, what stands there instead)."""
    raw = io.BytesIO()
    changes = {"syncing": (VERSION_LINE, f'AGENT_VERSION = "{version}"')} | changed
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((ROOT / "agents").rglob("*")):
            name = path.relative_to(ROOT)
            if path.suffix not in (".py", ".json") or "migrations" in name.parts:
                continue
            text = path.read_text()
            if path.parent.name == "node" and path.stem in changes:
                old, new = changes[path.stem]
                assert old in text, f"{path}: there is no {old!r}"
                text = text.replace(old, new)
            archive.writestr(str(name), text)
    return raw.getvalue()


class Signer:
    """An operator with a root key and a signing key."""

    def __init__(self) -> None:
        self.root, self.key = SigningKey.generate(), SigningKey.generate()

    @property
    def root_key(self) -> str:
        return bytes(self.root.verify_key).hex()

    def sign(
        self, wheel: bytes, *, version: str, until: str = "2099-01-01T00:00:00Z", **manifest: Any
    ) -> dict[str, Any]:
        told = {
            "version": version, "sha256": hashlib.sha256(wheel).hexdigest(), "size": len(wheel), "python": [3, 12],
            "needs": {"pynacl": "1.0"}, **manifest,
        }  # fmt: skip
        certificate = {"key": bytes(self.key.verify_key).hex(), "until": until}
        return {
            "manifest": told,
            "signature": _sign(self.key, release_text.manifest_text(told)),
            "certificate": certificate,
            "certificate_signature": _sign(self.root, release_text.certificate_text(certificate)),
        }


def _sign(key: SigningKey, text: bytes) -> str:
    return base64.b64encode(key.sign(text).signature).decode()
