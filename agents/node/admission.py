"""What an answer wants, taken in: what is new is admitted or refused, what is left out is not wanted any more."""

from typing import TYPE_CHECKING

from agents import protocol
from agents.node import health_check, tenant_files
from agents.node.workload import Workload

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler


def take_in(reconciler: "Reconciler", desired: list[protocol.DesiredWorkload]) -> None:
    """Make `desired`, the full list, what the reconciler's workloads are to be. The caller holds its lock."""
    keys = set()
    for row in desired:
        key = (row.lease, row.member, row.epoch)
        keys.add(key)
        known = reconciler.workloads.get(key)
        if known is None:
            _admit(reconciler, row)
        elif known.spec_hash != row.spec_hash:
            reconciler.event_of(known, "refused_epoch", "the same epoch came with another spec; what runs is kept")
        else:
            known.wanted, known.valid_for_s, known.stop_grace_s = True, row.valid_for_s, row.stop_grace_s
            known.sealed, known.expires_at = row.sealed, row.expires_at
            if known.notice != row.notice:
                known.notice = row.notice
                tenant_files.tell(reconciler, known)
    for key, workload in reconciler.workloads.items():
        if workload.wanted and key not in keys:
            workload.wanted = False
            reconciler.save(workload)


def _admit(reconciler: "Reconciler", row: protocol.DesiredWorkload) -> None:
    """Take in a workload never seen before, unless its epoch or its spec forbids it: then it is gone at once."""
    workload = Workload(
        lease=row.lease,
        member=row.member,
        epoch=row.epoch,
        spec_hash=row.spec_hash,
        spec=row.spec,
        valid_for_s=row.valid_for_s,
        stop_grace_s=row.stop_grace_s,
        deadline_s=reconciler.now_s() + row.valid_for_s,
        sealed=row.sealed,
        notice=row.notice,
        expires_at=row.expires_at,
    )
    reconciler.workloads[workload.key] = workload
    fault = _refusal(reconciler, workload)
    if fault is None:
        reconciler.save(workload)
        return
    workload.step = "gone"
    workload.failure, workload.detail = fault
    reconciler.event_of(workload, "refused_epoch" if fault[0] == "stale_epoch" else "refused", fault[1])
    reconciler.told.ring()


def _refusal(reconciler: "Reconciler", workload: Workload) -> tuple[str, str] | None:
    """Return (failure, sentence) when the workload must not be started here, else None."""
    if protocol.digest(workload.spec) != workload.spec_hash:
        return "bad_spec", "the spec does not have the hash that was said to be its own"
    try:
        health_check.of(protocol.WorkloadSpec.from_json(workload.spec))
    except protocol.ProtocolError as fault:
        return "bad_spec", str(fault)
    journal = reconciler.journal
    highest = journal.highest_epoch(lease=workload.lease, member=workload.member, devices=workload.devices)
    if workload.epoch < highest:
        return "stale_epoch", f"epoch {workload.epoch} is over: this host has seen {highest}"
    if workload.epoch <= journal.stopped_epoch(lease=workload.lease, member=workload.member):
        return "stale_epoch", f"epoch {workload.epoch} was stopped here and is not started again"
    return None
