"""Random histories: whatever is asked, ends, fails or is reserved, decisions are lawful and refusals are right."""

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.placement import Ask, Busy, Decider, DeviceView, HostView, Placement, Refusal, Want, decide, units_mask
from scheduler.placement.checker import could_place, violations

MIG = {
    "1g.10gb": tuple((start, 1) for start in range(7)),
    "2g.20gb": ((0, 2), (2, 2), (4, 2)),
    "3g.40gb": ((0, 4), (4, 4)),
}
MODELS = {"A100_80G": 80, "L40S": 48}

wants = st.builds(
    Want,
    model=st.sampled_from([*MODELS, None]),
    count=st.integers(1, 4),
    nodes=st.sampled_from([1, 1, 1, 2, 3]),
    slice=st.sampled_from([None, None, None, "0.5", "0.25", "0.125", "1g.10gb", "2g.20gb", "3g.40gb"]),
    memory_gib=st.sampled_from([(24, None), (40, 60)]),
    region=st.sampled_from([None, None, "r0"]),
)


@dataclass
class Yard:
    """A pool with a history: applies placements, lets them end, breaks devices."""

    hosts: dict[str, HostView]
    now_s: int = 1_000
    leases: list[tuple[Placement, Ask]] = field(default_factory=list)

    def apply(self, placement: Placement, asked: Ask) -> None:
        self.leases.append((placement, asked))
        for member in placement.members:
            for index, seat in enumerate(member.seats):
                share = (member.cpu_milli, member.ram_mib, member.disk_mib) if index == 0 else (0, 0, 0)
                line = Busy(
                    units_mask(seat.start, seat.stop),
                    seat.mode,
                    asked.organization,
                    asked.start_s,
                    asked.until_s,
                    *share,
                )
                self._change(str(member.host), seat.device, lambda d, line=line: replace(d, busy=(*d.busy, line)))

    def end(self, index: int) -> None:
        """End a lease now: its lines are cut, or leave the calendar if they had not begun."""
        placement, asked = self.leases.pop(index)
        for member in placement.members:
            for seat in member.seats:
                line = (units_mask(seat.start, seat.stop), asked.organization, asked.start_s)
                self._change(str(member.host), seat.device, lambda d, line=line: without(d, line))

    def break_device(self, host: str, index: int) -> None:
        device = self.hosts[host].devices[index % len(self.hosts[host].devices)]
        self._change(host, device.key, lambda d: replace(d, out_of_service="" if d.out_of_service else "xid 79"))

    def _change(self, host: str, device: Any, change: Any) -> None:
        view = self.hosts[host]
        self.hosts[host] = replace(view, devices=tuple(change(d) if d.key == device else d for d in view.devices))


def without(device: DeviceView, line: tuple[int, Any, int]) -> DeviceView:
    """Return the device with the first calendar line of these units, organization and start taken out."""
    lines = list(device.busy)
    lines.remove(next(b for b in lines if (b.units, b.organization, b.start_s) == line))
    return replace(device, busy=tuple(lines))


@st.composite
def pools(draw: st.DrawFn) -> dict[str, HostView]:
    hosts = {}
    for number in range(draw(st.integers(1, 6))):
        key, model = f"h{number}", draw(st.sampled_from(list(MODELS)))
        gpus = draw(st.integers(1, 4))
        cliques = draw(st.sampled_from([(None,) * 4, ("x",) * 4, ("x", "x", "y", "y")]))
        hosts[key] = HostView(
            key=key,
            region=draw(st.sampled_from(["r0", "r1"])),
            zone=draw(st.sampled_from(["z0", "z1"])),
            fabric=draw(st.sampled_from(["", "ib"])),
            model=model,
            memory_gib=MODELS[model],
            devices=tuple(
                DeviceView(
                    f"{key}-{i}",
                    nvlink_clique=cliques[i],
                    mig_placements=MIG if model == "A100_80G" else {},
                    fractions=("0.5", "0.25", "0.125"),
                )
                for i in range(gpus)
            ),
            owner=draw(st.sampled_from(["owner", "t0"])),
            access=draw(st.sampled_from(["public", "public", "shared_when_idle", "private"])),
            tier=draw(st.sampled_from(["verified", "certified"])),
            cpu_milli=12_000 * gpus,
            ram_mib=90_000 * gpus,
            disk_mib=500_000 * gpus,
            cpu_milli_per_gpu=12_000,
            ram_mib_per_gpu=90_000,
            disk_mib_per_gpu=500_000,
            price_micros=draw(st.sampled_from([None, 1_000_000, 1_000_000, 2_000_000])),
            driver_version=draw(st.sampled_from(["535.161.08", "550.54.15"])),
        )
    return hosts


