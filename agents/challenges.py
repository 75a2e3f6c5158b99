"""What a host's tests have shown of it, and when it is asked again without notice.

L0  the agent with this key answered a challenge of ours in time, for each device, and its own checks passed.
L1  it also measured each device, and the figures are what the model does (agents.baselines).
L2  three such tests, each with a seed of its own and after a pause that nobody but us knows, agreed with each other
    within 15 %: no figure from a drawer, and no device borrowed for a minute.

Asked for: at enrolment and after every change of hardware or health; L1 weekly and L2 monthly while nothing runs on the
host. The day is not announced: it lies between one half and the whole of the period, by a number that only the control
plane can compute. What was shown holds for 30 days. A host's root can still answer for hardware that he has elsewhere;
attestation alone would end that. `certified` is a contract of the operator's, and needs an L2 that still holds.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from agents import baselines, host_events, host_life
from agents.models import Host, SelfTest, Workload
from apikit.errors import DomainError
from audit import log

ROUNDS = 3
ROUNDS_AGREE_PERCENT = 15
PERIODS = {"L2": timedelta(days=30), "L1": timedelta(days=7)}
HOLDS = timedelta(days=30)
PAUSE_LEAST_S, PAUSE_MOST_S = 20, 200  # between the rounds of an L2
BATCH = 50
LOOKED_AT = 200  # at one tick; what is left comes at the next
Figures = Mapping[str, Mapping[str, float]]


class NotShown(DomainError):
    slug = "not-verified"
    title = "The host has not shown enough for that"


def shown(test: SelfTest, figures: Figures) -> str:
    """Return the level that a passed test shows; of an L2 the last round alone shows it."""
    if not figures or not all(figures.get(uuid) for uuid in test.devices):
        return "L0"
    return "L2" if test.asked_level == "L2" and test.round >= ROUNDS else "L1"


def disagree(test: SelfTest, figures: Figures) -> dict[str, str]:
    """Return the devices whose figures are not those of the round before."""
    if test.asked_level != "L2" or test.round == 1:
        return {}
    before = SelfTest.objects.filter(host=test.host_id, asked_level="L2", round=test.round - 1, passed=True)
    last = before.order_by("-asked_at").first()
    found = {}
    for uuid, row in (last.figures if last else {}).items():
        for name, was in row.items():
            now = figures.get(uuid, {}).get(name)
            if now is None or abs(now - was) * 100 > was * ROUNDS_AGREE_PERCENT:
                found[uuid] = f"{name}: {was} in one round and {now} in the next"
    return found


def fallen_behind(host: Host, test: SelfTest, figures: Figures) -> dict[str, str]:
    """Return the devices that are below their own record for the second time in a row, with the figure."""
    if not any(figures.values()):
        return {}
    earlier = SelfTest.objects.filter(host=host, passed=True).exclude(pk=test.pk).exclude(figures={})
    tests = list(earlier.order_by("-asked_at").values_list("figures", flat=True)[: baselines.RECORD_TESTS + 1])
    found = {uuid: baselines.fell_behind(tests, row, uuid) for uuid, row in figures.items()}
    return {uuid: why for uuid, why in found.items() if why is not None}


def best(host: Host, level: str, *, at: datetime) -> dict[str, Any]:
    """Return the columns of the level that holds now: this one, or a higher one that was shown within 30 days."""
    if host.level > level and host.level_at is not None and at - host.level_at < HOLDS:
        return {"challenge_at": None}
    host.level, host.level_at = level, at
    return {"level": level, "level_at": at, "challenge_at": None}


def due(*, at: datetime) -> list[tuple[UUID, str, int]]:
    """Return what idle hosts are to be asked for now: (host, level, round)."""
    found: list[tuple[UUID, str, int]] = []
    busy = Workload.objects.filter(host=OuterRef("pk"), gone_at__isnull=True)
    open_test = SelfTest.objects.filter(host=OuterRef("pk"), passed__isnull=True)
    idle = Host.objects.filter(~Exists(busy), ~Exists(open_test), state=Host.State.ONLINE, scheduling="open")
    asked = idle.filter(Q(challenge_at=None) | Q(challenge_at__lte=at)).values_list("pk", flat=True)
    for host_id in asked[:LOOKED_AT]:
        when, level, round = _next(host_id)
        if level and when <= at:
            found.append((host_id, level, round))
        else:
            Host.objects.filter(pk=host_id).update(challenge_at=when)
        if len(found) >= BATCH:
            break
    return found


def _next(host_id: UUID) -> tuple[datetime, str, int]:
    """Return when to ask the host for what; a level of "": nothing before it has passed its first test."""
    rows = SelfTest.objects.filter(host=host_id, passed=True)
    last_long = rows.filter(asked_level="L2").order_by("-asked_at").first()
    if last_long is not None and last_long.round < ROUNDS:
        pause_s = PAUSE_LEAST_S + int(_secret(last_long) * (PAUSE_MOST_S - PAUSE_LEAST_S))
        return last_long.asked_at + timedelta(seconds=pause_s), "L2", last_long.round + 1
    first, last = rows.order_by("asked_at").first(), rows.order_by("-asked_at").first()
    if first is None or last is None:
        return datetime.max.replace(tzinfo=UTC), "", 0
    since = {"L2": last_long or first, "L1": last}
    times = [(of.asked_at + PERIODS[level] * (0.5 + _secret(of) / 2), level, 1) for level, of in since.items()]
    return min(times)


def _secret(test: SelfTest) -> float:
    """Return a number in [0, 1) that stays the same for a test and that nobody else can compute."""
    key = bytes.fromhex(settings.CONTROL_SIGNING_KEY)
    digest = hmac.new(key, b"challenge|" + test.pk.bytes, hashlib.sha256).digest()
    return int.from_bytes(digest[:6]) / 2**48


@transaction.atomic
def certify(*, host_id: UUID, reason: str, by: str, at: datetime) -> Host:
    """Raise a verified host to `certified`: by an operator, who names the contract. Raises NotShown without an L2."""
    host = host_life.lock(host_id)
    if host.tier == Host.Tier.CERTIFIED:
        return host
    if host.level != "L2" or host.level_at is None or at - host.level_at >= HOLDS:
        raise NotShown("It takes an L2 of the last 30 days.", level=host.level or None)
    return _move_tier(host, Host.Tier.CERTIFIED, reason=reason, by=by, at=at)


@transaction.atomic
def uncertify(*, host_id: UUID, reason: str, by: str, at: datetime) -> Host:
    host = host_life.lock(host_id)
    if host.tier != Host.Tier.CERTIFIED:
        return host
    return _move_tier(host, Host.Tier.VERIFIED, reason=reason, by=by, at=at)


def _move_tier(host: Host, tier: str, *, reason: str, by: str, at: datetime) -> Host:
    was, host.tier, host.version = host.tier, tier, host.version + 1
    Host.objects.filter(pk=host.pk).update(tier=tier, version=host.version)
    facts = {"from": was, "to": str(tier)}
    host_events.record(host_id=host.pk, kind=f"host.{tier}", detail=reason, by=by, at=at, facts=facts)
    log.record(
        actor=by, organization=host.owner_id, action=f"host.{tier}", target=host.public_id, before=was, after=tier,
        why=reason, at=at,
    )  # fmt: skip
    return host
