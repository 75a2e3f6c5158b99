"""Does an image run on a host's GPUs? Rules R1 to R7 of `data/cuda_driver.json`, as one function of values. Pure.

What no driver update would cure is looked at first (R1, R2, R7), then the driver (R3 to R6).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "cuda_driver.json").read_text(encoding="utf-8"))

type Version = tuple[int, ...]


@dataclass(frozen=True)
class ImageNeeds:
    """What is inside an image. None is unknown, except for `cuda`, where it is none at all.

    vendor: None runs on any. archs: compute capabilities that it holds machine code for; ptx: the highest one that it
    holds PTX for. needs_ptx: it relies on PTX in any case. has_compat: it carries the forward-compatibility package.
    """

    vendor: str | None
    cpu: str
    cuda: str | None = None
    archs: tuple[str, ...] | None = None
    ptx: str | None = None
    needs_ptx: bool = False
    has_compat: bool = False


@dataclass(frozen=True)
class HostOffers:
    """What a host has. cc: compute capability of its GPUs; cuda: what NVML says that the driver carries, if asked."""

    vendor: str
    cpu: str
    driver: str | None = None
    cc: str | None = None
    segment: str | None = None
    cuda: str | None = None


@dataclass(frozen=True)
class Verdict:
    """result: ok, ok_minor, ok_forward, ok_ptx, or what stands against it; need: the version that would cure it."""

    result: str
    need: str | None = None
    reasons: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        return self.result in {"ok", "ok_minor", "ok_forward", "ok_ptx"}


def compat(image: ImageNeeds, host: HostOffers) -> Verdict:
    """Return whether the image runs on the host, how, and if not, what would cure it.

    Raises ValueError for a version that is not numbers and dots.
    """
    if image.vendor is not None and image.vendor != host.vendor:
        return Verdict("vendor", None, (f"The image is for {image.vendor}, the host's GPUs are {host.vendor}.",))
    if image.cpu != host.cpu:
        return Verdict("cpu_arch", None, (f"The image is for {image.cpu}, the host is {host.cpu}.",))
    if image.cuda is None:
        return Verdict("ok")
    code = _machine_code(image, host)
    if not code.runs:
        return code
    return _driver(image, image.cuda, host, only_ptx=code.result == "ok_ptx")


def _machine_code(image: ImageNeeds, host: HostOffers) -> Verdict:
    """R2 and R7: ok if the image holds machine code for the GPU, ok_ptx if only PTX that it can translate."""
    if host.cc is None or image.cuda is None:
        return Verdict("ok")  # nothing is known against it
    gpu, toolkit = version(host.cc), version(image.cuda)
    for drop in _TABLES["dropped"]:
        if toolkit[0] >= drop["cuda_major"] and gpu < version(drop["min_cc"]):
            reason = f"CUDA {image.cuda} has dropped GPUs below compute capability {drop['min_cc']}; this is {host.cc}."
            return Verdict("gpu_too_old_for_image", drop["min_cc"], (reason,))
    if _holds_code(image, gpu, toolkit):
        return Verdict("ok")
    if image.ptx is not None and version(image.ptx) <= gpu:
        return Verdict("ok_ptx", None, ("The image holds only PTX for this GPU, so its first start is slow.",))
    reason = f"The image holds no code for compute capability {host.cc}."
    return Verdict("no_code_for_gpu", _first_toolkit(gpu[0]), (reason,))


def _holds_code(image: ImageNeeds, gpu: Version, toolkit: Version) -> bool:
    if image.archs is not None:
        return any(arch[0] == gpu[0] and arch <= gpu for arch in map(version, image.archs))
    first = _first_toolkit(gpu[0])
    if first is not None:
        return toolkit >= version(first)
    # Families older than the table are in every toolkit that has not dropped them; of newer ones nothing is known.
    oldest: int = min(row["cc_major"] for row in _TABLES["first_toolkit_by_cc_major"])
    return gpu[0] < oldest


def _driver(image: ImageNeeds, cuda: str, host: HostOffers, *, only_ptx: bool) -> Verdict:
    """R3 to R6: is the driver new enough for the image's CUDA, or will it do all the same?"""
    toolkit = version(cuda)[:2]
    carried = _carried_cuda(host)
    if carried is not None and toolkit <= carried[:2]:
        return Verdict("ok_ptx", None, ("The first start is slow: PTX is translated.",)) if only_ptx else Verdict("ok")
    least = _least_driver(toolkit[0])
    translates = only_ptx or image.needs_ptx
    shown = host.driver or "of unknown version"
    if _driver_major(host, carried) == toolkit[0] and _at_least(host.driver, least):
        if translates:
            reason = f"The image relies on PTX of CUDA {cuda}, which the driver ({shown}) is too old to translate."
            return Verdict("driver_too_old_for_ptx", _bundled_driver(cuda), (reason,))
        return Verdict("ok_minor", None, (f"The driver ({shown}) is older than CUDA {cuda}, but of its major.",))
    if image.has_compat and host.segment in _TABLES["forward_compat"]["segments"]:
        if only_ptx:
            reason = f"PTX of CUDA {cuda} is translated only by a driver as new; the host's is {shown}."
            return Verdict("driver_too_old_for_ptx", _bundled_driver(cuda), (reason,))
        return Verdict("ok_forward", None, ("The image carries the forward-compatibility package.",))
    need = least
    if translates and least is not None and not _carries(least, toolkit):
        need = _bundled_driver(cuda)  # the least driver of this major would refuse the PTX
    return Verdict("driver_too_old", need, (f"CUDA {cuda} needs driver {need}; the host's is {shown}.",))


