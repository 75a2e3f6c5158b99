"""New agents for hosts: a signed release is added, rolled out by stages, and stopped where it fails.

Which hosts come first is drawn by version and host, so the same hosts are not the first each time. Each is asked once;
a release that fails on more than FAILING_SHARE of those that were asked stops by itself, and a person is told. Hosts
check signatures for themselves, against the root key that they pinned when they enrolled: this server cannot make one.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet

from agents import host_events, release_text
from agents.models import AgentRelease, AgentUpgrade, Host
from apikit.errors import DomainError
from audit import log

STAGES = (0, 1, 10, 50, 100)
BATCH = 50
ANSWER_WITHIN = timedelta(minutes=15)
FAILING_SHARE = 0.05
ALARM = "agent_release_stopped"
Outcome = AgentUpgrade.Outcome


class ReleaseRefused(DomainError):
    slug = "agent-release-refused"
    title = "This release of the agent cannot be taken"
    status = 422


@transaction.atomic
def add(*, document: Any, wheel: bytes, by: str, at: datetime) -> AgentRelease:
    """Keep a release that is signed as hosts want it; nobody is asked to take it yet. Raises ReleaseRefused."""
    if not settings.AGENT_RELEASE_KEY:
        raise ReleaseRefused("AGENT_RELEASE_KEY is not set: no host would take a release.")
    try:
        release = release_text.read(document, root_key=settings.AGENT_RELEASE_KEY, at=at)
    except release_text.NotGood as fault:
        raise ReleaseRefused(f"Hosts would not take it: {fault}.") from None
    if len(wheel) != release.size or hashlib.sha256(wheel).hexdigest() != release.sha256:
        raise ReleaseRefused("The wheel is not the one that its manifest names.")
    if AgentRelease.objects.filter(version=release.version).exists():
        raise ReleaseRefused(f"There is a release {release.version} already; give this one a higher version.")
    row = AgentRelease.objects.create(
        version=release.version, sha256=release.sha256, document=document, wheel=wheel, added_by=by[:80], added_at=at
    )
    log.record(actor=by, organization=None, action="agent_release.added", target=row.version, why="", at=at)
    return row


@transaction.atomic
def roll_out(*, version: str, percent: int, reason: str, by: str, at: datetime) -> AgentRelease:
    """Ask so many of the hosts, from now on; what was stopped goes on: all on whom it has not proved itself are asked
    again, and what failed before counts no more. Raises ReleaseRefused."""
    row = AgentRelease.objects.select_for_update(no_key=True).defer("wheel").filter(version=version).first()
    if row is None:
        raise ReleaseRefused(f"There is no release {version}.")
    if percent not in STAGES:
        raise ReleaseRefused(f"A release goes to {', '.join(map(str, STAGES))} % of the hosts.")
    if row.stopped_at is not None:
        AgentUpgrade.objects.filter(release=row).exclude(outcome=Outcome.DONE).delete()
    AgentRelease.objects.filter(pk=row.pk).update(percent=percent, stopped_at=None, stopped_why="")
    host_events.settle_alarm(kind=ALARM, subject=version, at=at)
    target = f"{version} {percent} %"
    log.record(actor=by, organization=None, action="agent_release.rolled_out", target=target, why=reason, at=at)
    row.percent, row.stopped_at, row.stopped_why = percent, None, ""
    return row


@transaction.atomic
def stop(*, version: str, reason: str, by: str, at: datetime) -> None:
    """Ask nobody any more. Hosts that run it keep it: a newer release replaces it."""
    row = AgentRelease.objects.select_for_update(no_key=True).defer("wheel").filter(version=version).first()
    if row is None:
        raise ReleaseRefused(f"There is no release {version}.")
    _stop(row, why=reason, at=at)
    log.record(actor=by, organization=None, action="agent_release.stopped", target=version, why=reason, at=at)


def _stop(row: AgentRelease, *, why: str, at: datetime) -> None:
    AgentRelease.objects.filter(pk=row.pk, stopped_at=None).update(stopped_at=at, stopped_why=why[:300])
    AgentUpgrade.objects.filter(release=row, ended_at=None).update(ended_at=at, detail="The release was stopped.")


def bucket(host_id: UUID, version: str) -> int:
    """Return 0 to 99: a host takes a release that is rolled out to more percent than this."""
    return int.from_bytes(hashlib.sha256(f"{version}\n{host_id}".encode()).digest()[:4]) % 100


def tick(*, at: datetime) -> int:
    """Give up whoever did not answer, stop what fails, ask whoever is due; return how many were asked."""
    late = AgentUpgrade.objects.filter(ended_at=None, answer_by__lt=at)
    late.update(ended_at=at, outcome=Outcome.FAILED, detail="It was not heard of again in time.")
    row = _rolling()
    if row is None or _fails(row, at=at):
        return 0
    due = [host.pk for host in _older(row) if bucket(host.pk, row.version) < row.percent][:BATCH]
    return sum(_ask(row, host_id, at=at) for host_id in due)


def _rolling() -> AgentRelease | None:
    """Return the newest release that is rolled out and not stopped."""
    rows = AgentRelease.objects.filter(percent__gt=0, stopped_at=None).defer("wheel")
    return max(rows, key=lambda row: release_text.numbers(row.version), default=None)


def _older(row: AgentRelease) -> list[Host]:
    """Return living hosts with an older agent that were not asked yet. One that is away is asked when it is back."""
    hosts = Host.objects.filter(state__in=[Host.State.ONLINE, Host.State.UNVERIFIED]).exclude(upgrades__release=row)
    return [host for host in hosts.only("id", "agent_version") if _is_older(host.agent_version, row.version)]


def _is_older(version: str, than: str) -> bool:
    try:
        return release_text.numbers(version) < release_text.numbers(than)
    except release_text.NotGood:
        return False


def _ask(row: AgentRelease, host_id: UUID, *, at: datetime) -> int:
    with transaction.atomic():
        Host.objects.select_for_update(no_key=True).only("id").get(pk=host_id)
        _, is_new = AgentUpgrade.objects.get_or_create(
            host_id=host_id, release=row, defaults={"asked_at": at, "answer_by": at + ANSWER_WITHIN}
        )
        Host.objects.filter(pk=host_id).update(generation=F("generation") + 1)  # ends the held request
    return int(is_new)


def _fails(row: AgentRelease, *, at: datetime) -> bool:
    """Stop a release that fails on too many; return whether it does."""
    asked = AgentUpgrade.objects.filter(release=row)
    failed, all_of_them = asked.filter(outcome=Outcome.FAILED).count(), asked.count()
    if failed <= all_of_them * FAILING_SHARE:
        return False
    first = asked.filter(outcome=Outcome.FAILED).order_by("ended_at").first()
    why = f"It failed on {failed} of {all_of_them} hosts: {first.detail if first else ''}"
    with transaction.atomic():
        _stop(row, why=why, at=at)
        host_events.raise_alarm(kind=ALARM, subject=row.version, detail=why, at=at)
    return True


def with_open(hosts: QuerySet[Host], *, at: datetime) -> QuerySet[Any]:
    """Return the hosts, each with `is_to_upgrade`: whether `wishes` has anything for it."""
    return hosts.annotate(
        is_to_upgrade=Exists(AgentUpgrade.objects.filter(host=OuterRef("pk"), ended_at=None, answer_by__gt=at))
    )


def wishes(host: Host, *, at: datetime) -> list[dict[str, Any]]:
    """Return what the next answer asks the host for."""
    rows = AgentUpgrade.objects.filter(host=host, ended_at=None, answer_by__gt=at).select_related("release")
    return [
        {
            "verb": "upgrade",
            "id": f"upgrade {row.pk}",
            "version": row.release.version,
            "release": row.release.document,
        }
        for row in rows.defer("release__wheel")
    ]


def answered(host: Host, event: Mapping[str, Any], *, at: datetime) -> bool:
    """Take in that a release proved itself on a host (`upgraded`), or did not (`upgrade_failed`)."""
    failed = event.get("kind") == "upgrade_failed"
    changed = AgentUpgrade.objects.filter(
        host=host, release__version=str(event.get("version", ""))[:32], ended_at=None
    ).update(ended_at=at, outcome=Outcome.FAILED if failed else Outcome.DONE, detail=str(event.get("detail", ""))[:300])
    return changed == 1


def wheel(sha256: str) -> bytes | None:
    """Return the wheel of a release that hosts are asked to take."""
    row = AgentRelease.objects.filter(sha256=sha256, percent__gt=0, stopped_at=None).values_list("wheel", flat=True)
    return bytes(row[0]) if row else None
