"""What befalls volumes by themselves: the money goes out and comes back, hosts fall silent, leave, remove what they
were told to. A loop, level-triggered: each look compares what is with what was written, one volume a transaction.

When a wallet is used up its leases end, and its volumes are kept for as long as their reserve lasts: they are
`expiring`, their organization is told until when, and a top-up saves them. A volume whose host is not heard is not
charged from the last second in which it was.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import F

from agents import volumes as on_hosts
from agents.models import Host, HostVolume
from apikit.instants import instant
from audit import ids
from billing import reserves
from leasing import lifecycle, volumes
from leasing.states import EndReason
from leasing.states import State as LeaseState
from leasing.volume_models import Volume

log = logging.getLogger(__name__)
State = Volume.State
# Money that lasts for less than this is none that came in: what a reserve frees is rounded up, and lasts for seconds.
CALM_S = 600
WAITING = (LeaseState.PENDING, LeaseState.PARKED, LeaseState.SCHEDULED)
SILENT = (Host.State.LOST, Host.State.QUARANTINED, Host.State.RETIRED)


def keep(*, at: datetime) -> int:
    """Make one look; return how many volumes were moved."""
    _end_leases(at=at)
    dry = reserves.used_up(at=at)
    calm = reserves.used_up(at=at, within_s=CALM_S)
    live = Volume.objects.filter(made_at__isnull=False)
    burning = live.filter(state=State.READY, organization__in={owner for owner, _ in dry}).order_by("pk")
    moved = _each(_expire, [v.pk for v in burning if _wallet(v) in dry and _costs(v)], at)
    expiring = live.filter(state=State.EXPIRING).order_by("pk")
    moved += _each(_save, [v.pk for v in expiring if _wallet(v) not in calm], at)
    over = live.filter(state=State.EXPIRING, destroy_at__lte=at)
    moved += _each(_destroy, over.values_list("pk", flat=True), at)
    mounted = [State.READY, State.EXPIRING]
    moved += _each(_lose_sight, live.filter(state__in=mounted, host__state__in=SILENT).values_list("pk", flat=True), at)
    gone = live.filter(state=State.UNREACHABLE)
    moved += _each(_see_again, gone.exclude(host__state__in=SILENT).values_list("pk", flat=True), at)
    retired = live.filter(state__in=Volume.LIVE, host__state=Host.State.RETIRED)
    moved += _each(_lose, retired.values_list("pk", flat=True), at)
    moved += _each(_finish, Volume.objects.filter(state=State.DELETING).values_list("pk", flat=True), at)
    short = Volume.objects.filter(pk__in=_short(), state=State.READY).order_by("pk")
    _each(_fill_up, [v.pk for v in short if _wallet(v) not in calm], at)
    return moved + _each(_tell_full, _fuller_than_allowed(), at)


def _wallet(volume: Volume) -> tuple[UUID, str]:
    return volume.organization_id, volume.currency


def _costs(volume: Volume) -> bool:
    return volume.metered and volumes.rate(volume) > 0


def _end_leases(*, at: datetime) -> None:
    """End the leases that wait for a volume which is not to be had any more: for money, or with its host.

    Before its volume's own row is touched: a lease's lock comes first.
    """
    mine = Volume.objects.filter(lease__isnull=False)
    for reason, rows in (
        (EndReason.BALANCE, mine.filter(state=State.EXPIRING, destroy_at__lte=at)),
        (EndReason.HOST_LOST, mine.filter(host__state=Host.State.RETIRED, lease__state__in=WAITING)),
    ):
        for name, lease_id in list(rows.values_list("name", "lease")):
            assert lease_id is not None  # the filter says so
            try:
                lifecycle.end(lease_id=lease_id, reason=reason, at=at, detail=f"Its volume {name} is gone.")
            except Exception:
                log.exception("lease of a volume could not be ended", extra={"lease": str(lease_id)})


def _each(act: Callable[[Volume, datetime], bool], pks: Iterable[UUID], at: datetime) -> int:
    """Do one act to each, in its own transaction: one that fails must not stop the others, and is tried again."""
    done = 0
    for pk in pks:
        try:
            with transaction.atomic():
                done += int(act(volumes.locked(pk), at))
        except Exception:
            log.exception("volume could not be looked after", extra={"volume": str(pk)})
    return done


def _expire(volume: Volume, at: datetime) -> bool:
    since = reserves.used_up(at=at).get(_wallet(volume))
    if since is None or volume.state != State.READY or volume.made_at is None:
        return False
    reserves.begin_drawing(reference=volume.public_id, since=max(since, volume.made_at), at=at)
    reserve = reserves.of(volume.public_id)
    volume.destroy_at = (reserves.ends_at(reserve) if reserve else None) or at
    volumes.enter(volume, State.EXPIRING, at=at, destroy_at=instant(volume.destroy_at))
    return True


def _save(volume: Volume, at: datetime) -> bool:
    if volume.state != State.EXPIRING:
        return False
    reserves.stop_drawing(reference=volume.public_id, at=at)
    volume.destroy_at = None
    reserves.fill_up(reference=volume.public_id, at=at)
    volumes.enter(volume, State.READY, at=at, reason="money_came")
    return True


def _short() -> list[UUID]:
    """Return the volumes of whose reserve not all is held, and that nobody draws on."""
    return [pk for reference in reserves.short() if (pk := ids.decode("volume", reference))]


def _fill_up(volume: Volume, at: datetime) -> bool:
    return volume.state == State.READY and reserves.fill_up(reference=volume.public_id, at=at)


def _destroy(volume: Volume, at: datetime) -> bool:
    if volume.state != State.EXPIRING or volume.destroy_at is None or volume.destroy_at > at or volume.lease:
        return False  # a lease that still ends holds it: the next look is soon
    stopped_at = volume.destroy_at  # a late look costs its organization nothing
    volumes.settle(volume, stopped_at=stopped_at, at=at, cause="money")
    volumes.destroy(volume, reason="money", at=at)
    return True


def _lose_sight(volume: Volume, at: datetime) -> bool:
    host = volume.host
    if host is None or host.state not in SILENT or volume.state not in (State.READY, State.EXPIRING):
        return False
    reserves.stop_drawing(reference=volume.public_id, at=at)
    volumes.stop_meter(volume, stopped_at=_reached_until(host, at), at=at, cause="host_lost")
    volume.destroy_at = None
    volumes.enter(volume, State.UNREACHABLE, at=at, reason="host_lost")
    return True


def _reached_until(host: Host, at: datetime) -> datetime:
    """Return until when what is on a host could be reached; on one in quarantine it cannot, though its agent speaks."""
    heard = host.last_heard_at or at
    return min(heard, host.state_since or heard) if host.state == Host.State.QUARANTINED else heard


def _see_again(volume: Volume, at: datetime) -> bool:
    if volume.state != State.UNREACHABLE or volume.host is None or volume.host.state in SILENT:
        return False
    volumes.start_meter(volume, at=at)
    volumes.enter(volume, State.READY, at=at, reason="host_back")
    return True


def _lose(volume: Volume, at: datetime) -> bool:
    if volume.state not in Volume.LIVE or volume.lease is not None:
        return False
    heard = volume.host.last_heard_at if volume.host else None
    reserves.stop_drawing(reference=volume.public_id, at=at)
    volumes.settle(volume, stopped_at=heard or at, at=at, cause="host_lost")
    on_hosts.drop(reference=volume.public_id, at=at)
    volumes.over(volume, State.LOST, reason="host_left", at=at)
    return True


def _finish(volume: Volume, at: datetime) -> bool:
    if volume.state != State.DELETING:
        return False
    if volume.host is not None and volume.host.state == Host.State.RETIRED:
        HostVolume.objects.filter(reference=volume.public_id, gone_at=None).update(gone_at=at)
    if on_hosts.is_there(volume.public_id):
        return False
    volumes.over(volume, State.DELETED, reason=volume.ended_reason, at=at)
    return True


def _fuller_than_allowed() -> list[UUID]:
    """Return the volumes that hold more than their size, where the host's file system does not keep them to it."""
    rows = HostVolume.objects.filter(gone_at=None, used_mib__isnull=False).filter(used_mib__gt=F("size_mib"))
    references = list(rows.values_list("reference", flat=True))
    if not references:
        return []
    mine = Volume.objects.filter(told_full=False, place__in=rows.values_list("place", flat=True))
    return list(mine.filter(state__in=Volume.LIVE).values_list("pk", flat=True))


def _tell_full(volume: Volume, at: datetime) -> bool:
    volume.told_full, volume.version = True, volume.version + 1
    volume.save(update_fields=["told_full", "version"])
    volumes.tell(volume, "volume.full", at=at, size_gib=volume.size_gib)
    return True