def _carried_cuda(host: HostOffers) -> Version | None:
    """Return the CUDA version that the driver carries: what NVML says, else that of its branch, or the last before."""
    if host.cuda is not None:
        return version(host.cuda)
    return _cuda_of_driver(host.driver) if host.driver is not None else None


def _cuda_of_driver(driver: str) -> Version | None:
    branch = version(driver)[0]
    carried = [version(row["cuda"]) for row in _TABLES["branch_cuda"] if int(row["branch"]) <= branch]
    return max(carried, default=None)


def _driver_major(host: HostOffers, carried: Version | None) -> int | None:
    """Return the CUDA major of the driver; for one older than all listed branches, by the least driver of a major."""
    if carried is not None:
        return carried[0]
    majors = [row["cuda_major"] for row in _TABLES["minor_version_compat"]]
    return max((major for major in majors if _at_least(host.driver, _least_driver(major))), default=None)


def _least_driver(cuda_major: int) -> str | None:
    for row in _TABLES["minor_version_compat"]:
        if row["cuda_major"] == cuda_major:
            return str(row["min_driver"] or row["min_branch"])
    return None


def _at_least(driver: str | None, least: str | None) -> bool:
    return driver is not None and least is not None and version(driver) >= version(least)


def _carries(driver: str, toolkit: Version) -> bool:
    carried = _cuda_of_driver(driver)
    return carried is not None and carried[:2] >= toolkit


def _bundled_driver(cuda: str) -> str | None:
    """Return the driver that came with this toolkit; with its first release if the patch is not said."""
    wanted = version(cuda)
    drivers = [row for row in _TABLES["bundled"] if version(row["cuda"])[: len(wanted)] == wanted]
    first = min(drivers, key=lambda row: version(row["cuda"]), default=None)
    return str(first["driver"]) if first else None


def _first_toolkit(cc_major: int) -> str | None:
    for row in _TABLES["first_toolkit_by_cc_major"]:
        if row["cc_major"] == cc_major:
            return str(row["toolkit"])
    return None


def version(text: str) -> Version:
    """Return a version as numbers, so that 12.10 is newer than 12.9. Raises ValueError for anything else."""
    parts = text.split(".")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"{text[:64]!r} is no version")
    return tuple(map(int, parts))
