"""The platform's own way into a machine over SSH: with its own key, and to the one pinned host key alone.

A host whose access is good and trusted is let as a whole machine (`Host.bare_metal`). A machine that shows another host
key is quarantined: nothing is sent to it until an operator has compared the new key's fingerprint and accepts it. An
access that merely fails is not offered until it works again.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from io import StringIO
from uuid import UUID

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.conf import settings
from django.db import transaction

from agents import host_events, host_life, ssh, ssh_asking
from agents.bootstrap import OPERATIONS_USER
from agents.machine_records import MachineAccess
from agents.models import Host
from apikit.errors import DomainError, NotFound
from audit import log

LOOK_AGAIN_S = 300


class NoAccess(DomainError):
    slug = "no-machine-access"
    title = "The platform has no way into this machine"


class KeyNotShown(DomainError):
    slug = "host-key-not-shown"
    title = "The machine has not shown this key"


def management_key() -> paramiko.PKey:
    """Return the key that machines let the platform in by: made from CONTROL_SIGNING_KEY, for this purpose alone."""
    seed = hashlib.sha256(b"gpuyard machine access 1|" + bytes.fromhex(settings.CONTROL_SIGNING_KEY)).digest()
    text = Ed25519PrivateKey.from_private_bytes(seed).private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return paramiko.Ed25519Key.from_private_key(StringIO(text.decode()))


def management_line() -> str:
    """Return the line for authorized_keys."""
    key = management_key()
    return f"{key.get_name()} {key.get_base64()} {OPERATIONS_USER}"


def session(access: MachineAccess) -> ssh.Session:
    """Return a session with the machine, to be used in `with`. It lets in nothing but the pinned key."""
    return ssh.Session(
        ssh.Address(access.address, access.port),
        host_key=ssh.HostKey(access.key_kind, access.key_body),
        credentials=ssh.Credentials(access.user, key=management_key()),
    )


def ask_door(access: MachineAccess, *, user: str, keys: Sequence[str]) -> None:
    """Return if the machine would let this account in by one of these keys. Raises as `ssh_asking.would_let_in`."""
    ssh_asking.would_let_in(
        ssh.Address(access.address, access.port),
        host_key=ssh.HostKey(access.key_kind, access.key_body), user=user, keys=keys,
    )  # fmt: skip


@transaction.atomic
def pin(*, host_id: UUID, address: ssh.Address, user: str, host_key: ssh.HostKey, by: str, at: datetime) -> Host:
    """Keep how to get in, with the host key whose fingerprint a person has confirmed: the host may be let whole."""
    host = host_life.lock(host_id)
    before = MachineAccess.objects.filter(host=host).first()
    MachineAccess.objects.update_or_create(
        host=host,
        defaults={
            "address": address.host, "port": address.port, "user": user, "key_kind": host_key.kind,
            "key_body": host_key.body, "pinned_at": at, "pinned_by": by[:80], "shown_kind": "", "shown_body": "",
            "shown_at": None, "trouble": "", "check_at": None, "offered": True,
        },
    )  # fmt: skip
    was = ssh.HostKey(before.key_kind, before.key_body).fingerprint if before else None
    _note(host, "host.access_pinned", before=was, after=host_key.fingerprint, why="", by=by, at=at)
    _settle(host)
    return host


@transaction.atomic
def withdraw(*, host_id: UUID, reason: str, by: str, at: datetime) -> Host:
    """Let the host as a whole machine no more. What is given goes on, and is taken back over the same access."""
    host = host_life.lock(host_id)
    if MachineAccess.objects.filter(host=host, offered=True).update(offered=False):
        _settle(host)
        _note(host, "host.access_withdrawn", before=True, after=False, why=reason, by=by, at=at)
    return host


@transaction.atomic
def offer_again(*, host_id: UUID, by: str, at: datetime) -> Host:
    """Let the host as a whole machine again. Raises NoAccess where no access was pinned, or its key is in doubt."""
    host = host_life.lock(host_id)
    access = MachineAccess.objects.filter(host=host).first()
    if access is None or access.shown_body or access.trouble:
        why = "It was never set up." if access is None else access.trouble or "It shows another host key."
        raise NoAccess(f"{why} Set it up over SSH first.")
    if not access.offered:
        MachineAccess.objects.filter(pk=access.pk).update(offered=True)
        _settle(host)
        _note(host, "host.access_offered", before=False, after=True, why="", by=by, at=at)
    return host


@transaction.atomic
def key_changed(*, host_id: UUID, shown: ssh.HostKey, at: datetime) -> Host:
    """The machine shows another key than the pinned one: quarantined at once. Nothing was sent to it."""
    host = host_life.lock(host_id)
    MachineAccess.objects.filter(host=host).update(shown_kind=shown.kind, shown_body=shown.body, shown_at=at)
    _settle(host)
    reason = f"It shows another SSH host key: {shown.fingerprint}."
    host_events.record(host_id=host.pk, kind="host.ssh_key_changed", detail=reason, at=at)
    return host_life.quarantine(host_id=host.pk, reason=reason, at=at)


@transaction.atomic
def accept_key(*, host_id: UUID, fingerprint: str, reason: str, by: str, at: datetime) -> Host:
    """An operator has compared the new fingerprint on the machine itself: this key is pinned from now on.

    The host stays in quarantine: letting it back (`host_life.release`) is another decision. Raises KeyNotShown.
    """
    host = host_life.lock(host_id)
    access = MachineAccess.objects.filter(host=host).exclude(shown_body="").first()
    if access is None:
        raise NotFound("The machine has shown no other key.")
    was, shown = (ssh.HostKey(k, b) for k, b in ((access.key_kind, access.key_body),
                                                 (access.shown_kind, access.shown_body)))  # fmt: skip
    if shown.fingerprint != fingerprint.strip():
        raise KeyNotShown(f"It has shown {shown.fingerprint}, not {fingerprint.strip()[:60]}.")
    MachineAccess.objects.filter(pk=access.pk).update(
        key_kind=shown.kind, key_body=shown.body, pinned_at=at, pinned_by=by[:80], shown_kind="", shown_body="",
        shown_at=None, trouble="Its host key was accepted anew.", check_at=at,
    )  # fmt: skip
    _note(host, "host.ssh_key_accepted", before=was.fingerprint, after=shown.fingerprint, why=reason, by=by, at=at)
    return host


@transaction.atomic
def failed(*, host_id: UUID, why: str, at: datetime) -> None:
    """The machine could not be reached over its access: not let as a whole until `look_again` gets in."""
    host = host_life.lock(host_id)
    access = MachineAccess.objects.get(host=host)
    if not access.trouble:
        host_events.record(host_id=host.pk, kind="host.access_failed", detail=why, at=at)
    MachineAccess.objects.filter(pk=access.pk).update(
        trouble=why[:300] or "It cannot be reached.", check_at=at + timedelta(seconds=LOOK_AGAIN_S)
    )
    _settle(host)


def look_again(*, at: datetime) -> int:
    """Try the accesses that had trouble, at most a few; return how many work again."""
    due = MachineAccess.objects.filter(check_at__lte=at, shown_body="").exclude(trouble="").select_related("host")
    mended = 0
    for access in due.exclude(host__state=Host.State.RETIRED)[:4]:
        # Whoever comes second in the meantime finds it not due.
        later = at + timedelta(seconds=LOOK_AGAIN_S)
        if MachineAccess.objects.filter(pk=access.pk, check_at=access.check_at).update(check_at=later):
            mended += _try(access, at=at)
    return mended


def _try(access: MachineAccess, *, at: datetime) -> int:
    try:
        with session(access) as opened:
            opened.run("true", within_s=15)
    except ssh.HostKeyChanged as fault:
        key_changed(host_id=access.host_id, shown=fault.key, at=at)
        return 0
    except DomainError as fault:
        failed(host_id=access.host_id, why=fault.detail, at=at)
        return 0
    with transaction.atomic():
        host = host_life.lock(access.host_id)
        MachineAccess.objects.filter(pk=access.pk).update(trouble="", check_at=None)
        host_events.record(host_id=host.pk, kind="host.access_mended", at=at)
        _settle(host)
    return 1


def _settle(host: Host) -> None:
    """Bring the host's column in step: let as a whole machine if its owner wishes it and nothing speaks against it."""
    good = MachineAccess.objects.filter(host=host, offered=True, trouble="", shown_body="")
    bare_metal = good.exists()
    if host.bare_metal != bare_metal:
        host.bare_metal = bare_metal
        Host.objects.filter(pk=host.pk).update(bare_metal=bare_metal)


def _note(host: Host, kind: str, *, before: object, after: object, why: str, by: str, at: datetime) -> None:
    host_events.record(
        host_id=host.pk, kind=kind, detail=why, by=by, at=at, facts={"before": before, "after": after}
    )  # fmt: skip
    log.record(
        actor=by, organization=host.owner_id, action=kind, target=host.public_id, before=before, after=after, why=why,
        at=at,
    )  # fmt: skip
