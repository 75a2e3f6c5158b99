"""From anything to `gone`: SIGTERM, grace, SIGKILL, wait; then the end of the log is kept and the container removed."""

import contextlib
from typing import TYPE_CHECKING

from agents.node import cleaning
from agents.node.engines import EngineDown, EngineError, NoSuchContainer
from agents.node.engines.pulling import repository_of
from agents.node.workload import Workload

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler

LOG_TAIL_BYTES = 256 * 1024


def take_down(reconciler: "Reconciler", workload: Workload) -> None:
    """Stop and remove the container of `workload`. What cannot be ended is `stuck`: its devices stay held.

    Raises EngineDown when the engine does not answer: the outcome is unknown, and the next tick looks again.
    """
    engine = reconciler.engine
    already_stuck = workload.step == "stuck"
    if not already_stuck and workload.step != "cleaning":
        reconciler.move(workload, "stopping", detail=workload.detail)
    # By its name: the id may not be known, if we died between a create and its answer.
    try:
        ended = engine.stop(workload.name, grace_s=workload.stop_grace_s)
    except NoSuchContainer:
        ended = True
    if not ended:
        if not already_stuck:
            detail = "it could not be ended; its GPUs stay held until the machine is restarted"
            reconciler.event("stuck", detail, lease=workload.lease, member=workload.member, epoch=workload.epoch)
            reconciler.move(workload, "stuck", detail=detail)
        return
    try:
        with contextlib.suppress(NoSuchContainer):  # gone already, which is what was wanted
            _keep_end(reconciler, workload)
            engine.remove(workload.name)
    except EngineDown:
        raise
    except EngineError as fault:
        reconciler.event("remove_failed", str(fault), lease=workload.lease, member=workload.member)
    _forget_private_image(reconciler, workload)
    reconciler.move(workload, "cleaning", detail=workload.detail)
    workload.handover = cleaning.clean(reconciler, workload)
    reconciler.move(workload, "gone", detail=workload.detail)


def _forget_private_image(reconciler: "Reconciler", workload: Workload) -> None:
    """Remove what was fetched with a login when the last lease that had one is over; what cannot be removed yet stays
    private, so that nobody starts it without a login."""
    repository = repository_of(str(workload.spec.get("image", "")))
    seen_by = reconciler.journal.private_to(repository)
    if workload.lease not in seen_by or _has_other_epoch(reconciler, workload):
        return
    if not seen_by - {workload.lease, ""}:
        try:
            reconciler.engine.remove_images(repository)
        except EngineError as fault:
            reconciler.event("remove_failed", f"{repository}: {fault}", lease=workload.lease, member=workload.member)
        else:
            reconciler.journal.drop_private(repository, lease="")
    reconciler.journal.drop_private(repository, lease=workload.lease)


def _has_other_epoch(reconciler: "Reconciler", workload: Workload) -> bool:
    with reconciler.lock:
        return any(
            other.lease == workload.lease and other is not workload and not other.over
            for other in reconciler.workloads.values()
        )


def _keep_end(reconciler: "Reconciler", workload: Workload) -> None:
    """Keep what the server has not read of the log, and the exit code."""
    state = reconciler.engine.inspect(workload.name)
    if workload.exit_code is None:
        workload.exit_code = state.exit_code
    text = reconciler.engine.logs(state.id, offset=workload.log_offset, limit=LOG_TAIL_BYTES)
    if text:
        reconciler.journal.keep_log_tail(workload.key, first=workload.log_offset, text=text)
