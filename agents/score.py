"""How reliable a host has been, by an open formula: 10,000 less what its mishaps of the last 30 days still weigh.

Each mishap stands in the host's diary and in its ledger of points, and weighs less every second until it weighs nothing
after 30 days. Nothing else counts: not the owner, not the price, not how old a host is, and not a silence that ended
before it was a loss, since that may have been ours. Placement reads the result
(`Host.reliability_bp`, in hundredths of a percent); tenants may ask for a minimum of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction

from agents import host_life
from agents.models import Host, HostEvent, ScoreEntry

FULL_BP = 10_000
WINDOW_S = 30 * 86_400
BATCH = 500
# What a mishap weighs when it is new, in hundredths of a percent; the kinds are those of the diary.
POINTS = {
    "host.lost": -500,
    "host.quarantined": -1_000,
    "host.selftest_failed": -150,
    "host.hardware_changed": -150,
    "device.lost": -300,
    "device.remedy": -150,
    "device.degraded": -75,
}


@dataclass(frozen=True)
class Mishap:
    """One line of the ledger. points: what it weighed when it was new."""

    at: datetime
    points: int


def weight(mishap: Mishap, *, at: datetime) -> int:
    """Return what a mishap still weighs at this instant: linearly less, nothing after the window. Pure."""
    age_s = int((at - mishap.at).total_seconds())
    left_s = max(0, WINDOW_S - max(0, age_s))
    return -(-mishap.points * left_s // WINDOW_S)


def score_bp(mishaps: Iterable[Mishap], *, at: datetime) -> int:
    """Return the score, between 0 and 10,000. Pure."""
    return max(0, FULL_BP + sum(weight(mishap, at=at) for mishap in mishaps))


@dataclass(frozen=True)
class WhatIf:
    """What the score would be: after some days without a mishap, without the heaviest one, and after another loss."""

    after_7_days_bp: int
    after_30_days_bp: int
    without_heaviest_bp: int
    after_another_loss_bp: int


def what_if(mishaps: Iterable[Mishap], *, at: datetime) -> WhatIf:
    """Return the answers to the questions that an owner asks. Pure."""
    known = list(mishaps)
    heaviest = min(known, key=lambda mishap: weight(mishap, at=at), default=None)
    rest = [mishap for mishap in known if mishap is not heaviest]
    return WhatIf(
        after_7_days_bp=score_bp(known, at=at + timedelta(days=7)),
        after_30_days_bp=score_bp(known, at=at + timedelta(days=30)),
        without_heaviest_bp=score_bp(rest, at=at),
        after_another_loss_bp=score_bp([*known, Mishap(at, POINTS["host.lost"])], at=at),
    )


def ledger(host_id: UUID, *, at: datetime) -> list[ScoreEntry]:
    """Return the lines that still weigh, newest first."""
    since = at - timedelta(seconds=WINDOW_S)
    return list(ScoreEntry.objects.filter(host=host_id, at__gt=since).select_related("event").order_by("-at", "-pk"))


def update(*, at: datetime) -> int:
    """Write new mishaps of the diary into the ledger and bring each host's score up to date; return how many changed.

    Level-triggered: what has no line yet gets one, once, whoever runs it how often.
    """
    since = at - timedelta(seconds=WINDOW_S)
    new = HostEvent.objects.filter(kind__in=POINTS, at__gt=since, score_entry__isnull=True).order_by("pk")[:BATCH]
    lines = [ScoreEntry(host_id=e.host_id, event=e, at=e.at, points=POINTS[e.kind]) for e in new]
    ScoreEntry.objects.bulk_create(lines, ignore_conflicts=True)
    weighed = Host.objects.exclude(state=Host.State.RETIRED).exclude(reliability_bp=FULL_BP)
    hosts = {line.host_id for line in lines} | set(weighed.values_list("pk", flat=True))
    return sum(_bring_up_to_date(host_id, at=at) for host_id in sorted(hosts))


@transaction.atomic
def _bring_up_to_date(host_id: UUID, *, at: datetime) -> int:
    host = host_life.lock(host_id)
    now_bp = score_bp((Mishap(line.at, line.points) for line in ledger(host_id, at=at)), at=at)
    # A whole percent tells: placement need not reload a host each minute for a hundredth of one.
    shown_bp = now_bp if now_bp == FULL_BP else now_bp // 100 * 100
    if host.reliability_bp == shown_bp:
        return 0
    Host.objects.filter(pk=host_id).update(reliability_bp=shown_bp)
    return 1
