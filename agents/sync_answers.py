"""What a host is answered: what should run there and for how long, what is wished for, and what was taken in."""

import time
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import DateTimeField, ExpressionWrapper, F, Value
from django.db.models.functions import Coalesce, Greatest

from agents import executions, port_check, releases, verification, volumes, workloads
from agents.models import Host, Workload
from agents.protocol import DesiredWorkload, SyncAnswer, workload_key
from agents.sync import Applied, need_not_last
from apikit.instants import instant


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
        need_not_last()
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
