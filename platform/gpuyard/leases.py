"""Leases: ask for GPUs, follow them, act on them, end them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

from gpuyard.calls import Call, ask, exchange, patiently
from gpuyard.errors import LeaseEnded, WaitTimedOut
from gpuyard.json_object import Object
from gpuyard.methods import Resource, flow, listing, operation, stream
from gpuyard.objects import Charges, EventPage, Execution, Lease, LeaseEvent, LogPage, LogPiece, Member, Metrics, Plan
from gpuyard.transport import Emit, Flow, Sleep, Stream

_POLL_S = 30  # the longest that a poll asks to be held
_PATIENCE_S = 300.0  # how long a server that went away is waited for while a lease is followed
_EXEC_POLL_S = 0.3
_SHORTEST_POLL_S = 1.0  # a server that does not hold polls back must not be asked in a tight loop


class LeaseFields(TypedDict, total=False):
    """What a lease is asked for with.

    request: the one-line form, e.g. "A100_80G x4", or its JSON; else gpu_model, node_count, gpu_count (per node).
    image or image_id: a catalogue slug or an image reference; bare=True for a machine without one.
    term or lease_term: "on_demand", "spot", "2h", "P1M", or
        {"kind", "period", "renew", "start_at", "end_at" or "duration_s"}.
    command: a list of words, never a shell line. secrets: names of stored values. registry_secret: of the one that logs
    in to the image's registry. jupyter: start the image's Jupyter. health: {"port", "path"} or {"command"}, which says
    when the container is ready. read_only: nothing in it can be written but /tmp (in memory) and /scratch.
    notice_s: of a spot lease, 0, 120 or 600, each at its own price. may_move: it may be restarted elsewhere, after its
    notice, to make room for a large request.
    on_interrupt: restart_elsewhere, wait_for_host or end. on_exit: end or restart. if_no_capacity: queue or refuse.
    """

    request: str | Mapping[str, Any]
    gpu_model: str
    node_count: int
    gpu_count: int
    image: str
    image_id: str
    bare: bool
    term: str | Mapping[str, Any]
    lease_term: str | Mapping[str, Any]
    constraints: Mapping[str, Any]
    env: Mapping[str, str]
    secrets: Any
    command: Sequence[str]
    ports: Sequence[Any]
    volumes: Sequence[Any]
    ssh_keys: Sequence[str]
    on_interrupt: str
    on_exit: str
    notice_s: int
    may_move: bool
    registry_secret: str
    jupyter: bool
    health: Mapping[str, Any]
    read_only: bool
    if_no_capacity: str
    quote: str
    name: str
    labels: Mapping[str, str]


class Leases[M](Resource[M]):
    @operation("lease_create", "POST", "/leases")
    def create(self, /, **fields: Unpack[LeaseFields]) -> Call[Lease]:
        """Ask for GPUs (see LeaseFields). The answer comes at once, usually `pending`; `wait` follows it.

        Raises InsufficientFunds, GpuQuotaExceeded, BudgetExceeded, ValidationError; NoCapacity if it is not to queue.
        """
        return Call(Lease, body=fields)

    @flow
    def plan(self, /, **fields: Unpack[LeaseFields]) -> Flow[Plan]:
        """Check and price what `create` with the same fields would do, and write nothing (a dry run)."""
        manner = dataclasses.replace(self._manner, dry_run=True)
        return (yield from ask(Leases.create.operation, Call(Plan, body=fields), manner))

    @listing("lease_list", "/leases")
    def list(self, /, *, limit: int | None = None, **filters: Any) -> Call[Lease]:
        """Iterate over the organization's leases, newest first. limit: the size of a page, 1-100."""
        return Call(Lease, query={"limit": limit, **filters})

    @operation("lease_get", "GET", "/leases/{id}")
    def get(self, lease_id: str, /) -> Call[Lease]:
        return Call(Lease, (lease_id,))

    @operation("lease_update", "PATCH", "/leases/{id}")
    def update(self, lease_id: str, /, *, if_match: str, **changes: Any) -> Call[Lease]:
        """Change name, labels, ssh_keys or on_interrupt. if_match: the lease's `etag`, so that no edit is lost."""
        return Call(Lease, (lease_id,), body=changes, headers={"If-Match": if_match})

    @operation("lease_delete", "DELETE", "/leases/{id}")
    def delete(self, lease_id: str, /) -> Call[Lease]:
        """Cancel the lease if it never ran, else end it. Doing it again changes nothing."""
        return Call(Lease, (lease_id,))

    @operation("lease_cancel", "POST", "/leases/{id}/actions/cancel")
    def cancel(self, lease_id: str, /) -> Call[Lease]:
        return Call(Lease, (lease_id,), body={})

    @operation("lease_end", "POST", "/leases/{id}/actions/end")
    def end(self, lease_id: str, /) -> Call[Lease]:
        return Call(Lease, (lease_id,), body={})

    @operation("lease_park", "POST", "/leases/{id}/actions/park")
    def park(self, lease_id: str, /, **how: Any) -> Call[Lease]:
        """Stop the containers. keep="hold" keeps the GPUs at the hold fee, "queue" gives them up."""
        return Call(Lease, (lease_id,), body=how)

    @operation("lease_resume", "POST", "/leases/{id}/actions/resume")
    def resume(self, lease_id: str, /) -> Call[Lease]:
        return Call(Lease, (lease_id,), body={})

    @operation("lease_extend", "POST", "/leases/{id}/actions/extend")
    def extend(self, lease_id: str, /, *, by_s: int | None = None, end_at: str | None = None) -> Call[Lease]:
        return Call(Lease, (lease_id,), body={"by_s": by_s, "end_at": end_at})

    @operation("lease_shorten", "POST", "/leases/{id}/actions/shorten")
    def shorten(self, lease_id: str, /, *, by_s: int | None = None, end_at: str | None = None) -> Call[Lease]:
        return Call(Lease, (lease_id,), body={"by_s": by_s, "end_at": end_at})

    @operation("lease_defer", "POST", "/leases/{id}/actions/defer")
    def defer(self, lease_id: str, /, *, by_s: int | None = None, start_at: str | None = None) -> Call[Lease]:
        return Call(Lease, (lease_id,), body={"by_s": by_s, "start_at": start_at})

    @operation("lease_renew", "POST", "/leases/{id}/actions/renew")
    def renew(self, lease_id: str, /, *, periods: int | None = None) -> Call[Lease]:
        """Add so many periods of a reserved term (1 if not said)."""
        return Call(Lease, (lease_id,), body={"periods": periods})

    @operation("lease_resize", "POST", "/leases/{id}/actions/resize")
    def resize(self, lease_id: str, /, *, request: str) -> Call[Lease]:
        """Take the new GPUs first, then restart there; nothing is given up before the new is held."""
        return Call(Lease, (lease_id,), body={"request": request})

    @operation("lease_restart", "POST", "/leases/{id}/actions/restart")
    def restart(self, lease_id: str, /) -> Call[Lease]:
        return Call(Lease, (lease_id,), body={})

    @operation("lease_move", "POST", "/leases/{id}/actions/move")
    def move(self, lease_id: str, /) -> Call[Lease]:
        """Go on with the same GPUs on other hosts; nothing is given up before those are held."""
        return Call(Lease, (lease_id,), body={})

    @operation("lease_events", "GET", "/leases/{id}/events")
    def event_page(self, lease_id: str, /, *, after: int = 0, wait_s: int | None = None) -> Call[EventPage]:
        """Return the events after the sequence number `after`; with wait_s the server waits so long for the first."""
        return Call(EventPage, (lease_id,), {"after": after, "wait_s": wait_s}, wait_s=wait_s or 0)

    @stream
    def events(self, lease_id: str, /, *, follow: bool = False, after: int = 0) -> Stream[LeaseEvent]:
        """Iterate over what happened to the lease, oldest first; follow=True goes on until it has ended."""
        wait_s, patience_s = (_POLL_S, _PATIENCE_S) if follow else (None, 0.0)
        while True:
            asked = time.monotonic()
            look = partial(Leases.event_page.flow, self, lease_id, after=after, wait_s=wait_s)
            page = yield from patiently(look, patience_s=patience_s)
            for event in page.items:
                yield Emit(event)
                after = event.seq
                if event.to_state == "ended":
                    return
            if not page.items and not follow:
                return
            if not page.items:
                yield from _not_too_soon(asked)

    @listing("lease_members", "/leases/{id}/members")
    def members(self, lease_id: str, /) -> Call[Member]:
        return Call(Member, (lease_id,))

    @operation("lease_charges", "GET", "/leases/{id}/charges")
    def charges(self, lease_id: str, /) -> Call[Charges]:
        """Return what the lease costs so far, per member and price."""
        return Call(Charges, (lease_id,))

    @operation("lease_receipt", "GET", "/leases/{id}/receipt")
    def receipt(self, lease_id: str, /) -> Call[Object]:
        return Call(Object, (lease_id,))

    @operation("lease_exec_create", "POST", "/leases/{id}/exec")
    def start_exec(
        self, lease_id: str, command: Sequence[str], /, *, member: int = 0, timeout_s: int = 60
    ) -> Call[Execution]:
        """Begin a command in a member's container, as what the container runs as."""
        return Call(Execution, (lease_id,), body={"command": list(command), "member": member, "timeout_s": timeout_s})

    @operation("lease_exec_get", "GET", "/leases/{id}/exec/{exec_id}")
    def execution(self, lease_id: str, exec_id: str, /) -> Call[Execution]:
        return Call(Execution, (lease_id, exec_id))

    @flow
    def exec(
        self, lease_id: str, command: Sequence[str], /, *, member: int = 0, timeout_s: int = 60
    ) -> Flow[Execution]:
        """Run a command and return what came of it: its `exit_code`, its `output` with errors among it (64 KiB at
        most), or the `failure`; state "lost" when the host said nothing in time."""
        found = yield from Leases.start_exec.flow(self, lease_id, command, member=member, timeout_s=timeout_s)
        while found.state == "running":
            yield Sleep(_EXEC_POLL_S)
            found = yield from Leases.execution.flow(self, lease_id, found.id)
        return found

    @operation("lease_metrics", "GET", "/leases/{id}/metrics")
    def metrics(
        self,
        lease_id: str,
        /,
        *,
        member: int | None = None,
        since: str | None = None,
        until: str | None = None,
        step_s: int | None = None,
    ) -> Call[Metrics]:
        """Return what each GPU measured, in steps: the last hour if not said otherwise.

        step_s: 60, 300, 900, 3600, 21600 or 86400; chosen by the length of the range if not given.
        """
        return Call(Metrics, (lease_id,), {"member": member, "since": since, "until": until, "step_s": step_s})

    @operation("lease_logs", "GET", "/leases/{id}/logs")
    def log_page(
        self, lease_id: str, /, *, member: int = 0, offset: int = 0, since: str | None = None, wait_s: int | None = None
    ) -> Call[LogPage]:
        """Return the output from byte `offset` on; with wait_s the server waits so long for the first of it."""
        start = {"member": member, "offset": offset, "since": since}
        return Call(LogPage, (lease_id,), {**start, "wait_s": wait_s}, wait_s=wait_s or 0)

    @stream
    def logs(
        self, lease_id: str, /, *, follow: bool = False, member: int = 0, offset: int = 0, since: str | None = None
    ) -> Stream[LogPiece]:
        """Iterate over what a member's container printed, in pieces as they come, not cut at lines.

        follow=True goes on until nothing will follow, also over a server that is away for some minutes: each piece is
        asked for by its offset, so none is missing or doubled. offset: bytes of the output to leave out. since: an
        instant; what was received before it is left out.
        """
        wait_s, patience_s = (_POLL_S, _PATIENCE_S) if follow else (None, 0.0)
        start: dict[str, Any] = {"member": member, "wait_s": wait_s, "since": since}
        while True:
            asked = time.monotonic()
            look = partial(Leases.log_page.flow, self, lease_id, offset=offset, **start)
            page = yield from patiently(look, patience_s=patience_s)
            start["since"] = None  # from here on, the offset says where
            for piece in page.items:
                yield Emit(piece)
            silent, offset = page.next_offset == offset, page.next_offset
            if page.end or (silent and not follow):
                return
            if silent:
                yield from _not_too_soon(asked)

    @flow
    def wait(
        self,
        lease_id: str,
        /,
        *,
        until: str | Sequence[str] = "active",
        timeout_s: float | None = None,
        on_change: Callable[[Lease], object] | None = None,
    ) -> Flow[Lease]:
        """Follow the lease until it is in one of the states `until`, and return it.

        on_change is called with the lease as it is first seen and after each change. Raises WaitTimedOut after
        timeout_s seconds, and LeaseEnded when it ends before; neither touches the lease.
        """
        states = (until,) if isinstance(until, str) else tuple(until)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        lease = yield from Leases.get.flow(self, lease_id)
        while True:
            if on_change is not None:
                on_change(lease)
            if lease.state in states:
                return lease
            if lease.state == "ended":
                raise LeaseEnded(lease, until=states)
            changed = yield from self._next_version(lease, deadline)
            if changed is None:
                raise WaitTimedOut(lease, until=states)
            lease = changed

    def _next_version(self, lease: Lease, deadline: float | None) -> Flow[Lease | None]:
        """Long-poll until the lease differs from `lease`; None when the deadline has passed."""
        while True:
            left_s = float("inf") if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return None
            wait_s = int(min(_POLL_S, left_s))
            asked = time.monotonic()
            call = Call(Lease, (lease.id,), {"wait_s": wait_s}, None, {"If-None-Match": lease.etag}, wait_s)
            look = partial(exchange, Leases.get.operation, call, self._manner)
            response = yield from patiently(look, patience_s=min(_PATIENCE_S, left_s))
            if response.status_code != 304:
                seen = Lease(response.json(), response.headers.get("ETag"))
                if seen.version != lease.version:
                    return seen
            yield from _not_too_soon(asked, at_most_s=left_s)


def _not_too_soon(asked: float, *, at_most_s: float = _SHORTEST_POLL_S) -> Flow[None]:
    """Sleep what is missing to a second since `asked`, so that a server that answers at once is not flooded."""
    missing_s = min(_SHORTEST_POLL_S - (time.monotonic() - asked), at_most_s)
    if missing_s > 0:
        yield Sleep(missing_s)
