"""Decide again and again over a pool that changes little: verdicts are kept for hosts that are still the same."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scheduler.placement.decide import decide
from scheduler.placement.judging import Verdict, judge
from scheduler.placement.reasons import Refusal
from scheduler.placement.snapshot import Ask, HostView, Key, Option, Placement

KINDS_PER_HOST = 64
Kind = tuple[Ask, Key | None, int, int, str | None, tuple[int, int | None] | None, str | None]


@dataclass(slots=True)
class _Known:
    """What is known of one host object: a verdict per kind of ask, good for starts in [since, until)."""

    host: HostView
    verdicts: dict[Kind, tuple[int, int | float, Verdict]] = field(default_factory=dict)


class Decider:
    """`decide` with a memory; the same answers, and where few hosts changed since the last call far sooner.

        decider = Decider()
        answer = decider.decide(hosts, ask)      # as often as you like

    A host counts as unchanged while it is the very same object: replace a HostView to change it, and keep the others.
    A verdict also ends at the second at which something begins or ends on its host's calendar.
    """

    def __init__(self) -> None:
        self._known: dict[Key, _Known] = {}

    def decide(self, hosts: Sequence[HostView], ask: Ask, *, explain: bool = True) -> Placement | Refusal:
        """Place the first alternative that has room, or say why none has: see `decide.decide`."""
        return decide(hosts, ask, explain=explain, judge=self._judge)

    def _judge(self, hosts: Sequence[HostView], option: Option, ask: Ask) -> list[Verdict]:
        length = None if ask.until_s is None else ask.until_s - ask.start_s
        kind: Kind = (
            replace(ask, options=(), now_s=0, start_s=0, until_s=length),
            option.model, option.count, option.nodes, option.slice, option.memory_gib, option.region,
        )  # fmt: skip
        verdicts: list[Verdict | None] = [None] * len(hosts)
        missing: list[int] = []
        start = ask.start_s
        for index, host in enumerate(hosts):
            known = self._known.get(host.key)
            found = known.verdicts.get(kind) if known is not None and known.host is host else None
            if found is not None and found[0] <= start < found[1]:
                verdicts[index] = found[2]
            else:
                missing.append(index)
        fresh = judge([hosts[index] for index in missing], option, ask)
        for index, verdict in zip(missing, fresh, strict=True):
            verdicts[index] = verdict
            self._keep(hosts[index], kind, start, length, verdict)
        return [verdict for verdict in verdicts if verdict is not None]

    def _keep(self, host: HostView, kind: Kind, start: int, length: int | None, verdict: Verdict) -> None:
        known = self._known.get(host.key)
        if known is None or known.host is not host or len(known.verdicts) >= KINDS_PER_HOST:
            known = self._known[host.key] = _Known(host)
        known.verdicts[kind] = (start, _good_until(host, start, length), verdict)


def _good_until(host: HostView, start: int, length: int | None) -> int | float:
    """Return the first later start at which another set of calendar lines would meet the range."""
    ends: list[int | float] = [float("inf")]
    for device in host.devices:
        for busy in device.busy:
            if busy.end_s is not None and busy.end_s > start:
                ends.append(busy.end_s)
            if length is not None and busy.start_s >= start + length:
                ends.append(busy.start_s - length + 1)
    return min(ends)
