"""Every worked figure of billing.json through the domain functions and the SQL that posts, and where a door shows it
(vectors_at_doors) through the API as well.

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


OWN_VECTORS = json.loads(OWN.read_text())["vectors"]


def kind_of(vector: dict[str, Any]) -> str:
    """Return the id of our vector that this one is like: its own, one that it begins with, or one of the same form."""
    name = str(vector["id"])
    like = [own["id"] for own in OWN_VECTORS if name.startswith(own["id"])]
    like += [own["id"] for own in OWN_VECTORS if _form(own) == _form(vector)]
    like += [own["id"] for own in OWN_VECTORS if _form(own)[0] == _form(vector)[0]]
    return like[0] if like else name


def _form(vector: dict[str, Any]) -> tuple[set[str], set[str]]:
    return set(vector["inputs"]), {key for key in vector["expected"] if not key.startswith("wrong")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    path = metafunc.config.getoption("--vectors", default=None) or OWN
    vectors = json.loads(Path(path).read_text())["vectors"]
    metafunc.parametrize(
        "vector",
        [
            pytest.param(v, id=v["id"], marks=pytest.mark.django_db(transaction=kind_of(v) in THREADED))
            for v in vectors
            if "vector" in metafunc.fixturenames
        ],
    )


def test_vector(vector: dict[str, Any]) -> None:
    right = {key: value for key, value in vector["expected"].items() if not key.startswith("wrong")}
    wrong = {key: value for key, value in vector["expected"].items() if key.startswith("wrong")}

    found = ADAPTERS[kind_of(vector)]({**vector["inputs"], "asked": tuple(right)})

    assert found == right, vector.get("why")
    for key, value in wrong.items():
        assert value not in found.values(), f"{key}: {vector.get('why')}"
    assert reconcile.findings() == []
