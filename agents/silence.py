"""Who has fallen silent: suspect after HOST_SUSPECT_AFTER_S, lost after HOST_SILENCE_LIMIT_S. A loop, level-triggered.

A verdict too early on silence costs customers their runs, so there are two brakes. *The breaker*: if more than
max(3, 20 %) of the live hosts fell silent within 60 s of each other, it is rather we who do not hear; nobody of them is
declared lost, one alarm is raised, and it stays so until they are heard again or an operator decides (`declare_lost`).
*The grace*: a host that was not heard since we began to listen without a gap is not lost before
HOST_SILENCE_GRACE_AFTER_START_S. We began to listen anew when the sweep itself had paused.

Charging does not wait for the verdict: whoever charges reads `last_heard_at`, and no second after it is billed.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Count

from agents import host_events, host_life
from agents.models import Host, Sweep

BREAKER_HOSTS, BREAKER_PERCENT, BREAKER_WINDOW_S = 3, 20, 60
PAUSE_S = 15  # a sweep that comes later than this after the last one has itself been away
ALARM = "many_hosts_silent"
AT_ONCE = 100  # hosts that are moved in one transaction
State = Host.State
SWEPT = (State.ONLINE, State.SUSPECT)


def sweep(*, at: datetime) -> int:
    """Make silent hosts suspect and lost; return how many moved. Two sweeps at once do no harm.

    Only a host that would move is locked: thousands that are silent together wait here for long, and each lock is one
    that a sync of such a host would have to wait for.
    """
    listening_since = _note_sweep(at=at)
    silent_since = at - timedelta(seconds=settings.HOST_SUSPECT_AFTER_S)
    silent = list(
        Host.objects.filter(state__in=(*SWEPT, State.LOST), last_heard_at__lte=silent_since).only(
            "state", "last_heard_at"
        )
    )
    held_back = _cohort(silent, at=at)
    moving = sorted(
        host.pk for host in silent if _next(host, held_back=held_back, listening_since=listening_since, at=at)
    )
    return sum(
        _judge(moving[i : i + AT_ONCE], held_back=held_back, listening_since=listening_since, at=at)
        for i in range(0, len(moving), AT_ONCE)
    )


def is_lost(host: Host, *, at: datetime) -> bool:
    """Return whether nothing on this host can be counted on: lost or retired, or quarantined and silent as well."""
    if host.state in {Host.State.LOST, Host.State.RETIRED}:
        return True
    limit = at - timedelta(seconds=settings.HOST_SILENCE_LIMIT_S)
    return host.state == Host.State.QUARANTINED and (host.last_heard_at is None or host.last_heard_at <= limit)


def heard_until(host: Host, *, at: datetime) -> datetime:
    """Return up to when use of this host is proven: now, or the last sync once it is silent for too long."""
    if host.last_heard_at is None:
        return at
    silent_since = at - timedelta(seconds=settings.HOST_SUSPECT_AFTER_S)
    return host.last_heard_at if host.last_heard_at <= silent_since else at


def last_proof(heard_at: datetime | None, *, at: datetime) -> datetime:
    """Return until when that is proven which a report received at `at` says has ended.

    That is now; but after a silence, in which it may have ended with the first second, the report before (`heard_at`).
    """
    is_silence = heard_at is not None and at - heard_at >= timedelta(seconds=settings.HOST_SUSPECT_AFTER_S)
    return heard_at if heard_at is not None and is_silence else at


@transaction.atomic
def declare_lost(*, host_id: UUID, reason: str, by: str, at: datetime) -> Host:
    """An operator's verdict over the breaker and the grace, on a host that is suspect."""
    host = host_life.lock(host_id)
    host_life.move(host, Host.State.LOST, at=at, reason=reason, by=by)
    return host


