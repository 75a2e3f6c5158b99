"""Why not: a refusal as data, and as a sentence.

A refusal is a partition: every visible host with the model is counted once, at the first constraint it fails. Codes and
numbers are the contract; the sentence is a template over them (English and Chinese).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from scheduler.placement.eligibility import CODES, Shortfall

Language = Literal["en", "zh"]


@dataclass(frozen=True, slots=True)
class Reason:
    """`hosts` hosts fail at `code`. need: what was asked; have: the best of them; earliest_s: when time cures it."""

    code: str
    hosts: int
    need: int | str
    have: int | str
    earliest_s: int | None = None


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One change that alone would make it work now: set the field `constraint` of the request to `value`.

    `what` is the request line of what would then be had ("A100_40G x4"); price_micros: its price per unit and hour.
    """

    constraint: str
    value: int | str | bool | None
    what: str
    price_micros: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A no. `what`: the alternative that came nearest; hosts_with_model = the sum of the reasons' hosts.

    earliest_s: the first second at which known ends make room for the whole request, None if that is not known.
    """

    what: str
    option_index: int
    hosts_with_model: int
    reasons: tuple[Reason, ...]
    earliest_s: int | None
    relaxations: tuple[Relaxation, ...] = ()

    def text(self, language: Language = "en") -> str:
        """Say it in a sentence; times are UTC."""
        words = TEXT[language]
        if not self.hosts_with_model:
            said = words["none"].format(what=self.what)
        else:
            parts = words["semicolon"].join(_say(reason, words) for reason in self.reasons)
            said = words["some"].format(count=self.hosts_with_model, parts=parts)
        helps = [_help(r, words) for r in self.relaxations]
        return said + "".join(words["space"] + h for h in helps)


def partition(shortfalls: Iterable[Shortfall]) -> tuple[Reason, ...]:
    """Count shortfalls by code, in the order of CODES; have = the largest, earliest_s = the soonest of each group."""
    groups: dict[str, list[Shortfall]] = {}
    for shortfall in shortfalls:
        groups.setdefault(shortfall.code, []).append(shortfall)
    reasons = []
    for code in sorted(groups, key=CODES.index):
        group = groups[code]
        best = max(group, key=_rank)
        ends = [s.earliest_s for s in group if s.earliest_s is not None]
        reasons.append(Reason(code, len(group), best.need, best.have, min(ends, default=None)))
    return tuple(reasons)


def _rank(shortfall: Shortfall) -> tuple[int, tuple[int, ...], str]:
    """Order shortfalls of one code by how near they came: the lowest price, the highest of anything else."""
    if isinstance(shortfall.have, int):
        return (-shortfall.have if shortfall.code == "price" else shortfall.have, (), "")
    numbers = tuple(int(part) for part in shortfall.have.split(".") if part.isascii() and part.isdigit())
    return 0, numbers, shortfall.have


def clock_text(second: int) -> str:
    """Return a second since the epoch as people read it, in UTC."""
    return datetime.fromtimestamp(second, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def money_text(micros: int) -> str:
    """Return micro-units as a decimal number without trailing zeros after the second place."""
    whole, rest = divmod(micros, 1_000_000)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{whole}.{decimals}"


def _say(reason: Reason, words: Mapping[str, str]) -> str:
    price = reason.code == "price"
    need = money_text(reason.need) if price and isinstance(reason.need, int) else reason.need
    have = money_text(reason.have) if price and isinstance(reason.have, int) else reason.have
    said = words[reason.code].format(n=reason.hosts, need=need, have=have)
    if reason.earliest_s is not None:
        said += words["until"].format(time=clock_text(reason.earliest_s))
    return said


def _help(relaxation: Relaxation, words: Mapping[str, str]) -> str:
    return words["help:" + relaxation.constraint].format(
        what=relaxation.what,
        value=money_text(relaxation.value)
        if relaxation.constraint == "max_price_micros" and isinstance(relaxation.value, int)
        else relaxation.value,
    )


TEXT: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "none": "No host offers {what}.",
        "some": "{count} with the model: {parts}.",
        "semicolon": "; ",
        "space": " ",
        "until": ", first free {time}",
        "out_of_service": "{n} out of service ({have})",
        "volume": "{n} without its volume",
        "excluded": "{n} excluded by the request",
        "tier": "{n} below tier {need}",
        "reliability": "{n} below reliability {need} (best {have})",
        "region": "{n} outside {need}",
        "bare_metal": "{n} not let as a bare machine",
        "ports": "{n} whose ports cannot be reached from outside",
        "vendor": "{n} not {need}",
        "compute_capability": "{n} below compute capability {need} (best {have})",
        "cpu_architecture": "{n} with a {have} processor ({need} needed)",
        "image_code": "{n} for whose GPUs (compute capability {need}) the image holds no code",
        "driver": "{n} below driver {need} (best {have})",
        "cuda": "{n} below CUDA {need} (best {have})",
        "not_for_sale": "{n} not for sale",
        "price": "{n} above the price cap of {need} (lowest {have})",
        "devices": "{n} with too few GPUs ({need} needed, most have {have})",
        "slice": "{n} not sold as {need}",
        "nvlink": "{n} without {need} GPUs on one NVLink (most {have})",
        "cpu": "{n} with too little CPU ({need} milli needed, {have} there)",
        "ram": "{n} with too little memory ({need} MiB needed, {have} there)",
        "disk": "{n} with too little disk ({need} MiB needed, {have} there)",
        "busy": "{n} busy ({have} of {need} free)",
        "gang": "{n} could take a part, {need} machines are needed together (at most {have})",
        "help:model": "{what} is free now.",
        "help:count": "{what} is free now.",
        "help:nodes": "{what} is free now.",
        "help:max_price_micros": "With a price cap of {value}, {what} is free now.",
        "help:region": "In {value}, {what} is free now.",
        "help:min_driver": "With driver {value}, {what} is free now.",
        "help:min_cuda": "With CUDA {value}, {what} is free now.",
        "help:nvlink": "Without the NVLink requirement, {what} is free now.",
        "help:same_zone": "Spread over several zones, {what} is free now.",
        "help:same_fabric": "Without a common fabric, {what} is free now.",
        "help:whole_machine": "Not as a whole machine, {what} is free now.",
        "help:min_reliability_bp": "With a reliability of {value}, {what} is free now.",
        "help:min_tier": "At tier {value}, {what} is free now.",
        "help:min_cpu_milli": "With {value} milli of CPU, {what} is free now.",
        "help:min_ram_mib": "With {value} MiB of memory, {what} is free now.",
        "help:min_disk_mib": "With {value} MiB of disk, {what} is free now.",
        "help:exclude": "Without the exclusions, {what} is free now.",
        "help:volumes": "Without its volume, {what} is free now.",
    },
    "zh": {
        "none": "没有主机提供 {what}。",
        "some": "{count} 台主机有该型号：{parts}。",
        "semicolon": "；",
        "space": "",
        "until": "，最早 {time} 空闲",
        "out_of_service": "{n} 台停用（{have}）",
        "volume": "{n} 台没有其存储卷",
        "excluded": "{n} 台被请求排除",
        "tier": "{n} 台低于等级 {need}",
        "reliability": "{n} 台可靠性低于 {need}（最高 {have}）",
        "region": "{n} 台不在 {need}",
        "bare_metal": "{n} 台不以裸机出租",
        "ports": "{n} 台的端口无法从外部访问",
        "vendor": "{n} 台不是 {need}",
        "compute_capability": "{n} 台算力版本低于 {need}（最高 {have}）",
        "cpu_architecture": "{n} 台处理器为 {have}（需要 {need}）",
        "image_code": "镜像不含适用于 {n} 台 GPU（算力版本 {need}）的代码",
        "driver": "{n} 台驱动低于 {need}（最高 {have}）",
        "cuda": "{n} 台 CUDA 低于 {need}（最高 {have}）",
        "not_for_sale": "{n} 台未出售",
        "price": "{n} 台高于价格上限 {need}（最低 {have}）",
        "devices": "{n} 台 GPU 不足（需要 {need}，最多 {have}）",
        "slice": "{n} 台不提供 {need} 切片",
        "nvlink": "{n} 台没有由 NVLink 相连的 {need} 块 GPU（最多 {have}）",
        "cpu": "{n} 台 CPU 不足（需要 {need} 毫核，共有 {have}）",
        "ram": "{n} 台内存不足（需要 {need} MiB，共有 {have}）",
        "disk": "{n} 台磁盘不足（需要 {need} MiB，共有 {have}）",
        "busy": "{n} 台占用中（需要 {need}，空闲 {have}）",
        "gang": "{n} 台可承担一部分，需要 {need} 台同时可用（最多 {have}）",
        "help:model": "现在可用：{what}。",
        "help:count": "现在可用：{what}。",
        "help:nodes": "现在可用：{what}。",
        "help:max_price_micros": "价格上限提高到 {value}，即可得到 {what}。",
        "help:region": "在 {value}，现在可用：{what}。",
        "help:min_driver": "驱动 {value} 即可得到 {what}。",
        "help:min_cuda": "CUDA {value} 即可得到 {what}。",
        "help:nvlink": "不要求 NVLink，即可得到 {what}。",
        "help:same_zone": "允许跨可用区，即可得到 {what}。",
        "help:same_fabric": "不要求同一网络，即可得到 {what}。",
        "help:whole_machine": "不要求整机，即可得到 {what}。",
        "help:min_reliability_bp": "可靠性 {value} 即可得到 {what}。",
        "help:min_tier": "等级 {value} 即可得到 {what}。",
        "help:min_cpu_milli": "CPU {value} 毫核即可得到 {what}。",
        "help:min_ram_mib": "内存 {value} MiB 即可得到 {what}。",
        "help:min_disk_mib": "磁盘 {value} MiB 即可得到 {what}。",
        "help:exclude": "取消排除，即可得到 {what}。",
        "help:volumes": "不挂载其存储卷，即可得到 {what}。",
    },
}
