"""The doctor's look at the GPUs and their driver."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from agents.node.doctor_words import Finding, numbers
from agents.node.drivers import Driver

DRIVER_FLOOR = 535
INSTALL = (
    f"install the NVIDIA driver, {DRIVER_FLOOR} or newer (Debian: apt-get install nvidia-driver; Ubuntu: ubuntu-drivers"
    " install), then restart the machine"
)


def look(settings: dict[str, Any]) -> Iterator[Finding]:
    if settings.get("driver") == "sim":
        yield Finding("gpus", "warn", f"simulated: {', '.join(settings.get('sim', []))}", "fine for a demonstration")
        return
    if settings.get("driver", "nvidia") != "nvidia":
        yield from _of_another_make(settings["driver"])
        return
    answer = _ask_probe()
    if "inventory" not in answer:
        yield _no_driver(answer)
        return
    inventory = answer["inventory"]
    gpus, version = inventory["gpus"], str(inventory["driver_version"])
    if not gpus:
        yield Finding("gpus", "bad", "the driver shows no GPU", "look at `dmesg | grep -i nvrm`; reseat or replace it")
    else:
        names = ", ".join(sorted({gpu["name"] for gpu in gpus}))
        yield Finding("gpus", "good", f"{len(gpus)} x {names}, driver {version}, CUDA {inventory['cuda_version']}")
    if (numbers(version) or (0,))[0] < DRIVER_FLOOR:
        mend = f"install driver {DRIVER_FLOOR} or newer, then restart the machine"
        yield Finding("driver", "bad", f"driver {version} is older than {DRIVER_FLOOR}", mend)
    mend = "restart the machine; if it comes back, take the board out of service"
    for device in [*answer["sample"]["devices"], *inventory["unreadable"]]:
        if device["state"] != "ok":
            name = device.get("uuid") or f"GPU {device['index']}"
            yield Finding("gpus", "bad", f"{name} is {device['state'].replace('_', ' ')}", mend)
    if shutil.which("nvidia-ctk") is None:
        mend = "install nvidia-container-toolkit 1.17.8 or newer, and run: nvidia-ctk runtime configure"
        yield Finding("toolkit", "bad", "containers cannot be given GPUs: nvidia-container-toolkit is missing", mend)


def _of_another_make(name: str) -> Iterator[Finding]:
    """AMD and Ascend: files and a command of theirs tell all; no library is loaded."""
    if name == "amd":
        from agents.node.amd import AmdDriver

        driver: Driver = AmdDriver()
        mend = "install the amdgpu driver (ROCm), and let the agent's user into the groups render and video"
    else:
        from agents.node.ascend import AscendDriver

        driver = AscendDriver()
        mend = "install the Ascend driver and firmware, and see that `npu-smi info` lists the cards"
    facts, faults = driver.inventory(), driver.conditions()
    if not facts.gpus or faults:
        yield Finding("driver", "bad", f"no {name} card is seen ({', '.join(faults) or 'the list is empty'})", mend)
        return
    names = ", ".join(sorted({str(gpu["name"]) for gpu in facts.gpus}))
    yield Finding("gpus", "good", f"{len(facts.gpus)} x {names}, driver {facts.driver_version or 'of the kernel'}")


def _no_driver(answer: dict[str, Any]) -> Finding:
    code = answer.get("code")
    text, mend = {
        9: ("the NVIDIA driver is not loaded", "install it, or run: modprobe nvidia; then restart the machine"),
        12: ("NVIDIA's library (libnvidia-ml.so.1) is not installed", INSTALL),
        18: ("the driver was updated under the running kernel", "restart the machine; until then no lease can start"),
        4: ("the agent may not open the GPUs", "add the agent's user to the group that owns /dev/nvidia*"),
    }.get(
        code if isinstance(code, int) else -1,
        (f"NVIDIA's library does not answer: {answer.get('error', 'no answer')}", "restart the machine"),
    )
    return Finding("driver", "bad", text, mend)


def _ask_probe() -> dict[str, Any]:
    """Ask the library in a process of its own, which may hang or die without taking the doctor with it."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "agents.node.main", "record"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return {"error": "it hangs or crashes"}
    return answer if isinstance(answer, dict) else {}
