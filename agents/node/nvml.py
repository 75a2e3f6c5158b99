"""What NVIDIA's library says of a device, figure by figure (NVML.md section 2); each is there or absent, alone.

For the probe process only: whoever imports this loads the GPU library.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

MIB = 1024 * 1024
# States of the GPU, not of one figure.
GPU_IS_LOST, RESET_REQUIRED, UNKNOWN, LIBRARY_MISMATCH = 15, 16, 999, 18
STATES = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset_required"}
MAX_LINKS = 18

# What pynvml raises for a function without a version that the driver has in another one only: no NVMLError.
MISMATCH: type[Exception] = getattr(pynvml, "NVMLLibraryMismatchError", UnicodeDecodeError)
# The list of processes by what runs, newest layout first.
PROCESS_LISTS = tuple(
    tuple(f"nvmlDeviceGet{kind}RunningProcesses{version}" for version in ("_v3", "_v2"))
    for kind in ("Compute", "Graphics")
)

Figures = dict[str, Any]


def text(value: Any) -> str:
    """Return a name of the driver as text; some are bytes, and some of those are no UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def code_of(fault: BaseException) -> int:
    """Return NVML's number of a fault. Its errors cannot be hashed or compared with others: only `value` counts."""
    return int(getattr(fault, "value", UNKNOWN) or 0)


class Absent(Exception):
    """The figure is not there on this device."""


class GpuFault(Exception):
    """The device, not the figure, is at fault: `state` of its report."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


def ask(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call NVML. Raises Absent for a figure that is not there, GpuFault for a device that is not."""
    try:
        return function(*arguments, **options)
    except (UnicodeDecodeError, MISMATCH):
        raise Absent from None
    except pynvml.NVMLError as fault:
        code = code_of(fault)
        if code in STATES:
            raise GpuFault(STATES[code]) from None
        if code == LIBRARY_MISMATCH:
            raise
        raise Absent from None


def field(handle: Any, number: int) -> Any:
    """Return one field value: NVML answers with a return code per field, and raises nothing."""
    value = ask(pynvml.nvmlDeviceGetFieldValues, handle, [number])[0]
    if value.nvmlReturn != 0:
        if value.nvmlReturn in STATES:
            raise GpuFault(STATES[value.nvmlReturn])
        raise Absent
    kinds = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
    return getattr(value.value, kinds.get(value.valueType, "ullVal"))


def named(name: str) -> Any:
    """Return a function of pynvml; an older one lacks it. Raises Absent."""
    function = getattr(pynvml, name, None)
    if function is None:
        raise Absent
    return function


