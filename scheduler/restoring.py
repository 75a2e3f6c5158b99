"""What must be done after the database was restored to an earlier state, before the first process starts.

In the time that is lost, leases may have been made, moved and ended, and hosts told so. What we now believe to run may
be over; what we believe to be free may be used. The rules (adopt or stop, never let again blindly):

* No use is charged that this database has not heard: meters stop at the last second it knows.
* What still runs as we remember it is adopted, under its own epoch, from the second in which its host is heard again.
* What does not run any more when its host is heard ends. Its tenant may have ended it in the lost time, and starting it
  again would charge him for what he gave back. What its host stopped because it heard nothing from us ran until then:
  its tenant's policy decides, as after any loss.
* No lease of before starts anywhere before everything that hosts may have been told of it has run out (`fenced_until`),
  and then under an epoch beyond those that may have been used (`epochs_lost`).
* What we do not know of is stopped by its host, which starts nothing on a device before the last container has left it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F

from agents import lost_time
from agents.models import Workload
from agents.protocol import NOT_RENEWED, silent_life_s
from audit import log
from leasing import lifecycle, starting
from leasing.models import Lease
from leasing.states import VALID_FOR_S, EndReason, OnInterrupt, State

ACTOR = "system:restore"
EPOCHS = 1_000  # of one lease that no lost time can have held
REASON = "database_restored"
GONE = "The database was restored to an earlier state, and nothing of it ran any more when its host was heard again."


@transaction.atomic
def after_restore(*, at: datetime) -> dict[str, int]:
    """Make a restored database safe to go on with; return what was found. Doing it again does no harm."""
    hosts = lost_time.doubt_everything(at=at)
    live = list(Lease.objects.exclude(state=State.ENDED).order_by("pk"))
    for lease in live:
        lasts_s = silent_life_s(
            valid_for_s=VALID_FOR_S[OnInterrupt(lease.on_interrupt)], stop_grace_s=settings.WORKLOAD_STOP_GRACE_S
        )
        fenced_until = at + timedelta(seconds=lasts_s + settings.FENCE_MARGIN_S)
        Lease.objects.filter(pk=lease.pk).update(epochs_lost=F("epochs_lost") + EPOCHS, fenced_until=fenced_until)
    running = [lease for lease in live if lease.state == State.ACTIVE]
    for lease in running:
        lifecycle.interrupt(lease_id=lease.pk, last_good=_last_heard(lease, at=at), at=at, reason=REASON)
    found = {"hosts": hosts, "leases": len(live), "running": len(running)}
    log.record(
        actor=ACTOR, organization=None, action="database.restored", target="database", after=found,
        why="The database was restored to an earlier state.", at=at,
    )  # fmt: skip
    return found


def _last_heard(lease: Lease, *, at: datetime) -> datetime:
    """Return the last second in which every host of the lease is known to have been heard."""
    heard = [workload.host.last_heard_at for workload in starting.live_workloads(lease)]
    return min([moment for moment in heard if moment is not None], default=at)


def is_fenced(lease: Lease, *, at: datetime) -> bool:
    """Return whether hosts may still run what they were told of this lease in the lost time."""
    return lease.fenced_until is not None and at < lease.fenced_until


def is_over(workloads: Sequence[Workload], *, since: datetime) -> bool:
    """Return whether all its hosts were heard since, and something of it ended there by somebody's will.

    What its own dead-man timer stopped ran until then, so nobody had ended it: its tenant's policy decides, after the
    fence.
    """
    heard = [workload.host.last_heard_at for workload in workloads]
    back = all(moment is not None and moment > since for moment in heard)
    over = [w for w in workloads if w.gone_at is not None or w.exited_at is not None]
    return back and any(workload.failure != NOT_RENEWED for workload in over)


def give_up(lease: Lease, *, at: datetime) -> None:
    lifecycle.end(lease_id=lease.pk, reason=EndReason.OPERATOR, at=at, detail=GONE)
