"""AMD and Ascend devices on recorded text: trees and tables of the documented form, no real card."""

from pathlib import Path

import pytest

from agents.node.amd import AmdDriver
from agents.node.ascend import AscendDriver, read
from agents.node.drivers import Driver
from agents.node.engines import Plan
from agents.node.engines.container_body import container_body

# The form that public reports of a training server show (recorded; figures made up).
TRAINING = """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0                   Version: 24.1.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 2     910B4               | OK            | 88.9        39                0    / 0             |
| 0                         | 0000:C2:00.0  | 17          0    / 0          2858 / 32768         |
+===========================+===============+====================================================+
| 3     910B4               | Alarm         | NA          40                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          4    / 32768         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 2       0                 | 4711          | python                   | 2800                    |
+===========================+===============+====================================================+
"""
INFERENCE = """
+--------------------------------------------------------------------------------------------------------+
| npu-smi 23.0.0                                   Version: 23.0.0                                       |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 0       310P3                 | OK              | 15.8         42                0     / 969           |
| 0       0                     | 0000:82:00.0    | 3            1074 / 21534                            |
+===============================+=================+======================================================+
"""


def test_a_training_card_is_read_with_its_hbm() -> None:
    (first, second), version = read(TRAINING)

    assert version == "24.1.0"
    assert (first["npu"], first["name"], first["uuid"]) == (2, "910B4", "NPU-0000:c2:00.0")
    assert first["readings"] == {
        "temperature_c": 39, "power_mw": 88_900, "utilization_percent": 17, "memory_used_mib": 2858,
        "memory_total_mib": 32_768,
    }  # fmt: skip
    assert second["state"] == "reset_required"
    assert "power_mw" not in second["readings"], "what it does not say must be absent, never 0"


def test_an_inference_card_is_read_with_its_memory() -> None:
    (row,), _ = read(INFERENCE)

    assert (row["readings"]["memory_used_mib"], row["readings"]["memory_total_mib"]) == (1074, 21_534)
    assert (row["name"], row["readings"]["utilization_percent"]) == ("310P3", 3)


def test_a_table_that_is_not_there_has_no_devices() -> None:
    assert read("") == ([], None)
    assert read("dcmi module initialize failed. ret is -8005")[0] == []


class Npu:
    def __init__(self) -> None:
        self.text: str | None = TRAINING
        self.now, self.asked = 100.0, 0
        self.driver = AscendDriver(ask=self.ask, now_s=lambda: self.now)

    def ask(self) -> str:
        self.asked += 1
        if self.text is None:
            raise TimeoutError
        return self.text


def test_a_tool_that_does_not_answer_leaves_old_readings_that_say_their_age() -> None:
    npu = Npu()
    assert [row["state"] for row in npu.driver.sample()] == ["ok", "reset_required"]
    npu.text, npu.now = None, npu.now + 30

    rows = npu.driver.sample()

    assert [(row["state"], row["age_s"]) for row in rows] == [("unresponsive", 30)] * 2
    assert npu.driver.conditions() == ["driver_unresponsive"]


def test_the_tool_is_not_asked_at_each_sync() -> None:
    npu = Npu()
    for _ in range(10):
        npu.driver.sample()
        npu.now += 1

    assert npu.asked == 1


def test_a_machine_without_the_tool_says_so() -> None:
    driver = AscendDriver(ask=lambda: (_ for _ in ()).throw(FileNotFoundError()))  # type: ignore[arg-type]

    assert (driver.sample(), driver.conditions()) == ([], ["driver_missing"])


def card(root: Path, number: int, *, bus: str, vendor: str = "0x1002", **files: str) -> Path:
    """Write one card as the kernel shows it: a link in class/drm to the device's folder."""
    device = root / "sys/devices/pci0000:00" / bus
    for name, text in {"vendor": vendor, "device": "0x74a1", **files}.items():
        path = device / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (device / f"drm/renderD{128 + number}").mkdir(parents=True)
    link = root / f"sys/class/drm/card{number}"
    link.mkdir(parents=True)
    (link / "device").symlink_to(device)
    return device


@pytest.fixture
def amd(tmp_path: Path) -> AmdDriver:
    card(
        tmp_path, 1, bus="0000:c1:00.0", unique_id="d3b2c1a0f9e8d7c6", mem_info_vram_total=str(192 << 30),
        mem_info_vram_used=str(300 << 20), gpu_busy_percent="7", current_link_width="16", max_link_width="16",
        hwmon__hwmon5__temp1_input="41000", hwmon__hwmon5__power1_average="138000000",
        hwmon__hwmon5__power1_cap="750000000", product_name="AMD Instinct MI300X",
    )  # fmt: skip
    card(tmp_path, 0, bus="0000:05:00.0", mem_info_vram_total=str(16 << 30))
    card(tmp_path, 2, bus="0000:02:00.0", vendor="0x1a03")  # the board's own display chip
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.8.5\n")
    return AmdDriver(root=tmp_path)


def test_amd_cards_are_found_by_vendor_and_ordered_by_bus(amd: AmdDriver) -> None:
    facts = amd.inventory()

    assert facts.driver_version == "6.8.5"
    assert [(gpu["uuid"], gpu["memory_mib"], gpu["pci_device_id"]) for gpu in facts.gpus] == [
        ("AMD-0000:05:00.0", 16_384, "1002:74a1"), ("AMD-d3b2c1a0f9e8d7c6", 196_608, "1002:74a1"),
    ]  # fmt: skip
    assert facts.gpus[1]["name"] == "AMD Instinct MI300X"


def test_amd_readings_are_in_our_units_and_absent_ones_are_left_out(amd: AmdDriver) -> None:
    bare, full = amd.sample()

    assert full["readings"] == {
        "temperature_c": 41, "power_mw": 138_000, "power_limit_mw": 750_000, "utilization_percent": 7,
        "memory_used_mib": 300, "memory_total_mib": 196_608, "pcie_width": 16, "pcie_width_max": 16,
    }  # fmt: skip
    assert bare["readings"] == {"memory_total_mib": 16_384}


def test_a_container_gets_the_nodes_of_its_cards_and_sees_just_those(amd: AmdDriver) -> None:
    nodes = amd.device_nodes(["AMD-d3b2c1a0f9e8d7c6"])
    plan = Plan(name="gy-x", image="i", labels={}, env={}, devices=[], device_nodes=nodes)

    made = container_body(plan, image_user="1000", user_namespaces=False, init=True, nofile_limit=1024)["HostConfig"]

    assert nodes == ["/dev/kfd", "/dev/dri/renderD129"]
    assert [(row["PathOnHost"], row["CgroupPermissions"]) for row in made["Devices"]] == [
        ("/dev/kfd", "rw"), ("/dev/dri/renderD129", "rw"),
    ]  # fmt: skip
    assert made["Privileged"] is False
    assert amd.visible_in("renderD129\ncard1\n") == ["AMD-d3b2c1a0f9e8d7c6"]
    assert amd.visible_in("") == []


def test_an_npu_s_nodes_are_its_own_and_the_managers(tmp_path: Path) -> None:
    driver = Npu().driver
    driver.inventory()

    assert driver.device_nodes(["NPU-0000:c2:00.0"]) == [
        "/dev/davinci2", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc",
    ]  # fmt: skip
    assert driver.visible_in("davinci2\ndavinci_manager\nnull\n") == ["NPU-0000:c2:00.0"]


def test_a_machine_without_amd_cards_says_so(tmp_path: Path) -> None:
    driver: Driver = AmdDriver(root=tmp_path)

    assert (driver.sample(), driver.conditions()) == ([], ["driver_missing"])