def _memory(handle: Any) -> Figures:
    info = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, version=pynvml.nvmlMemory_v2)
    return {"memory_used_mib": info.used // MIB, "memory_total_mib": info.total // MIB}


def _utilization(handle: Any) -> Figures:
    rates = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return {"utilization_percent": rates.gpu, "memory_utilization_percent": rates.memory}


def _ecc_mode(handle: Any) -> Figures:
    current, pending = ask(pynvml.nvmlDeviceGetEccMode, handle)
    return {"ecc_mode": current, "ecc_pending": pending}


def _rows(handle: Any) -> Figures:
    corrected, uncorrected, pending, failed = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    return {
        "rows_remapped_corrected": corrected,
        "rows_remapped_uncorrected": uncorrected,
        "row_remap_pending": bool(pending),
        "row_remap_failed": bool(failed),
    }


def _slowdown(handle: Any) -> Figures:
    try:
        function = named("nvmlDeviceGetCurrentClocksEventReasons")
        return {"slowdown_bits": ask(function, handle)}
    except Absent:
        # Before driver 535 it had another name.
        return {"slowdown_bits": ask(named("nvmlDeviceGetCurrentClocksThrottleReasons"), handle)}


def _nvlinks(handle: Any) -> Figures:
    up = seen = 0
    for link in range(MAX_LINKS):
        try:
            up += int(pynvml.nvmlDeviceGetNvLinkState(handle, link))
            seen += 1
        except pynvml.NVMLError as fault:
            if code_of(fault) in STATES:
                raise GpuFault(STATES[code_of(fault)]) from None
            break
    if not seen:
        raise Absent
    return {"nvlinks_up": up}


def _processes(handle: Any) -> Figures:
    """Return live processes only: their list has had another layout in some drivers, so a pid must be in /proc."""
    found: dict[int, int | None] = {}
    for names in PROCESS_LISTS:
        for row in _first(names, handle):
            if Path(f"/proc/{row.pid}").exists():
                memory = getattr(row, "usedGpuMemory", None)
                found[int(row.pid)] = None if memory is None else int(memory) // MIB
    return {"processes": [{"pid": pid, "memory_mib": memory} for pid, memory in sorted(found.items())]}


def _first(names: tuple[str, ...], handle: Any) -> list[Any]:
    """Return what the first of the functions that this driver has answers; nothing if it has none."""
    for name in names:
        try:
            return list(ask(named(name), handle))
        except Absent:
            continue
    return []


def _simple(name: str, function: str, *arguments: Any) -> Callable[[Any], Figures]:
    return lambda handle: {name: ask(named(function), handle, *arguments)}


def _field(name: str, number: str) -> Callable[[Any], Figures]:
    return lambda handle: {name: field(handle, named(number))}


FAST: tuple[Callable[[Any], Figures], ...] = (
    _memory,
    _utilization,
    _slowdown,
    _processes,
    _simple("temperature_c", "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
    _simple("power_mw", "nvmlDeviceGetPowerUsage"),
    _simple("energy_mj", "nvmlDeviceGetTotalEnergyConsumption"),
    _simple("sm_clock_mhz", "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
    _simple("memory_clock_mhz", "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
    _simple("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _simple("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    _simple("pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
    _simple("ecc_corrected", "nvmlDeviceGetTotalEccErrors", 0, 0),
    _simple("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", 1, 0),
    _rows,
    _field("recovery_action", "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
    _field("memory_temperature_c", "NVML_FI_DEV_MEMORY_TEMP"),
    _field("pcie_tx_bytes", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES"),
)
SLOW: tuple[Callable[[Any], Figures], ...] = (
    _ecc_mode,
    _nvlinks,
    _simple("fan_percent", "nvmlDeviceGetFanSpeed_v2", 0),
    _simple("power_limit_mw", "nvmlDeviceGetEnforcedPowerLimit"),
    _simple("power_default_limit_mw", "nvmlDeviceGetPowerManagementDefaultLimit"),
    _simple("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    _simple("compute_mode", "nvmlDeviceGetComputeMode"),
    _simple("persistence", "nvmlDeviceGetPersistenceMode"),
    _simple("retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
)


def identity(index: int) -> dict[str, Any]:
    handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    device, vendor = pci.pciDeviceId >> 16, pci.pciDeviceId & 0xFFFF
    return {
        "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
        "index": index,
        "name": maybe(lambda: text(ask(pynvml.nvmlDeviceGetName, handle))) or "",
        "pci_device_id": f"{vendor:04x}:{device:04x}",
        "pci_bus_id": _short_bus(text(pci.busId)),
        "memory_mib": maybe(lambda: _memory(handle)["memory_total_mib"]) or _unified_memory_mib(),
        "compute_capability": maybe(lambda: "{}.{}".format(*ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle))),
        "nvlink_peers": [],
        "mig": maybe(lambda: _mig(handle)),
        "vbios": maybe(lambda: text(ask(pynvml.nvmlDeviceGetVbiosVersion, handle))),
        "serial": maybe(lambda: text(ask(pynvml.nvmlDeviceGetSerial, handle))),
    }


def _mig(handle: Any) -> dict[str, Any]:
    current, pending = ask(pynvml.nvmlDeviceGetMigMode, handle)
    return {"enabled": bool(current), "pending": bool(pending)}


def maybe(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (Absent, pynvml.NVMLError):
        return None


def _short_bus(bus: str) -> str:
    """Return the address with a domain of four digits in lower case, as sysfs and the kernel log have it."""
    domain, _, rest = bus.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else bus


def _unified_memory_mib() -> int | None:
    """Return the machine's memory: a device without its own (GB10) answers NOT_SUPPORTED, and is no empty one."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("MemTotal:")), None)
