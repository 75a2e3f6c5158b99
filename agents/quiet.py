"""The sync of a host that has nothing to say and nothing to hear, taken in by one statement. Most syncs are such.

It is quiet when nothing runs or is wanted there, no self-test is open, it is online, and it says what it said before:
the same boot, inventory and conditions, no events, no receipts, no output, and devices that are well (`is_quiet`). Its
devices must have been looked at in full within QUIET_S: so readings and the memory of `agents.health` are at most so
old, and whoever changes a device takes the permission back (`forget`). All of this stands in the statement's own
conditions: if one of them fails, nothing is written, and the sync is taken in as any other.

The statement commits without waiting for the disk. If the database's machine dies, the last fraction of a second in
which the host was heard is lost: it is charged less, and its next number is higher all the same.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime, timedelta
from threading import Lock
from typing import Any
from uuid import UUID

from django.db import connection
from nacl.signing import VerifyKey

from agents import health, signing
from agents.models import Device, Host
from agents.protocol import DeviceReport, ProtocolError, SyncRequest
from agents.signing import Caller

QUIET_S = 180
KEYS_KEPT = 20_000

_HEARD = """
WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS mode)
UPDATE agents_host AS host
SET last_seq = %(seq)s, last_created = greatest(host.last_created, %(created)s),
    last_heard_at = greatest(host.last_heard_at, %(at)s)
FROM quick
WHERE quick.mode = 'off' AND host.id = %(host)s AND host.key_id = %(key)s AND host.boot_no = %(boot)s
  AND host.last_seq < %(seq)s AND host.instance = %(instance)s AND host.boot_id = %(boot_id)s
  AND host.agent_version = %(version)s AND host.state = 'online' AND host.quiet_until > %(at)s
  AND host.inventory_hash = %(inventory)s AND host.conditions = %(conditions)s::jsonb
  AND NOT EXISTS (SELECT 1 FROM agents_workload w WHERE w.host_id = host.id AND w.gone_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM agents_selftest t WHERE t.host_id = host.id AND t.passed IS NULL)
RETURNING host.generation
"""


class _Keys:
    """Public keys of hosts that were let in a moment ago. They decide nothing: the statement asks for the name."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[UUID, VerifyKey]] = OrderedDict()
        self._lock = Lock()

    def get(self, key_id: str) -> tuple[UUID, VerifyKey] | None:
        return self._known.get(key_id)

    def put(self, key_id: str, host_id: UUID, key: VerifyKey) -> None:
        with self._lock:
            self._known[key_id] = (host_id, key)
            if len(self._known) > KEYS_KEPT:
                self._known.popitem(last=False)


_keys = _Keys()


def remember(caller: Caller) -> None:
    """Keep the public key of a host whose signature was good."""
    if _keys.get(caller.key_id) is None:
        _keys.put(caller.key_id, caller.host_id, VerifyKey(bytes.fromhex(caller.signing_key)))


def identify(*, header: str | None, method: str, path: str, body: bytes) -> Caller | None:
    """Return the caller if its key is remembered and the signature fits; None: it must be asked for in full."""
    try:
        claimed = signing.read(header)
    except signing.UnknownAgent:
        return None
    known = _keys.get(claimed.key_id)
    if known is None or known[0] != claimed.host_id:
        return None
    fits = signing.fits(claimed, known[1], header, method=method, path=path, body=body)
    return claimed if fits else None


def heard(caller: Caller, request: SyncRequest, *, at: datetime) -> int | None:
    """Take a quiet sync in; return the host's generation, or None: it is not quiet, and nothing was written."""
    if request.workloads or request.events or request.receipts or request.logs or request.inventory is not None:
        return None
    if not all(_is_quiet(item) for item in request.devices):
        return None
    values: dict[str, Any] = {
        "seq": caller.seq, "created": caller.created, "at": at, "host": caller.host_id, "key": caller.key_id,
        "boot": caller.boot_no, "instance": request.instance[:64], "boot_id": request.boot_id[:64],
        "version": request.version[:32], "inventory": request.inventory_hash,
        "conditions": json.dumps(sorted({name for name in request.conditions if isinstance(name, str)})),
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_HEARD, values)
        row = cursor.fetchone()
    return None if row is None else int(row[0])


def _is_quiet(item: Any) -> bool:
    try:
        return health.is_quiet(DeviceReport.from_json(item))
    except ProtocolError:
        return False


def allow(host: Host, devices: Iterable[Device], *, may: bool, at: datetime) -> None:
    """The host's devices were looked at in full: if all are well, its next syncs may be quiet for a while."""
    well = may and all(
        device.health == Device.Health.HEALTHY and health.remembers_nothing(device.evidence)
        for device in devices
        if device.present
    )
    until = at + timedelta(seconds=QUIET_S) if well and host.state == Host.State.ONLINE else None
    if host.quiet_until != until:
        Host.objects.filter(pk=host.pk).update(quiet_until=until)


def forget(host_id: UUID) -> None:
    """A device was changed by somebody: the host's next sync is looked at in full."""
    Host.objects.filter(pk=host_id).update(quiet_until=None)
