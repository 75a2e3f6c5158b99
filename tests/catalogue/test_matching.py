"""Which model a reported device is, on the whole catalogue."""

import json
from pathlib import Path
from typing import Any

import pytest

from catalogue import loading, matching
from catalogue.matching import Candidate, recognise
from catalogue.models import GpuModel

ENTRIES: list[dict[str, Any]] = json.loads((loading.DATA / "gpu_catalog.json").read_text(encoding="utf-8"))["gpus"]
CANDIDATES = [Candidate.of(GpuModel(slug=entry["slug"], **loading.published(entry))) for entry in ENTRIES]
RTX_3060, RTX_4090 = "NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 4090"


def reported_mib(entry: dict[str, Any]) -> int | None:
    """The memory of one device of this model, as its driver reports it."""
    if entry["memory_gb"] is None:
        return 65536
    devices = entry["devices_per_board"] if entry["figures_are_per"] == "board" else 1
    return int(entry["memory_gb"] * 1024 / devices)


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["slug"] for entry in ENTRIES])
def test_each_model_is_recognised_by_all_its_names_and_ids_and_as_nothing_else(entry: dict[str, Any]) -> None:
    for name in entry["driver_names"]:
        for pci_id in entry["pci_ids"] or [""]:
            found = recognise(CANDIDATES, driver_name=name, pci_id=pci_id, memory_mib=reported_mib(entry))
            assert found == entry["slug"]


@pytest.mark.parametrize(
    ("name", "pci_id", "memory_mib", "slug"),
    [
        (RTX_3060, "10de:2504", 12288, "RTX_3060_12G"),
        (RTX_3060, "10de:2504", 8192, "RTX_3060_8G"),
        (RTX_3060.removeprefix("NVIDIA "), "10DE:2504", 12288, "RTX_3060_12G"),
        (RTX_4090, "10de:2684", 24564, "RTX_4090_24G"),
        (RTX_4090, "10de:2684", 49140, None),
        (RTX_4090, "10de:2684", None, None),
        (RTX_4090, "10de:ffff", 24564, "RTX_4090_24G"),
        (RTX_4090, "", 24564, "RTX_4090_24G"),
        ("", "10de:2684", 24564, "RTX_4090_24G"),
        ("", "10de:2684", 49140, None),
        ("", "", 24564, None),
        ("Graphics Device", "10de:2684", 24564, None),
        ("NVIDIA GeForce RTX 9090", "10de:ffff", 24564, None),
        ("NVIDIA A2", "10de:25b6", 15356, "A2_16G"),
        ("NVIDIA A16", "10de:25b6", 15356, "A16_16G"),
        ("", "10de:25b6", 15356, None),
        ("NVIDIA GeForce RTX 4060 Ti", "10de:2788", 8188, "RTX_4060_TI_8G"),
        ("NVIDIA GeForce RTX 4060 Ti", "10de:2788", 16380, "RTX_4060_TI_16G"),
        ("AMD Instinct MI250X", "1002:740c", 65520, "MI250X_128G"),
        ("AMD Instinct MI250", "1002:740c", 131072, None),
        ("NVIDIA B200", "10de:2901", 183359, "B200_180G"),
        ("NVIDIA GB10", "10de:2e12", None, "GB10_128G"),
        ("910B3", "19e5:d802", 65536, "ASCEND_910B_64G"),
        ("910B4", "19e5:d802", 32768, "ASCEND_910B4_32G"),
        ("910B4", "19e5:d802", 65536, None),
    ],
)
def test_id_then_memory_then_name_decide(name: str, pci_id: str, memory_mib: int | None, slug: str | None) -> None:
    assert recognise(CANDIDATES, driver_name=name, pci_id=pci_id, memory_mib=memory_mib) == slug


@pytest.mark.parametrize(("memory_mib", "fits"), [(22609, False), (22610, True), (25067, True), (25068, False)])
def test_the_memory_may_differ_from_the_nominal_by_what_ecc_takes_and_no_more(memory_mib: int, fits: bool) -> None:
    found = recognise(CANDIDATES, driver_name=RTX_4090, pci_id="10de:2684", memory_mib=memory_mib)

    assert (found is not None) == fits


def test_two_models_that_fit_alike_are_none() -> None:
    twins = [
        Candidate(slug=slug, driver_names=frozenset({"x"}), pci_ids=frozenset({"1:2"}), memory_gib=8)
        for slug in ("ONE_8G", "OTHER_8G")
    ]

    assert recognise(twins, driver_name="X", pci_id="1:2", memory_mib=8192) is None
    assert recognise(twins[:1], driver_name="X", pci_id="1:2", memory_mib=8192) == "ONE_8G"


@pytest.mark.django_db
def test_a_device_is_matched_against_the_catalogue_as_it_is_now() -> None:
    loading.load()
    GpuModel.objects.filter(slug="RTX_3060_8G").update(driver_names=["Something else"])

    found = matching.match(driver_name=RTX_4090, pci_id="10de:2684", memory_mib=24564)

    assert found is not None
    assert found.slug == "RTX_4090_24G"
    assert matching.match(driver_name=RTX_3060, pci_id="10de:2504", memory_mib=8192) is None


def test_the_file_of_the_catalogue_says_the_rules_that_are_followed() -> None:
    rules = " ".join(json.loads(Path(loading.DATA / "gpu_catalog.json").read_text(encoding="utf-8"))["rules"])

    assert f"{matching.LEAST_PERCENT} % and {matching.MOST_PERCENT} %" in rules
