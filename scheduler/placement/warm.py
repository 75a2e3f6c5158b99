"""Decide again and again over a pool that changes little: verdicts are kept for hosts that are still the same."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from scheduler.placement.decide import decide
from scheduler.placement.eligibility import Shortfall
from scheduler.placement.judging import Verdict, judge
from scheduler.placement.reasons import Refusal
from scheduler.placement.snapshot import Ask, HostView, Key, Option, Placement

KINDS = 128  # kinds of ask remembered; the one used longest ago goes first
FOREVER = 1 << 62
Kind = tuple[Ask, str | None, int, int, str | None, tuple[int, int | None] | None, str | None]
Known = tuple[HostView, int, int, Verdict]  # of this very object, for starts in [since, until)


class Decider:
    """`decide` with a memory; the same answers, and where few hosts changed since the last call far sooner.

        decider = Decider()
        answer = decider.decide(hosts, ask)      # as often as you like

    A host counts as unchanged while it is the very same object: replace a HostView to change it, and keep the others.
    A verdict also ends at the second at which something begins or ends on its host's calendar.
    """

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, dict[Key, Known]] = OrderedDict()

    def decide(self, hosts: Sequence[HostView], ask: Ask, *, explain: bool = True) -> Placement | Refusal:
        """Place the first alternative that has room, or say why none has: see `decide.decide`."""
        return decide(hosts, ask, explain=explain, judge=self.judge)

    def judge(self, hosts: Sequence[HostView], option: Option, ask: Ask) -> list[Verdict]:
        """Return a verdict for each host, in their order, from memory where the host is still the same object."""
        start, length = ask.start_s, None if ask.until_s is None else ask.until_s - ask.start_s
        known = self._known(option, ask, length)
        verdicts: list[Verdict] = []
        missing: list[int] = []
        for index, host in enumerate(hosts):
            found = known.get(host.key)
            if found is not None and found[0] is host and found[1] <= start < found[2]:
                verdicts.append(found[3])
            else:
                missing.append(index)
                verdicts.append(UNKNOWN)
        fresh = judge([hosts[index] for index in missing], option, ask)
        for index, verdict in zip(missing, fresh, strict=True):
            host = hosts[index]
            verdicts[index] = verdict
            known[host.key] = (host, start, _good_until(host, start, length), verdict)
        return verdicts

    def _known(self, option: Option, ask: Ask, length: int | None) -> dict[Key, Known]:
        """Return the verdicts on asks of this kind: alike but for the moment at which they start."""
        kind: Kind = (
            replace(ask, options=(), now_s=0, start_s=0, until_s=length),
            option.model, option.count, option.nodes, option.slice, option.memory_gib, option.region,
        )  # fmt: skip
        known = self._kinds.setdefault(kind, {})
        self._kinds.move_to_end(kind)
        if len(self._kinds) > KINDS:
            self._kinds.popitem(last=False)
        return known


UNKNOWN = Shortfall("out_of_service", "", "")  # stands in a list until the verdict is found


def _good_until(host: HostView, start: int, length: int | None) -> int:
    """Return the first later start at which another set of calendar lines would meet the range."""
    ends = [FOREVER]
    for device in host.devices:
        for busy in device.busy:
            if busy.end_s is not None and busy.end_s > start:
                ends.append(busy.end_s)
            if length is not None and busy.start_s >= start + length:
                ends.append(busy.start_s - length + 1)
    return min(ends)
