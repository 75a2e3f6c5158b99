"""Who signs what: requests by a host's key, answers by the control plane's key (agents.protocol).

An Ed25519 signature alone does not stop a replay; (boot_no, seq) does, in the guarded update of `agents.sync`.
"""

import base64
import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from django.conf import settings
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from agents.models import Host
from agents.protocol import MAX_CLOCK_SKEW_S, ProtocolError, answer_text, header_text, read_header, signed_text
from apikit.errors import DomainError
from audit import ids

_NUMBER_MAX = 2**63 - 1


class UnknownAgent(DomainError):
    slug = "unauthenticated"
    title = "Who is calling is not known"
    status = 401


class AnotherHost(DomainError):
    """A good signature of one host under the name of another."""

    slug = "permission-denied"
    title = "The caller may not do this"
    status = 403


class ClockSkew(DomainError):
    slug = "agent-clock-skew"
    title = "The agent's clock is off by too much"
    status = 401


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A request whose signature was good. `created` is by the agent's clock, seconds since 1970."""

    host_id: UUID
    key_id: str
    boot_id: str  # of the host's last request before this one
    boot_no: int
    seq: int
    created: int
    signing_key: str = ""  # public, hex; as the host's row has it
    heard_at: datetime | None = None  # when the host was heard before this request, by our clock

    @property
    def host(self) -> str:
        return ids.encode("host", self.host_id)


def key_id(signing_key: str) -> str:
    """Return the short name of a public key (hex)."""
    return hashlib.sha256(bytes.fromhex(signing_key)).hexdigest()[:32]


def control_key() -> SigningKey:
    """Return the control plane's Ed25519 key: the seed is a setting, 64 hex digits."""
    return _control_key(settings.CONTROL_SIGNING_KEY)


@lru_cache(maxsize=2)
def _control_key(seed: str) -> SigningKey:
    return SigningKey(bytes.fromhex(seed))


def control_keys() -> list[str]:
    """Return the public keys (hex) that an agent pins at enrolment."""
    return [bytes(control_key().verify_key).hex()]


def identify(*, header: str | None, method: str, path: str, body: bytes) -> Caller:
    """Return whose request this is. Raises UnknownAgent, without saying which part was wrong, or AnotherHost."""
    claimed = read(header)
    live = Host.objects.exclude(state=Host.State.RETIRED).only("signing_key", "boot_id", "last_heard_at")
    signer = live.filter(key_id=claimed.key_id).first()
    if signer is None or not signer.signing_key or not claimed.key_id:
        raise UnknownAgent("No live host has this key.")
    key = VerifyKey(bytes.fromhex(signer.signing_key))
    if not fits(claimed, key, header, method=method, path=path, body=body):
        raise UnknownAgent("The signature does not fit.")
    if signer.pk != claimed.host_id:
        raise AnotherHost("A host speaks for itself alone.")
    return replace(
        claimed, boot_id=signer.boot_id, signing_key=signer.signing_key, heard_at=signer.last_heard_at
    )  # fmt: skip


def fits(claimed: Caller, key: VerifyKey, header: str | None, *, method: str, path: str, body: bytes) -> bool:
    """Return whether this key has signed the request."""
    text = signed_text(
        method=method, path=path, body=body, host=claimed.host, key=claimed.key_id, boot_no=claimed.boot_no,
        seq=claimed.seq, created=claimed.created,
    )  # fmt: skip
    try:
        key.verify(text, _signature(header))
    except (BadSignatureError, ValueError):
        return False
    return True


def check_clock(caller: Caller, *, at: datetime) -> None:
    """Raise ClockSkew, with our time, when the agent's clock is off by over MAX_CLOCK_SKEW_S."""
    off_by_s = caller.created - int(at.timestamp())
    if abs(off_by_s) > MAX_CLOCK_SKEW_S:
        raise ClockSkew(
            f"The request was made {abs(off_by_s)} s {'ahead of' if off_by_s > 0 else 'behind'} our clock.",
            server_time=at.isoformat().replace("+00:00", "Z"),
        )


@lru_cache(maxsize=2)
def _name_of(key: SigningKey) -> str:
    return key_id(bytes(key.verify_key).hex())


def answer_header(*, status: int, body: bytes, host: str, boot_no: int, seq: int) -> str:
    """Return the signature header of an answer to the request (boot_no, seq) of this host."""
    key = control_key()
    signature = key.sign(answer_text(status=status, body=body, host=host, boot_no=boot_no, seq=seq)).signature
    name = _name_of(key)
    return header_text(key=name, boot=boot_no, seq=seq, sig=base64.b64encode(signature).decode())


def read(header: str | None) -> Caller:
    """Return what the header claims, not yet believed. Raises UnknownAgent."""
    try:
        parts = read_header(header or "")
        host_id = ids.decode("host", parts["host"])
        boot_no, seq, created = (_number(parts[name]) for name in ("boot", "seq", "created"))
        key = parts["key"]
    except (ProtocolError, KeyError, ValueError):
        raise UnknownAgent("The signature header is missing or cannot be read.") from None
    if host_id is None or "sig" not in parts:
        raise UnknownAgent("The signature header is missing or cannot be read.")
    return Caller(host_id=host_id, key_id=key, boot_id="", boot_no=boot_no, seq=seq, created=created)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > _NUMBER_MAX:
        raise ValueError(text)
    return int(text)


def _signature(header: str | None) -> bytes:
    return base64.b64decode(read_header(header or "")["sig"], validate=True)
