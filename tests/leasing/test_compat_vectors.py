"""The cases of `cuda_driver.json`; `--vectors PATH` runs another file of the same form."""

import json
from pathlib import Path
from typing import Any

import pytest

from leasing.compat import HostOffers, ImageNeeds, compat

VECTORS = Path(__file__).parents[1] / "vectors" / "cuda_driver.json"
TABLES = Path(__file__).parents[2] / "leasing" / "data" / "cuda_driver.json"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        path = metafunc.config.getoption("--vectors", default=None) or VECTORS
        cases = json.loads(Path(path).read_text(encoding="utf-8"))["cases"]
        metafunc.parametrize("case", cases, ids=[case["name"] for case in cases])


def test_the_case_has_its_one_verdict(case: dict[str, Any]) -> None:
    archs = case["image"]["archs"]
    image = ImageNeeds(**case["image"] | {"archs": tuple(archs) if archs is not None else None})

    verdict = compat(image, HostOffers(**case["host"]))

    assert (verdict.result, verdict.need) == (case["result"], case["need"])
    assert verdict.runs == case["result"].startswith("ok")
    assert verdict.runs or verdict.reasons


def test_the_tables_of_the_product_are_those_of_the_vectors() -> None:
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    del vectors["cases"]

    assert json.loads(TABLES.read_text(encoding="utf-8")) == vectors
