"""What can happen to a host. Nothing else writes `Host.state` and `Host.scheduling`.

Order of locks: host, then its devices and workloads. Whatever changes what may be placed on a host writes its line in
the change log of capacity in the same transaction.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F

from agents import availability, fence, host_events
from agents.models import Host, HostEvent, Workload
from apikit import statements
from apikit.errors import DomainError, InvalidInput, NotFound
from audit import log
from outbox import messages

State, Scheduling = Host.State, Host.Scheduling

NEXT: Mapping[str, frozenset[str]] = {
    State.UNVERIFIED: frozenset({State.ONLINE, State.QUARANTINED, State.RETIRED}),
    State.ONLINE: frozenset({State.SUSPECT, State.UNVERIFIED, State.QUARANTINED, State.RETIRED}),
    State.SUSPECT: frozenset({State.ONLINE, State.LOST, State.UNVERIFIED, State.QUARANTINED, State.RETIRED}),
    State.LOST: frozenset({State.ONLINE, State.UNVERIFIED, State.QUARANTINED, State.RETIRED}),
    State.QUARANTINED: frozenset({State.UNVERIFIED, State.RETIRED}),
    State.RETIRED: frozenset(),
}


class WrongHostState(DomainError):
    slug = "invalid-transition"
    title = "The host is not in a state for that"


class HostIsBusy(DomainError):
    slug = "host-is-busy"
    title = "Something still runs on the host"


def lock(host_id: UUID) -> Host:
    """Return the host, locked until the end of the transaction. Raises NotFound."""
    host = Host.objects.select_for_update(no_key=True).filter(pk=host_id).first()
    if host is None:
        raise NotFound("There is no such host.")
    return host


def move(host: Host, to: str, *, at: datetime, reason: str, by: str = "") -> None:
    """Change the state and record the move, or raise WrongHostState. The caller holds the row lock.

    The same state again changes nothing: the first reason stands.
    """
    if host.state == to:
        return
    if to not in NEXT[host.state]:
        raise WrongHostState(f"A host that is {host.state} cannot become {to}.", state=host.state)
    was, host.state, host.state_reason, host.state_since = host.state, to, reason[:300], at
    host.version += 1
    Host.objects.filter(pk=host.pk).update(
        state=to, state_reason=host.state_reason, state_since=at, version=host.version
    )
    facts = {"from": was, "to": to}
    event = host_events.record(host_id=host.pk, kind=f"host.{to}", detail=reason, by=by, at=at, facts=facts)
    _tell(host, f"host.{to}", event.pk, at=at)
    if by:
        _audit(host, f"host.{to}", before={"state": was}, after={"state": to}, reason=reason, by=by, at=at)


def move_all(hosts: Sequence[Host], to: str, *, at: datetime, reasons: Mapping[UUID, str]) -> int:
    """`move` many hosts, each with its reason, by four statements; return how many moved. The caller holds their locks.

    A host that cannot become `to` is left as it is.
    """
    moving = [host for host in hosts if to in NEXT[host.state]]
    facts = {host.pk: {"from": host.state, "to": to} for host in moving}
    for host in moving:
        host.state, host.state_reason, host.state_since = to, reasons[host.pk][:300], at
        host.version += 1
    for reason in {host.state_reason for host in moving}:
        alike = [host.pk for host in moving if host.state_reason == reason]
        Host.objects.filter(pk__in=alike).update(
            state=to, state_reason=reason, state_since=at, version=F("version") + 1
        )
    kind = f"host.{to}"
    events = [
        HostEvent(host_id=host.pk, kind=kind, detail=reasons[host.pk][:500], facts=facts[host.pk], at=at)
        for host in moving
    ]
    told = [_news(host, kind, event.pk) for host, event in zip(moving, statements.insert_all(events), strict=True)]
    messages.post_all([post for post in told if post is not None], at=at)
    return len(moving)


@transaction.atomic
def cordon(*, host_id: UUID, reason: str, by: str, at: datetime) -> Host:
    """Take no new lease; what runs goes on. A host that is draining goes on draining."""
    host = lock(host_id)
    if host.scheduling == Scheduling.OPEN:
        _schedule(host, Scheduling.CORDONED, reason=reason, by=by, at=at, deadline=None)
    return host


@transaction.atomic
def uncordon(*, host_id: UUID, by: str, at: datetime, reason: str = "") -> Host:
    """Open the host for new leases again; also ends a drain that is not over."""
    host = lock(host_id)
    if host.state == State.RETIRED:
        raise WrongHostState("The host has left the pool.", state=host.state)
    if host.scheduling != Scheduling.OPEN:
        _schedule(host, Scheduling.OPEN, reason=reason, by=by, at=at, deadline=None)
    return host


@transaction.atomic
def drain(*, host_id: UUID, deadline: datetime, reason: str, by: str, at: datetime) -> Host:
    """Take no new lease, and have what runs ended by `deadline`, by whoever wants it; a later call moves it."""
    host = lock(host_id)
    if host.state == State.RETIRED:
        raise WrongHostState("The host has left the pool.", state=host.state)
    if (host.scheduling, host.drain_deadline) != (Scheduling.DRAINING, deadline):
        _schedule(host, Scheduling.DRAINING, reason=reason, by=by, at=at, deadline=deadline)
    return host


@transaction.atomic
def retire(*, host_id: UUID, reason: str, by: str, at: datetime) -> Host:
    """Take the host out of the pool for good: its key is void from now on. Raises HostIsBusy while something runs.

    A host that is lost will acknowledge nothing any more. What was given up on it is taken for gone once its dead-man
    timers have surely passed (agents.fence); what it was paid for ends at the last second in which it was heard.
    """
    host = lock(host_id)
    if host.state == State.RETIRED:
        return host
    left = list(Workload.objects.filter(host=host, gone_at__isnull=True))
    if left:
        _check_abandoned(host, left, at=at)
        Workload.objects.filter(pk__in=[workload.pk for workload in left]).update(
            gone_at=at, step="gone", detail="Its host was retired unheard."
        )
        facts = {"workloads": [f"{workload}" for workload in left]}
        host_events.record(host_id=host.pk, kind="host.abandoned", detail=reason, by=by, at=at, facts=facts)
    move(host, State.RETIRED, at=at, reason=reason, by=by)
    Host.objects.filter(pk=host.pk).update(key_id="", signing_key="", sealing_key="")
    host.key_id = host.signing_key = host.sealing_key = ""
    return host


def _check_abandoned(host: Host, left: list[Workload], *, at: datetime) -> None:
    """Raise HostIsBusy unless the host is lost and nothing of `left` can run on it any more."""
    facts: dict[str, Any] = {"workloads": len(left)}
    heard_at = host.last_heard_at
    silent = heard_at is None or at - heard_at >= timedelta(seconds=settings.HOST_SILENCE_LIMIT_S)
    if not (silent and host.state in {State.LOST, State.QUARANTINED}):
        raise HostIsBusy(f"{len(left)} workloads are on the host; drain it first.", **facts)
    if any(workload.wanted for workload in left):
        detail = "Leases still wait for this host to come back; drain it with a deadline of now, and they do not."
        raise HostIsBusy(detail, **facts)
    if any(workload.kind == Workload.Kind.MACHINE for workload in left):
        raise HostIsBusy("It was let as a whole machine and is not taken back; an operator settles that.", **facts)
    safe = [moment for workload in left if (moment := fence.safe_at(workload)) is not None]
    if max(safe) > at:
        when = max(safe).strftime("%Y-%m-%dT%H:%M:%SZ")
        raise HostIsBusy(f"Its containers may run on until {when}; retire it then.", **facts, safe_at=when)


@transaction.atomic
def quarantine(*, host_id: UUID, reason: str, at: datetime, by: str = "") -> Host:
    """Take the host out because its identity cannot be trusted; only an operator lets it back (`release`)."""
    host = lock(host_id)
    if host.state != State.RETIRED:
        move(host, State.QUARANTINED, at=at, reason=reason, by=by)
        host_events.raise_alarm(kind="host_quarantined", subject=host.public_id, detail=reason, at=at)
    return host


@transaction.atomic
def release(*, host_id: UUID, reason: str, by: str, at: datetime) -> Host:
    """Let a quarantined host start again as unverified. By an operator, with the reason."""
    host = lock(host_id)
    move(host, State.UNVERIFIED, at=at, reason=reason, by=by)
    Host.objects.filter(pk=host.pk).update(tier=Host.Tier.UNVERIFIED, verified_at=None, level="", level_at=None)
    host_events.settle_alarm(kind="host_quarantined", subject=host.public_id, at=at)
    return host


@transaction.atomic
def edit(*, host_id: UUID, changes: Mapping[str, Any], by: str, at: datetime) -> Host:
    """Change what is the owner's to choose: price_floor_micros, access, hours, hours_time_zone, name.

    A price floor, a class or hours count for leases made from now on. Raises InvalidInput, NotFound.
    """
    host = lock(host_id)
    hours, zone = changes.get("hours", host.hours), changes.get("hours_time_zone", host.hours_time_zone)
    if faults := availability.faults(hours, zone):
        raise InvalidInput.of(list(faults))
    before = {name: getattr(host, name) for name in changes if getattr(host, name) != changes[name]}
    if not before:
        return host
    for name in before:
        setattr(host, name, changes[name])
    host.version += 1
    host.save(update_fields=[*before, "version"])
    after = {name: changes[name] for name in before}
    host_events.record(host_id=host.pk, kind="host.edited", by=by, at=at, facts={"before": before, "after": after})
    _audit(host, "host.edited", before=before, after=after, reason="", by=by, at=at)
    return host


def _schedule(host: Host, to: str, *, reason: str, by: str, at: datetime, deadline: datetime | None) -> None:
    was, host.scheduling, host.scheduling_reason, host.drain_deadline = host.scheduling, to, reason[:300], deadline
    host.version += 1
    host.save(update_fields=["scheduling", "scheduling_reason", "drain_deadline", "version"])
    facts = {"from": was, "to": to} | ({"deadline": deadline.isoformat()} if deadline else {})
    kind = {Scheduling.OPEN: "host.uncordoned", Scheduling.CORDONED: "host.cordoned"}.get(
        Scheduling(to), "host.draining"
    )
    host_events.record(host_id=host.pk, kind=kind, detail=reason, by=by, at=at, facts=facts)
    _audit(host, kind, before={"scheduling": was}, after={"scheduling": to}, reason=reason, by=by, at=at)


def _tell(host: Host, topic: str, event_id: int, *, at: datetime) -> None:
    post = _news(host, topic, event_id)
    if post is not None:
        messages.post_all([post], at=at)


def _news(host: Host, topic: str, event_id: int) -> messages.Post | None:
    """Return what the owner's webhooks may wait for, if this is such."""
    if topic not in {"host.suspect", "host.lost", "host.online"}:
        return None
    payload = {"id": host.public_id, "version": host.version}
    return messages.Post(topic, f"{topic} {event_id}", payload, host.owner_id)


def _audit(host: Host, action: str, *, before: Any, after: Any, reason: str, by: str, at: datetime) -> None:
    log.record(
        actor=by, organization=host.owner_id, action=action, target=host.public_id, before=before, after=after,
        why=reason, at=at,
    )  # fmt: skip
