"""The syncs of hosts that have nothing to say and nothing to hear, taken in by one statement for all that came at once.

Most syncs are such. One is quiet when nothing runs or is wanted there, no self-test is open, the host is online or only
suspect, and it says what it said before: the same boot, inventory and conditions, no events, no receipts, no output,
and devices that are well (`is_quiet`). Its devices must have been looked at in full within QUIET_S: so readings and the
memory of `agents.health` are at most so old, and whoever changes a device takes the permission back (`forget`). All of
this stands in the statement's own conditions: where one of them fails, nothing is written, and the sync is taken in as
any other. So is that of a host whose row somebody else holds: nobody here waits for a lock.

The statement commits without waiting for the disk. If the database's machine dies, the last fraction of a second in
which the hosts were heard is lost: it is charged less, and their next numbers are higher all the same.
"""

import json
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from threading import Lock
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from nacl.signing import VerifyKey

from agents import health, host_life, signing
from agents.models import Device, Host
from agents.protocol import DeviceReport, ProtocolError, SyncRequest
from agents.signing import Caller

QUIET_S = 180  # at most
SPREAD_S = 60
KEYS_KEPT = 20_000

_HEARD = """
WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS mode),
said AS (SELECT * FROM unnest(%(host)s::uuid[], %(key)s::text[], %(boot)s::bigint[], %(seq)s::bigint[],
                              %(created)s::bigint[], %(instance)s::text[], %(boot_id)s::text[], %(version)s::text[],
                              %(inventory)s::text[], %(conditions)s::text[])
         AS said (host, key, boot, seq, created, instance, boot_id, version, inventory, conditions)),
free AS MATERIALIZED (
    SELECT host.id, host.state, said.seq, said.created
    FROM said JOIN agents_host AS host ON host.id = said.host CROSS JOIN quick
    WHERE quick.mode = 'off' AND host.key_id = said.key AND host.boot_no = said.boot AND host.last_seq < said.seq
      AND host.instance = said.instance AND host.boot_id = said.boot_id AND host.agent_version = said.version
      AND (host.state = 'online' OR (host.state = 'suspect' AND host.tier <> 'unverified'))
      AND host.quiet_until > %(looked_at)s
      AND host.inventory_hash = said.inventory AND host.conditions = said.conditions::jsonb
      AND NOT EXISTS (SELECT 1 FROM agents_workload w WHERE w.host_id = host.id AND w.gone_at IS NULL)
      AND NOT EXISTS (SELECT 1 FROM agents_selftest t WHERE t.host_id = host.id AND t.passed IS NULL)
    FOR NO KEY UPDATE OF host SKIP LOCKED)
UPDATE agents_host AS host
SET last_seq = free.seq, last_created = greatest(host.last_created, free.created),
    last_heard_at = greatest(host.last_heard_at, %(at)s)
FROM free WHERE host.id = free.id
RETURNING host.id, host.generation, free.state
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


def learn(headers: Iterable[str | None]) -> None:
    """Read the keys of those who claim to speak and are not remembered, by one question: after a start, all of them."""
    unknown = set()
    for header in headers:
        with suppress(signing.UnknownAgent):
            claimed = signing.read(header)
            if claimed.key_id and _keys.get(claimed.key_id) is None:
                unknown.add(claimed.key_id)
    if unknown:
        live = Host.objects.exclude(state=Host.State.RETIRED).filter(key_id__in=unknown)
        for host_id, key_id, key in live.values_list("pk", "key_id", "signing_key"):
            _keys.put(key_id, host_id, VerifyKey(bytes.fromhex(key)))


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


def heard(said: Sequence[tuple[Caller, SyncRequest]], *, at: datetime, late_s: int = 0) -> list[int | None]:
    """Take in those of these syncs that are quiet; return the generation of each one's host, None where it is not.

    late_s: how much longer ago than QUIET_S their devices may have been looked at, where there is no time for it now.
    """
    found: list[int | None] = [None] * len(said)
    quiet: dict[UUID, int] = {}
    for index, (caller, request) in enumerate(said):
        if says_nothing(request):
            quiet.setdefault(caller.host_id, index)  # a second one of the same host goes the long way
    if not quiet:
        return found
    with transaction.atomic():
        with connection.cursor() as cursor:
            values = _values([said[index] for index in quiet.values()], at=at, looked_at=at - timedelta(seconds=late_s))
            cursor.execute(_HEARD, values)
            rows = cursor.fetchall()
        suspect = [host_id for host_id, _, state in rows if state == Host.State.SUSPECT]
        if suspect:
            hosts = list(Host.objects.filter(pk__in=suspect).defer("inventory"))
            reasons = dict.fromkeys(suspect, "Heard again after being suspect.")
            host_life.move_all(hosts, Host.State.ONLINE, at=at, reasons=reasons)
    for host_id, generation, _ in rows:
        found[quiet[host_id]] = int(generation)
    return found


def says_nothing(request: SyncRequest) -> bool:
    """Return whether all that this request says is that the host is there and its devices are well."""
    if request.workloads or request.events or request.receipts or request.logs or request.inventory is not None:
        return False
    return all(_is_quiet(item) for item in request.devices)


def _values(quiet: Iterable[tuple[Caller, SyncRequest]], *, at: datetime, looked_at: datetime) -> dict[str, Any]:
    rows = [
        (
            caller.host_id, caller.key_id, caller.boot_no, caller.seq, caller.created, request.instance[:64],
            request.boot_id[:64], request.version[:32], request.inventory_hash,
            json.dumps(sorted({name for name in request.conditions if isinstance(name, str)})),
        )
        for caller, request in quiet
    ]  # fmt: skip
    names = "host", "key", "boot", "seq", "created", "instance", "boot_id", "version", "inventory", "conditions"
    columns = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return columns | {"at": at, "looked_at": looked_at}


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
    # Not all for as long: those that came at once, after a start of ours, would come at once for ever.
    lasts_s = QUIET_S - random.randrange(SPREAD_S)  # noqa: S311 -- spreads load, guards nothing
    hears = host.state in {Host.State.ONLINE, Host.State.SUSPECT}
    until = at + timedelta(seconds=lasts_s) if well and hears else None
    if host.quiet_until != until:
        Host.objects.filter(pk=host.pk).update(quiet_until=until)


def forget(host_id: UUID) -> None:
    """A device was changed by somebody: the host's next sync is looked at in full."""
    Host.objects.filter(pk=host_id).update(quiet_until=None)
