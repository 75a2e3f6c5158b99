"""What is expected of a device: the fleet of its model, the published figures, and its own record. One rule, stated.

Of each figure (agents.protocol names them; more is better) a model's *fleet* is one value for each other host: the
median of its devices in its last passed self-test that measured it. From ten hosts on (`FLEET_SIZE`) the fleet counts,
with its median M and its spread S = 1.4826 x MAD (the median absolute deviation; of a bell curve, the standard
deviation):

    too slow       below M - max(15 % of M, 3 S), and in any case below 60 % of M
    not believable above M + max(30 % of M, 6 S), or above the published peak by over 5 %: no device of this model can

Under ten hosts the published figures stand in: M is 65 % of the FP16 peak and 75 % of the memory's bandwidth, S is 0,
and what is not published is not judged. A device that is over 10 % below its own record (the median of its last five
passed tests) in two tests in a row is suspect. Simulated devices are compared with simulated ones only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from agents.models import Device, Host, SelfTest
from catalogue import figures as published
from catalogue.models import GpuModel

FLEET_SIZE = 10
SLOW_PERCENT, FLOOR_PERCENT, FAST_PERCENT = 15, 60, 30
SLOW_SPREADS, FAST_SPREADS = 3, 6
PEAK_PERCENT = 105
SEED_PERCENT = {"fp16_gflops": 65, "memory_mib_per_s": 75}
RECORD_TESTS, RECORD_PERCENT = 5, 10
MAD_TO_SIGMA = 1.4826
FLEET_LIMIT = 2000


@dataclass(frozen=True)
class Baseline:
    """Of one figure. hosts: how many it comes from; 0: the published one stands in. peak: published, or None."""

    middle: float
    spread: float
    hosts: int
    peak: float | None = None

    @property
    def least(self) -> float:
        allowed = max(self.middle * SLOW_PERCENT / 100, SLOW_SPREADS * self.spread)
        return max(self.middle - allowed, self.middle * FLOOR_PERCENT / 100)

    @property
    def most(self) -> float | None:
        """Return what no honest device exceeds; None where nothing speaks for a bound."""
        bounds = [] if self.peak is None else [self.peak * PEAK_PERCENT / 100]
        if self.hosts >= FLEET_SIZE:
            bounds.append(self.middle + max(self.middle * FAST_PERCENT / 100, FAST_SPREADS * self.spread))
        return min(bounds, default=None)

    def fault(self, value: float) -> str | None:
        """Return what is wrong with a measured value, or None."""
        if value < self.least:
            return f"{value:.0f}, of {self.middle:.0f} expected (at least {self.least:.0f})"
        if self.most is not None and value > self.most:
            return f"{value:.0f} is more than a device of this model can do ({self.most:.0f})"
        return None


def spread_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the spread (1.4826 x MAD) of at least one value."""
    middle = median(values)
    return middle, MAD_TO_SIGMA * median(abs(value - middle) for value in values)


def of_model(model: GpuModel, *, simulated: bool, but: Host | None = None) -> dict[str, Baseline]:
    """Return the baseline of each figure of this model; `but`: the host that is judged is no witness of its own."""
    peaks = _peaks(model)
    found = {
        name: Baseline(peak * SEED_PERCENT[name] / 100, 0.0, 0, peak) for name, peak in peaks.items()
    }  # fmt: skip
    for name, values in _fleet(model, simulated=simulated, but=but).items():
        if len(values) >= FLEET_SIZE:
            middle, spread = spread_of(values)
            found[name] = Baseline(middle, spread, len(values), peaks.get(name))
    return found


@dataclass(frozen=True)
class Compared:
    """One figure of one device beside what is expected of its model. expected, least: None where nothing is known."""

    device: str
    index: int
    name: str
    value: int
    expected: int | None
    least: int | None
    hosts: int  # that the expectation comes from; 0: the published figures
    is_low: bool


def compared(host: Host) -> list[Compared]:
    """Return the figures of the host's last passed test that measured any, device by device, beside its fleet's."""
    test = SelfTest.objects.filter(host=host, passed=True).exclude(figures={}).order_by("-answered_at").first()
    if test is None:
        return []
    known: dict[Any, dict[str, Baseline]] = {}
    found = []
    for device in host.devices.filter(present=True, model__isnull=False).select_related("model").order_by("index"):
        assert device.model is not None
        if device.model_id not in known:
            known[device.model_id] = of_model(device.model, simulated=host.simulated, but=host)
        for name, value in sorted(test.figures.get(device.uuid, {}).items()):
            found.append(_compared(device, name, value, known[device.model_id].get(name)))
    return found


def _compared(device: Device, name: str, value: int, baseline: Baseline | None) -> Compared:
    if baseline is None:
        return Compared(device.uuid, device.index, name, value, None, None, 0, is_low=False)
    middle, least = int(baseline.middle), int(baseline.least)
    return Compared(device.uuid, device.index, name, value, middle, least, baseline.hosts, is_low=value < least)


def _peaks(model: GpuModel) -> dict[str, float]:
    tflops = published.known(model, "fp16_tensor_dense_tflops")
    gb_s = published.known(model, "memory_bandwidth_gb_s")
    peaks = {
        "fp16_gflops": None if tflops is None else tflops * 1000,
        "memory_mib_per_s": None if gb_s is None else gb_s * 1e9 / 2**20,
    }
    return {name: float(peak) for name, peak in peaks.items() if peak is not None}


def _fleet(model: GpuModel, *, simulated: bool, but: Host | None) -> dict[str, list[float]]:
    """Return one value per host and figure."""
    devices: dict[Any, list[str]] = {}
    rows = Device.objects.filter(model=model, present=True, host__simulated=simulated)
    if but is not None:
        rows = rows.exclude(host=but)
    for host_id, uuid in rows.values_list("host", "uuid"):
        devices.setdefault(host_id, []).append(uuid)
    tests = SelfTest.objects.filter(host__in=list(devices)[:FLEET_LIMIT], passed=True).exclude(figures={})
    fleet: dict[str, list[float]] = {}
    for host_id, figures in tests.order_by("host", "-answered_at").distinct("host").values_list("host", "figures"):
        for name, values in _by_name(figures, devices[host_id]).items():
            fleet.setdefault(name, []).append(median(values))
    return fleet


def _by_name(figures: Mapping[str, Mapping[str, float]], uuids: Iterable[str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for uuid in uuids:
        for name, value in figures.get(uuid, {}).items():
            found.setdefault(name, []).append(value)
    return found


def record_of(tests: Sequence[Mapping[str, Mapping[str, float]]], uuid: str) -> dict[str, float]:
    """Return a device's own record: the median of each figure over its passed tests, given newest first. Pure."""
    own: dict[str, list[float]] = {}
    for figures in tests[:RECORD_TESTS]:
        for name, value in figures.get(uuid, {}).items():
            own.setdefault(name, []).append(value)
    return {name: median(values) for name, values in own.items()}


def fell_behind(tests: Sequence[Mapping[str, Mapping[str, float]]], now: Mapping[str, float], uuid: str) -> str | None:
    """Return which figure is over 10 % below the device's record in this test and the one before, or None. Pure.

    tests: the figures of its passed tests before this one, newest first.
    """
    if len(tests) < 2:
        return None
    before, record = tests[0].get(uuid, {}), record_of(tests[1:], uuid)
    for name, mark in sorted(record.items()):
        least = mark * (100 - RECORD_PERCENT) / 100
        if name in now and name in before and now[name] < least and before[name] < least:
            return f"{name}: {now[name]:.0f} and {before[name]:.0f}, after {mark:.0f}"
    return None
