"""Who this host is: its keys, its id, the control plane's pinned keys, and the count of its starts.

All of it stands in the state folder (mode 0700). A host that lost the folder is a stranger and enrols again.
"""

import base64
import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nacl import bindings

from agents.node import durable

IDENTITY = "identity.json"
SETTINGS = "settings.json"
BOOT_NO = "boot_no"
LOCK = "lock"


class StateError(Exception):
    """The state folder cannot be used; the sentence says why and what to do."""


@dataclass
class Identity:
    """Keys are hex. `host` and `control_keys` are empty until enrolment succeeded."""

    server: str
    signing_seed: str
    sealing_secret: str
    host: str = ""
    key: str = ""
    control_keys: list[str] = field(default_factory=list)
    release_key: str = ""  # pinned at enrolment: the root of what signs releases of the agent; "": it takes none

    @property
    def enrolled(self) -> bool:
        return bool(self.host)

    @property
    def signing_key(self) -> str:
        return bindings.crypto_sign_seed_keypair(bytes.fromhex(self.signing_seed))[0].hex()

    @property
    def sealing_key(self) -> str:
        return bindings.crypto_scalarmult_base(bytes.fromhex(self.sealing_secret)).hex()

    def sign(self, text: bytes) -> str:
        """Return the Ed25519 signature of `text` in base64."""
        secret = bindings.crypto_sign_seed_keypair(bytes.fromhex(self.signing_seed))[1]
        return base64.b64encode(bindings.crypto_sign(text, secret)[: bindings.crypto_sign_BYTES]).decode()

    def unseal(self, sealed: bytes) -> bytes:
        """Return what was sealed to this host's X25519 key. Raises nacl.exceptions.CryptoError if it was not."""
        secret = bytes.fromhex(self.sealing_secret)
        return bindings.crypto_box_seal_open(sealed, bindings.crypto_scalarmult_base(secret), secret)


def is_signed_by(*, keys: list[str], text: bytes, signature: str) -> bool:
    """Return whether one of the Ed25519 `keys` (hex) made `signature` (base64) over `text`."""
    try:
        raw = base64.b64decode(signature, validate=True)
    except ValueError:
        return False
    for key in keys:
        try:
            bindings.crypto_sign_open(raw + text, bytes.fromhex(key))
        except Exception:  # noqa: S112 -- PyNaCl raises several kinds for a bad signature or key: all mean no
            continue
        return True
    return False


class StateFolder:
    """The agent's folder. One process at a time holds it (`hold`); a second one is told so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)
        self._lock: int | None = None

    def hold(self) -> None:
        """Take the folder for this process, or raise StateError when another agent runs on it."""
        lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StateError(f"another gpuyard-agent already runs on {self.path}; stop it first") from None
        self._lock = lock

    def identity(self) -> Identity | None:
        """Return who this host is, or None before the first enrolment was tried."""
        data = self._read(IDENTITY)
        return None if data is None else Identity(**data)

    def save_identity(self, identity: Identity) -> None:
        durable.write(self.path / IDENTITY, json.dumps(asdict(identity), indent=1))

    def fresh_identity(self, *, server: str) -> Identity:
        """Make new keys and save them, before they are sent: an answer that is lost must not lose the keys."""
        identity = Identity(server=server, signing_seed=os.urandom(32).hex(), sealing_secret=os.urandom(32).hex())
        self.save_identity(identity)
        return identity

    def settings(self) -> dict[str, Any]:
        """Return the options given at enrolment or at an earlier run (driver, engine, simulated devices)."""
        return self._read(SETTINGS) or {}

    def save_settings(self, settings: dict[str, Any]) -> None:
        durable.write(self.path / SETTINGS, json.dumps(settings, indent=1))

    def next_boot_no(self, *, at_least: int = 0) -> int:
        """Return the count of starts, one higher than ever before and than `at_least`, once it is on the disk."""
        path = self.path / BOOT_NO
        last = int(path.read_text()) if path.exists() else 0
        number = max(last, at_least) + 1
        durable.write(path, str(number))
        return number

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.exists():
            return None
        try:
            data = json.loads(path.read_text())
        except ValueError as fault:
            raise StateError(f"{path} is damaged ({fault}); move the folder away and enrol again") from None
        if not isinstance(data, dict):
            raise StateError(f"{path} is damaged (not an object); move the folder away and enrol again")
        return data
