"""One signed request of a host, taken in: `apply`, then the answer: `answer`. Each is one transaction.

Between the two the door may hold the request (agents.api): it answers when `generation` moves or after `hold_s`. The
wanted list is always the whole one, so a message that is lost, doubled or late needs no code of its own.

A replay changes nothing: the host's row is moved by one guarded update on (boot_no, last_seq). A bad item changes
nothing and bills nothing and never fails the whole sync: it is noted in the host's diary.
"""

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Case, DateTimeField, ExpressionWrapper, F, Q, Value, When
from django.db.models.functions import Coalesce, Greatest

from agents import (
    executions,
    host_events,
    host_life,
    inventory,
    logs,
    machines,
    measurements,
    port_check,
    quiet,
    receipts,
    releases,
    reports,
    silence,
    verification,
    volumes,
    workloads,
)
from agents.models import Host, HostEvent, SelfTest, Workload
from agents.protocol import DesiredWorkload, SyncAnswer, SyncRequest, workload_key
from agents.signing import Caller
from apikit.errors import DomainError
from apikit.instants import instant
from audit import ids

EVENT_LIMIT = 200
# Of an event, what has a place of its own, and what is a tenant's.
NOT_KEPT = {"n", "kind", "detail", "devices"} | executions.PRIVATE
FAULTS_SHOWN = 5


class AgentReplay(DomainError):
    slug = "agent-replay"
    title = "This number was used already"


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What a request did, and what the answer to it needs. `urgent`: it must not be held."""

    host_id: UUID
    boot_no: int
    seq: int
    have_generation: int
    generation: int
    acks: dict[str, Any] = field(default_factory=dict)
    need: list[str] = field(default_factory=list)
    urgent: bool = False
    quiet_at: datetime | None = None  # when it was heard, if nothing runs or is wanted there and no self-test is open
    scratch: list[str] | None = None  # what is kept there; None: not looked up, so the whole list cannot be told yet
    drop_volumes: list[str] = field(default_factory=list)  # looked up with it
    _since: float = field(default_factory=time.monotonic)

    @property
    def host(self) -> str:
        return ids.encode("host", self.host_id)

    @property
    def is_quiet(self) -> bool:
        return self.quiet_at is not None

    @property
    def is_answered(self) -> bool:
        """Return whether nothing needs to be asked for the answer, as long as the generation does not move."""
        knows_all = self.have_generation == self.generation or self.scratch is not None
        return self.is_quiet and knows_all and not self.urgent

    @property
    def may_be_held(self) -> bool:
        return not self.urgent and self.have_generation == self.generation


def apply(*, caller: Caller, request: SyncRequest, peer: str, at: datetime) -> Applied:
    """Take one request in. `at`: when it was received, by our clock: the only instant that prices anything.

    Raises AgentReplay (with the highest boot_no that was accepted); two machines with one key are quarantined first.
    """
    with transaction.atomic():
        if quiet.says_nothing(request):
            _need_not_last()
        if _accept(caller, request, at=at):
            return _apply(caller, request, peer=peer, rebooted=_rebooted(caller.boot_id, request), at=at)
    raise _refusal(caller, request, at=at)


@transaction.atomic
def answer(*, applied: Applied, hold_s: int, at: datetime) -> SyncAnswer:
    """Return the answer as of now, and write down first how long it lets each workload run on (the fence).

    hold_s: how long the next request may be held; if not at all (0), the agent pauses between requests.
    """
    rows = releases.with_open(Host.objects.select_for_update(no_key=True), at=at)
    host = rows.only("id", "generation", "state").get(pk=applied.host_id)
    ours = Workload.objects.filter(host=host, wanted=True, gone_at__isnull=True, kind=Workload.Kind.CONTAINER)
    wanted = list(ours.order_by("reference", "member"))
    if not wanted:
        _need_not_last()
    valid = {workload.pk: _valid_for_s(workload, at) for workload in wanted}
    _renew(wanted, valid, at=at)
    Host.objects.filter(pk=host.pk).update(last_answered_at=at)
    asked = [] if wanted else port_check.wishes(host, at=at)  # of idle hosts alone
    asked += releases.wishes(host, at=at) if host.is_to_upgrade else []
    unchanged = applied.have_generation == host.generation
    return SyncAnswer(
        generation=host.generation,
        desired=None if unchanged else [_desired(workload, valid[workload.pk]).to_json() for workload in wanted],
        valid_for_s={workload_key(w.reference, w.member, w.epoch): valid[w.pk] for w in wanted},
        scratch=[] if unchanged else workloads.kept_scratch(host.pk),
        drop_volumes=[] if unchanged else volumes.to_drop(host.pk),
        wishes=[*verification.wishes(host, at=at), *executions.wishes(host, at=at), *asked],
        **_common(applied, hold_s=hold_s, at=at),
    )


def nothing_new(applied: Applied, *, hold_s: int) -> SyncAnswer:
    """Return the answer to a quiet sync whose host's generation has not moved since: it renews nothing, asks nothing.

    The time in it is that of the database when the host was heard, and what has passed since.
    """
    assert applied.quiet_at is not None
    assert applied.is_answered
    at = applied.quiet_at + timedelta(seconds=time.monotonic() - applied._since)
    return SyncAnswer(
        generation=applied.generation,
        desired=None if applied.have_generation == applied.generation else [],
        scratch=list(applied.scratch or ()),
        drop_volumes=applied.drop_volumes,
        **_common(applied, hold_s=hold_s, at=at),
    )


def _common(applied: Applied, *, hold_s: int, at: datetime) -> dict[str, Any]:
    return {
        "boot_no": applied.boot_no,
        "seq": applied.seq,
        "acks": applied.acks,
        "need": applied.need,
        "hold_s": hold_s,
        "wait_s": 0 if hold_s else 1,
        "suspect_after_s": settings.HOST_SUSPECT_AFTER_S,
        "silence_limit_s": settings.HOST_SILENCE_LIMIT_S,
        "server_time": at.isoformat().replace("+00:00", "Z"),
    }


def _need_not_last() -> None:
    """Let this transaction commit without waiting for the disk: what it loses, the host says again."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")