asks: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    organization=st.sampled_from(["t0", "t1"]),
    options=st.lists(wants, min_size=1, max_size=2).map(tuple),
    delay=st.sampled_from([0, 0, 0, 500]),
    length=st.sampled_from([None, 100, 1_000]),
    max_price_micros=st.sampled_from([None, None, 1_500_000]),
    min_driver=st.sampled_from(["", "", "550"]),
    min_tier=st.sampled_from(["verified", "verified", "certified"]),
    same_zone=st.booleans(),
    same_fabric=st.sampled_from([False, False, True]),
    nvlink=st.sampled_from(["any", "wanted", "required"]),
    whole_machine=st.sampled_from([False, False, False, True]),
    min_cpu_milli=st.sampled_from([0, 0, 20_000]),
)
steps = st.one_of(
    asks.map(lambda fields: ("ask", fields)),
    asks.map(lambda fields: ("ask", fields)),
    st.integers(0, 20).map(lambda i: ("end", i)),
    st.integers(1, 400).map(lambda s: ("wait", s)),
    st.tuples(st.integers(0, 5), st.integers(0, 3)).map(lambda t: ("break", t)),
)


def to_ask(fields: dict[str, Any], now_s: int) -> Ask:
    rest = {name: value for name, value in fields.items() if name not in {"delay", "length"}}
    start = now_s + fields["delay"]
    until = None if fields["length"] is None else start + fields["length"]
    return Ask(now_s=now_s, start_s=start, until_s=until, **rest)


@given(pools(), st.lists(steps, max_size=25))
@settings(max_examples=150, deadline=None)
def test_every_decision_of_a_random_history_is_lawful_and_every_refusal_is_right(
    hosts: dict[str, HostView], history: list[tuple[str, Any]]
) -> None:
    yard, decider = Yard(hosts), Decider()
    for kind, what in history:
        if kind == "ask":
            asked = to_ask(what, yard.now_s)
            answer = decide(list(yard.hosts.values()), asked)
            assert decider.decide(list(yard.hosts.values()), asked) == answer
            if isinstance(answer, Placement):
                assert violations(list(yard.hosts.values()), asked, answer) == []
                yard.apply(answer, asked)
            else:
                assert not could_place(list(yard.hosts.values()), asked)
                check_refusal(answer, yard, asked)
        elif kind == "end" and yard.leases:
            yard.end(what % len(yard.leases))
        elif kind == "wait":
            yard.now_s += what
        elif kind == "break":
            yard.break_device(f"h{what[0] % len(yard.hosts)}", what[1])


def check_refusal(refusal: Refusal, yard: Yard, asked: Ask) -> None:
    """A refusal counts each host once, its earliest start is right, and what it suggests can be had."""
    assert sum(reason.hosts for reason in refusal.reasons) == refusal.hosts_with_model
    assert refusal.text("en")
    assert refusal.text("zh")
    option = asked.options[refusal.option_index]
    only = replace(asked, options=(option,))
    if refusal.earliest_s is not None:
        shift = refusal.earliest_s - asked.start_s
        later = replace(
            only, start_s=refusal.earliest_s, until_s=None if asked.until_s is None else asked.until_s + shift
        )
        assert could_place(list(yard.hosts.values()), later)


@given(pools(), asks, st.randoms())
@settings(max_examples=60, deadline=None)
def test_names_and_the_order_of_rows_change_no_more_than_names(
    hosts: dict[str, HostView], fields: dict[str, Any], random: Any
) -> None:
    asked = to_ask(fields, 1_000)
    rows = list(hosts.values())
    first = decide(rows, asked)
    random.shuffle(rows)

    assert decide(rows, asked) == first
