"""A tenant's commands in what he leases: asked of the host as a wish, answered by an event (agents.protocol, "exec").

The host does each once. What came is kept for KEPT; a host's diary does not hold it: it is the tenant's.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from agents.models import Execution, Host, Workload
from apikit.errors import DomainError
from audit import ids

OPEN_LIMIT = 8  # in one member at once
OUTPUT_MOST = 64 * 1024
ANSWER_MARGIN_S = 60  # on top of its own time: for the way there and back, and a turn on the host
KEPT = timedelta(days=7)
SWEEP_LIMIT = 100
PRIVATE = frozenset({"output", "failure"})  # of the event: no part of a host's diary


class NotRunning(DomainError):
    slug = "not-running"
    title = "There is no running container to do that in"


class TooManyOpen(DomainError):
    slug = "too-many-executions"
    title = "Enough commands run in it already"
    status = 429


@transaction.atomic
def ask(*, workload: Workload, argv: Sequence[str], timeout_s: int, by: str, at: datetime) -> Execution:
    """Ask the workload's host to run `argv` in it. Raises NotRunning, TooManyOpen."""
    if workload.step != "ready" or not workload.wanted or workload.kind != Workload.Kind.CONTAINER:
        raise NotRunning("Its container does not run now.", step=workload.step)
    Host.objects.select_for_update(no_key=True).only("id").get(pk=workload.host_id)
    mine = Execution.objects.filter(reference=workload.reference, member=workload.member)
    if mine.filter(answered_at=None, answer_by__gt=at).count() >= OPEN_LIMIT:
        raise TooManyOpen(f"At most {OPEN_LIMIT} commands run in one container at once.")
    _sweep(at=at)
    row = Execution.objects.create(
        host_id=workload.host_id, reference=workload.reference, member=workload.member, epoch=workload.epoch,
        argv=list(argv), timeout_s=timeout_s, asked_by=by[:80], asked_at=at,
        answer_by=at + timedelta(seconds=timeout_s + ANSWER_MARGIN_S),
    )  # fmt: skip
    Host.objects.filter(pk=workload.host_id).update(generation=F("generation") + 1)  # ends the held request
    return row


def _sweep(*, at: datetime) -> None:
    old = Execution.objects.filter(asked_at__lt=at - KEPT).order_by("asked_at").values("pk")[:SWEEP_LIMIT]
    Execution.objects.filter(pk__in=old).delete()


def wishes(host: Host, *, at: datetime) -> list[dict[str, Any]]:
    """Return what the next answer asks the host to run."""
    return [
        {
            "verb": "exec",
            "id": row.public_id,
            "lease": row.reference,
            "member": row.member,
            "epoch": row.epoch,
            "argv": row.argv,
            "timeout_s": row.timeout_s,
            "limit_bytes": OUTPUT_MOST,
        }
        for row in Execution.objects.filter(host=host, answered_at=None, answer_by__gt=at).order_by("asked_at")
    ]


def answered(host: Host, event: Mapping[str, Any], *, at: datetime) -> bool:
    """Take in what came of a command; return whether this host was asked for it. The first answer counts."""
    pk = ids.decode("exec", str(event.get("id", "")))
    if pk is None:
        return False
    code = event.get("exit_code")
    is_code = isinstance(code, int) and not isinstance(code, bool) and -(2**31) <= code < 2**31
    changed = Execution.objects.filter(pk=pk, host=host, answered_at=None).update(
        answered_at=at,
        exit_code=code if is_code else None,
        output=str(event.get("output", "")).replace("\0", "\ufffd")[:OUTPUT_MOST],
        truncated=event.get("truncated") is True,
        failure=str(event.get("failure", ""))[:300],
    )
    return changed == 1


def state(row: Execution, *, at: datetime) -> str:
    """Return "running", "done", or "lost": no answer came in time, and whether it ran is not known."""
    if row.answered_at is not None:
        return "done"
    return "running" if at < row.answer_by else "lost"