def _accept(caller: Caller, request: SyncRequest, *, at: datetime) -> bool:
    """Move the host's number if this request's is higher; within one boot only for the instance that began it."""
    boot, seq = caller.boot_no, caller.seq
    fresh = Q(boot_no__lt=boot) | Q(boot_no=boot, last_seq__lt=seq, instance=request.instance[:64])
    moved = (
        Host.objects.filter(fresh, pk=caller.host_id, key_id=caller.key_id)
        .exclude(state=Host.State.RETIRED)
        .update(
            boot_heard_at=Case(When(boot_no__lt=boot, then=Value(at)), default=F("boot_heard_at")),
            boot_no=boot,
            last_seq=seq,
            last_created=Greatest("last_created", caller.created),
            instance=request.instance[:64],
            boot_id=request.boot_id[:64],
            agent_version=request.version[:32],
            last_heard_at=Greatest(Coalesce("last_heard_at", Value(at)), Value(at), output_field=DateTimeField()),
        )
    )
    return moved == 1


def _refusal(caller: Caller, request: SyncRequest, *, at: datetime) -> AgentReplay:
    """Return the refusal of a number that is not higher; and quarantine the host if another machine has its key.

    A replay cannot be newer than the last request of the instance it copies, since `created` is signed: what is newer
    and comes from another instance was made by a second holder of the key.
    """
    host = Host.objects.get(pk=caller.host_id)
    other = request.instance[:64] != host.instance and caller.created > host.last_created
    if other and host.state != Host.State.RETIRED:
        host_life.quarantine(host_id=host.pk, reason="Two machines use the key of this host.", at=at)
    return AgentReplay("A request of this number or a later one was accepted before.", boot_no=host.boot_no)


