"""The catalogue's files and what is written from them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, transaction

from catalogue import figures, loading, naming
from catalogue.models import GpuModel, Region, Zone

FILE = loading.DATA / "gpu_catalog.json"
DOCUMENT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
ENTRIES: list[dict[str, Any]] = DOCUMENT["gpus"]

pytestmark = pytest.mark.django_db


def changed_file(folder: Path, slug: str, **members: Any) -> Path:
    entries = [entry | members if entry["slug"] == slug else entry for entry in ENTRIES]
    path = folder / "gpu_catalog.json"
    path.write_text(json.dumps(DOCUMENT | {"gpus": entries}), encoding="utf-8")
    return path


def test_every_entry_of_the_file_becomes_a_model() -> None:
    loaded = loading.load()

    assert loaded.models == GpuModel.objects.count() == DOCUMENT["count"] == len(ENTRIES)
    a100 = GpuModel.objects.get(slug="A100_80G")
    assert (a100.memory_gib, a100.vendor, a100.compute_capability) == (80, "nvidia", "8.0")
    assert "2g.20gb" in a100.mig_profiles
    assert a100.interconnect_gb_s == 600


def test_what_the_file_does_not_know_is_unknown_and_never_zero() -> None:
    loading.load()

    renamed = {"memory_gb": "memory_gib", "interconnect_gb_s_total_bidir": "interconnect_gb_s"}
    models = {model.slug: model for model in GpuModel.objects.all()}
    figures_of_file = (
        "memory_gb", "memory_bandwidth_gb_s", "fp16_tensor_dense_tflops", "interconnect_gb_s_total_bidir", "tdp_w",
        "pcie_gen", "devices_per_board",
    )  # fmt: skip
    for entry in ENTRIES:
        for name in figures_of_file:
            assert getattr(models[entry["slug"]], renamed.get(name, name)) == entry[name]
    assert models["HYGON_K100_AI"].memory_gib is None


def test_names_are_unique_however_they_are_written() -> None:
    assert naming.clashes((entry["slug"], entry["aliases"]) for entry in ENTRIES) == []
    counted = Counter(naming.bare(name) for entry in ENTRIES for name in {entry["slug"], *entry["aliases"]})
    assert counted["A10080G"] == 1
    assert "A100" not in counted


def test_loading_again_writes_nothing() -> None:
    loading.load()

    assert loading.load() == loading.Loaded(models=0, regions=0, zones=0)


def test_what_an_operator_decided_stays() -> None:
    loading.load()
    GpuModel.objects.filter(slug="L40S_48G").update(sold=False, fractions=[], name="Ours")
    Region.objects.filter(slug="sg-1").update(name="Lion City")

    loading.load()

    l40s = GpuModel.objects.get(slug="L40S_48G")
    assert (l40s.sold, l40s.fractions, l40s.name) == (False, [], "Ours")
    assert Region.objects.get(slug="sg-1").name == "Lion City"


def test_a_changed_entry_brings_its_model_up_to_date_but_not_what_is_sold_of_it(tmp_path: Path) -> None:
    loading.load()
    GpuModel.objects.filter(slug="L40S_48G").update(fractions=["0.5"], sold=False)

    loaded = loading.load(catalogue=changed_file(tmp_path, "L40S_48G", tdp_w=351, memory_bandwidth_gb_s=None))

    l40s = GpuModel.objects.get(slug="L40S_48G")
    assert loaded.models == 1
    assert (l40s.tdp_w, l40s.memory_bandwidth_gb_s, l40s.fractions, l40s.sold) == (351, None, ["0.5"], False)


def test_a_file_whose_names_clash_is_refused_whole(tmp_path: Path) -> None:
    with pytest.raises(loading.NamesClash) as refusal:
        loading.load(catalogue=changed_file(tmp_path, "L40S_48G", aliases=["L40S", "A100-80G"]))

    assert "A100" in refusal.value.detail
    assert not GpuModel.objects.exists()


def test_fractions_are_those_of_the_market_file() -> None:
    loading.load()

    sold = {model.slug: model.fractions for model in GpuModel.objects.exclude(fractions=[])}
    assert sold == {"L40S_48G": ["0.25", "0.5"], "RTX_4090_24G": ["0.125", "0.25", "0.5"]}


def test_simulated_hardware_stands_in_a_region_of_its_own_and_is_paid_in_play_money(capsys: Any) -> None:
    call_command("load_catalogue")

    assert "88 GPU models, 5 regions and 8 zones" in capsys.readouterr().out
    assert {region.slug: region.currency for region in Region.objects.all()} == {
        "cn-guian": "CNY", "cn-hangzhou": "CNY", "cn-shanghai": "CNY", "sg-1": "CNY", "sim": "XTS",
    }  # fmt: skip
    assert list(Region.objects.filter(simulated=True).values_list("slug", flat=True)) == ["sim"]
    assert set(Zone.objects.filter(region__slug="sim").values_list("slug", flat=True)) == {"sim-a", "sim-b"}
    assert "simulated" in str(Region.objects.get(slug="sim"))


@pytest.mark.parametrize(("currency", "simulated"), [("XTS", False), ("CNY", True)])
def test_a_region_is_simulated_if_and_only_if_it_is_paid_in_play_money(currency: str, simulated: bool) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Region.objects.create(slug="odd-1", name="Odd", currency=currency, simulated=simulated)


@pytest.mark.parametrize("field", ["memory_gib", "tdp_w", "memory_bandwidth_gb_s", "devices_per_board", "pcie_gen"])
def test_no_figure_is_zero(field: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        GpuModel.objects.create(slug="ODD_1G", vendor="x", name="x", **{field: 0})


def test_a_figure_of_low_confidence_is_unknown() -> None:
    loading.load()
    d32 = GpuModel.objects.get(slug="RTX_5090_D_32G")
    b200 = GpuModel.objects.get(slug="B200_180G")
    ascend = GpuModel.objects.get(slug="ASCEND_910B2_64G")

    assert d32.fp16_tensor_dense_tflops is not None
    assert figures.known(d32, "fp16_tensor_dense_tflops") is None
    assert figures.known(b200, "memory_bandwidth_gb_s") == b200.memory_bandwidth_gb_s
    assert figures.known(ascend, "memory_gib") == 64
    assert figures.known(ascend, "pci_ids") is None


def test_figures_of_a_board_are_halved_for_each_of_its_two_devices() -> None:
    loading.load()
    mi250 = GpuModel.objects.get(slug="MI250_128G")

    assert figures.known(mi250, "memory_gib") == 64
    assert figures.known(mi250, "fp16_tensor_dense_tflops") == mi250.raw["fp16_tensor_dense_tflops"] / 2
    assert figures.known(mi250, "pcie_gen") == 4
    assert figures.known(GpuModel.objects.get(slug="A16_16G"), "memory_gib") == 16
