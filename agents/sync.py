"""One signed request of a host, taken in: `apply`; then the answer: agents.sync_answers. Each is one transaction.

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

from django.db import connection, transaction
from django.db.models import Case, DateTimeField, F, Q, Value, When
from django.db.models.functions import Coalesce, Greatest

from agents import (
    host_events,
    host_life,
    inventory,
    logs,
    machines,
    measurements,
    quiet,
    receipts,
    reports,
    silence,
    sync_events,
    verification,
    volumes,
    workloads,
)
from agents.models import Host, HostEvent, SelfTest, Workload
from agents.protocol import SyncRequest
from agents.signing import Caller
from apikit.errors import DomainError
from audit import ids

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
            need_not_last()
        if _accept(caller, request, at=at):
            return _apply(caller, request, peer=peer, rebooted=_rebooted(caller.boot_id, request), at=at)
    raise _refusal(caller, request, at=at)


def need_not_last() -> None:
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
    acks["events"] = sync_events.take(host, request, at=at)
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