def _apply(caller: Caller, request: SyncRequest, *, peer: str, rebooted: bool, at: datetime) -> Applied:
    host = Host.objects.defer("inventory").get(pk=caller.host_id)  # locked by the guarded update
    if rebooted:
        host_events.record(host_id=host.pk, kind="host.rebooted", at=at)
    proven_at = silence.last_proof(caller.heard_at, at=at)
    need, faults = _take_inventory(host, request, peer=peer, proven_at=proven_at, at=at)
    there = list(workloads.live_on(host.pk))
    known = {(w.reference, w.member, w.epoch): w for w in there if w.kind == Workload.Kind.CONTAINER}
    whole = [workload for workload in there if workload.kind == Workload.Kind.MACHINE]
    told = reports.apply_workloads(
        host=host, items=request.workloads, have_generation=request.have_generation,
        engine_up="engine_down" not in request.conditions, known=known, at=at,
    )  # fmt: skip
    for workload in told.stuck:
        _cordon_for(workload, host, at=at)
    leased = {uuid for w in there for uuid in w.spec.get("devices", [])}
    outcome, waiting = reports.apply_devices(
        host=host, items=request.devices, inventory_is_known=not need, leased=leased, rebooted=rebooted,
        proven_at=proven_at, at=at,
    )  # fmt: skip
    if whole:
        machines.see(host, whole, reports=request.devices, at=at)
    if outcome.measured:
        measurements.record(there, outcome.measured, at=at)
    log_acks, log_faults = logs.accept(request.logs, known=_all_of(host, request, known), at=at)
    faults += told.faults + outcome.faults + log_faults
    acks: dict[str, Any] = {"logs": log_acks}
    acks["events"] = _take_events(host, request, at=at)
    acks["receipts"] = receipts.accept(host=host, items=request.receipts, at=at)
    _heard(host, request, at=at)
    asked = verification.consider(host, at=at) if waiting or host.state == Host.State.UNVERIFIED else None
    named = [workload.pk for key, workload in known.items() if key in told.named]
    Workload.objects.filter(pk__in=named).update(reported_at=at)
    _note_faults(host, faults, at=at)
    is_quiet = not there and not SelfTest.objects.filter(host=host, passed=None).exists()
    told_all = is_quiet and request.have_generation != host.generation
    return Applied(
        host_id=host.pk, boot_no=caller.boot_no, seq=caller.seq, have_generation=request.have_generation,
        generation=host.generation, acks={name: value for name, value in acks.items() if value}, need=need,
        urgent=asked is not None or bool(need and request.inventory is None), quiet_at=at if is_quiet else None,
        scratch=workloads.kept_scratch(host.pk) if told_all else None,
        drop_volumes=volumes.to_drop(host.pk) if told_all else [],
    )  # fmt: skip


def _cordon_for(workload: Workload, host: Host, *, at: datetime) -> None:
    """A container that nothing can stop holds its devices until the host is rebooted: nobody new is sent there."""
    reason = f"{workload} cannot be stopped. Reboot the host."
    host.scheduling = host_life.cordon(host_id=host.pk, reason=reason, by="system:agents", at=at).scheduling
    host_events.raise_alarm(kind="workload_stuck", subject=host.public_id, detail=reason, at=at)


def _take_inventory(
    host: Host, request: SyncRequest, *, peer: str, proven_at: datetime, at: datetime
) -> tuple[list[str], list[str]]:
    if request.inventory_hash == host.inventory_hash:
        return [], []
    if request.inventory is None:
        return ["inventory"], []
    fault = inventory.apply(
        host=host, document=request.inventory, stated_hash=request.inventory_hash, peer=peer, proven_at=proven_at,
        at=at,
    )  # fmt: skip
    return (["inventory"], [fault]) if fault else ([], [])