@transaction.atomic
def _note_sweep(*, at: datetime) -> datetime:
    """Write the progress of this loop; return since when we listen without a gap."""
    progress, is_first = Sweep.objects.select_for_update().get_or_create(
        id=1, defaults={"swept_at": at, "listening_since": at}
    )
    if not is_first and at - progress.swept_at > timedelta(seconds=PAUSE_S):
        progress.listening_since = at
    progress.swept_at = max(progress.swept_at, at)
    progress.save(update_fields=["swept_at", "listening_since"])
    return progress.listening_since


def _cohort(silent: Sequence[Host], *, at: datetime) -> set[UUID]:
    """Return the silent hosts that fell silent with too many others, and keep the alarm in step with that.

    Hosts that are lost already count among the others: they may have been the first of many.
    """
    live = Host.objects.filter(state__in=(*SWEPT, State.LOST)).aggregate(n=Count("pk"))["n"]
    limit = max(BREAKER_HOSTS, live * BREAKER_PERCENT // 100)
    window = timedelta(seconds=BREAKER_WINDOW_S)
    by_time = sorted((host.last_heard_at or at, host.pk) for host in silent)
    held: set[UUID] = set()
    start = 0
    for end, (moment, _) in enumerate(by_time):
        while moment - by_time[start][0] > window:
            start += 1
        if end - start + 1 > limit:
            held |= {host_id for _, host_id in by_time[start : end + 1]}
    _tell_of_the_breaker(held, live, waiting=any(h.state in SWEPT and h.pk in held for h in silent), at=at)
    return held


@transaction.atomic
def _tell_of_the_breaker(held: set[UUID], live: int, *, waiting: bool, at: datetime) -> None:
    if waiting:
        detail = f"{len(held)} of {live} hosts fell silent within {BREAKER_WINDOW_S} s; none is declared lost."
        host_events.raise_alarm(kind=ALARM, detail=detail, at=at, facts={"silent": len(held), "live": live})
        Sweep.objects.filter(id=1, breaker_since__isnull=True).update(breaker_since=at)
    else:
        host_events.settle_alarm(kind=ALARM, at=at)
        Sweep.objects.filter(id=1, breaker_since__isnull=False).update(breaker_since=None)


def _next(host: Host, *, held_back: set[UUID], listening_since: datetime, at: datetime) -> State | None:
    """Return what a silent host becomes next, None: nothing else than it is."""
    if host.last_heard_at is None:
        return None
    silence = at - host.last_heard_at
    if host.state == State.ONLINE:
        return State.SUSPECT if silence >= timedelta(seconds=settings.HOST_SUSPECT_AFTER_S) else None
    if host.state != State.SUSPECT or host.pk in held_back:
        return None
    if host.last_heard_at < listening_since:
        # It was alive when we stopped listening: it has the grace to find us again.
        grace = timedelta(seconds=settings.HOST_SILENCE_GRACE_AFTER_START_S)
        if at - listening_since < grace:
            return None
    return State.LOST if silence >= timedelta(seconds=settings.HOST_SILENCE_LIMIT_S) else None


@transaction.atomic
def _judge(host_ids: Sequence[UUID], *, held_back: set[UUID], listening_since: datetime, at: datetime) -> int:
    """Move hosts as far as their silence goes. They are read again under their locks: they may have been heard.

    One that somebody else holds is being heard or changed at this moment, and is left to the next sweep.
    """
    rows = Host.objects.select_for_update(no_key=True, skip_locked=True).filter(pk__in=host_ids, state__in=SWEPT)
    hosts = list(rows.defer("inventory").order_by("pk"))
    moved: set[UUID] = set()
    for to in (State.SUSPECT, State.LOST):
        next_ones = [
            host for host in hosts if _next(host, held_back=held_back, listening_since=listening_since, at=at) == to
        ]
        reasons = {host.pk: f"Silent for {int((at - (host.last_heard_at or at)).total_seconds())} s." for host in hosts}
        host_life.move_all(next_ones, to, at=at, reasons=reasons)
        moved |= {host.pk for host in next_ones}
    return len(moved)
