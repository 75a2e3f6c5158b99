"""Every worked figure of billing.json through the domain functions and the SQL that posts.

`--vectors PATH` runs another file of the same form. No adapter knows an expected figure.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import vectors_of_money
import vectors_of_time

from billing import reconcile

ADAPTERS = {**vectors_of_time.ADAPTERS, **vectors_of_money.ADAPTERS}
OWN = Path(__file__).parents[1] / "vectors" / "billing.json"
THREADED = {"B05"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    path = metafunc.config.getoption("--vectors", default=None) or OWN
    vectors = json.loads(Path(path).read_text())["vectors"]
    metafunc.parametrize(
        "vector",
        [
            pytest.param(v, id=v["id"], marks=pytest.mark.django_db(transaction=v["id"] in THREADED))
            for v in vectors
            if "vector" in metafunc.fixturenames
        ],
    )


def test_vector(vector: dict[str, Any]) -> None:
    right = {key: value for key, value in vector["expected"].items() if not key.startswith("wrong")}
    wrong = {key: value for key, value in vector["expected"].items() if key.startswith("wrong")}

    found = ADAPTERS[vector["id"]]({**vector["inputs"], "asked": tuple(right)})

    assert found == right, vector["why"]
    for key, value in wrong.items():
        assert value not in found.values(), f"{key}: {vector['why']}"
    assert reconcile.findings() == []