def _take_events(host: Host, request: SyncRequest, *, at: datetime) -> int:
    """Keep each event once, by its number under this key; return the highest number that was taken."""
    highest = 0
    for event in request.events[:EVENT_LIMIT]:
        n, kind = (event.get("n"), event.get("kind")) if isinstance(event, dict) else (None, None)
        if not (isinstance(n, int) and not isinstance(n, bool) and 0 < n < 2**63 and isinstance(kind, str)):
            continue
        row = HostEvent(
            host=host, at=at, kind=f"agent.{kind}"[:40], detail=str(event.get("detail", ""))[:500], key_id=host.key_id,
            n=n, facts={k[:40]: v for k, v in event.items() if k not in NOT_KEPT},
        )  # fmt: skip
        highest = max(highest, n)
        if HostEvent.objects.filter(host=host, key_id=host.key_id, n=n).exists():
            continue
        row.save(force_insert=True)
        if kind == "selftest":
            verification.answered(host, event, at=at)
        elif kind == "exec":
            executions.answered(host, event, at=at)
        elif kind == "volume_gone":
            volumes.dropped(host, event, at=at)
        elif kind in ("upgraded", "upgrade_failed"):
            releases.answered(host, event, at=at)
        elif kind == "listen":
            port_check.answered(host, event, at=at)
    return highest


def _heard(host: Host, request: SyncRequest, *, at: datetime) -> None:
    """The host was silent and speaks again; or says other conditions than before."""
    conditions = sorted({name[:40] for name in request.conditions if isinstance(name, str)})[:32]
    if conditions != host.conditions:
        host_events.record(
            host_id=host.pk, kind="host.conditions", at=at, detail=", ".join(conditions) or "All is well again."
        )
        Host.objects.filter(pk=host.pk).update(conditions=conditions)
        host.conditions = conditions
    if host.state in {Host.State.SUSPECT, Host.State.LOST}:
        back = Host.State.UNVERIFIED if host.tier == Host.Tier.UNVERIFIED else Host.State.ONLINE
        host_life.move(host, back, at=at, reason=f"Heard again after being {host.state}.")


def _renew(wanted: list[Workload], valid: dict[UUID, int], *, at: datetime) -> None:
    """Write how long each may run on after this answer, before the answer leaves; it never moves back."""
    by_seconds: dict[int, list[UUID]] = {}
    for workload in wanted:
        by_seconds.setdefault(valid[workload.pk], []).append(workload.pk)
    for seconds, keys in by_seconds.items():
        until = ExpressionWrapper(Value(at + timedelta(seconds=seconds)), output_field=DateTimeField())
        Workload.objects.filter(pk__in=keys).update(
            last_valid_until=Greatest(Coalesce(F("last_valid_until"), until), until, output_field=DateTimeField())
        )


def _valid_for_s(workload: Workload, at: datetime) -> int:
    left_s = workload.valid_for_s if workload.not_after is None else int((workload.not_after - at).total_seconds())
    return max(0, min(workload.valid_for_s, left_s))


def _desired(workload: Workload, valid_for_s: int) -> DesiredWorkload:
    return DesiredWorkload(
        lease=workload.reference, member=workload.member, epoch=workload.epoch, spec_hash=workload.spec_hash,
        spec=workload.spec, valid_for_s=valid_for_s, stop_grace_s=workload.stop_grace_s, notice=workload.notice,
        expires_at=instant(workload.not_after) if workload.not_after else "", sealed=workload.sealed,
    )  # fmt: skip


def _all_of(host: Host, request: SyncRequest, known: dict[reports.Key, Workload]) -> dict[reports.Key, Workload]:
    """Return the workloads whose output this request carries: also those that are gone, whose last words come late."""
    named = {str(item.get("lease")) for item in request.logs if isinstance(item, dict)}
    late = named - {reference for reference, _, _ in known}
    if not late:
        return known
    rows = Workload.objects.filter(host=host, reference__in=late)
    return known | {(w.reference, w.member, w.epoch): w for w in rows}


def _note_faults(host: Host, faults: list[str], *, at: datetime) -> None:
    """Say once an hour that this host sends items that cannot be right; every sync would flood its diary."""
    if (
        not faults
        or HostEvent.objects.filter(host=host, kind="host.bad_items", at__gt=at - timedelta(hours=1)).exists()
    ):
        return
    detail = "; ".join(faults[:FAULTS_SHOWN])
    host_events.record(host_id=host.pk, kind="host.bad_items", at=at, detail=detail, facts={"count": len(faults)})


def _rebooted(boot_id: str, request: SyncRequest) -> bool:
    return bool(boot_id) and boot_id != request.boot_id[:64]
