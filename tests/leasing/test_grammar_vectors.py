"""The vectors of the request grammar; `--vectors PATH` runs another file of the same form."""

import json
from pathlib import Path
from typing import Any

import pytest

from leasing.grammar import Catalogue, Gpu, GrammarError, Request, from_fields, parse

VECTORS = Path(__file__).parents[1] / "vectors" / "grammar.json"
WHOLE = Path(__file__).parents[2] / "platform" / "catalogue" / "data" / "gpu_catalog.json"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    path = metafunc.config.getoption("--vectors", default=None) or VECTORS
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    if "vector" in metafunc.fixturenames:
        vectors = document["vectors"]
        metafunc.parametrize("vector", vectors, ids=[vector["id"] for vector in vectors])
    if "catalogue" in metafunc.fixturenames:
        own = json.loads(VECTORS.read_text(encoding="utf-8"))
        gpus = document.get("gpus", own["gpus"])
        regions = tuple(document.get("regions", own["regions"]))
        metafunc.parametrize(
            "catalogue", [_catalogue(gpus, regions), _catalogue(_whole(gpus), regions)], ids=["own", "whole"]
        )


def _catalogue(gpus: list[dict[str, Any]], regions: tuple[str, ...]) -> Catalogue:
    return Catalogue(
        gpus=tuple(
            Gpu(
                slug=gpu["slug"],
                aliases=tuple(gpu["aliases"]),
                memory_gib=gpu["memory_gb"],
                mig_profiles=tuple(gpu["mig"]["profiles"]),
                fractions=tuple(gpu.get("fractions", ())),
            )
            for gpu in gpus
        ),
        regions=regions,
    )


def _whole(gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the whole catalogue of the product, sold in the fractions of the vectors' part of it."""
    fractions = {gpu["slug"]: gpu.get("fractions", []) for gpu in gpus}
    whole = json.loads(WHOLE.read_text(encoding="utf-8"))["gpus"]
    return [gpu | {"fractions": fractions.get(gpu["slug"], [])} for gpu in whole]


def _read(vector: dict[str, Any], catalogue: Catalogue) -> Request:
    if "fields" in vector:
        return from_fields(vector["fields"], catalogue)
    return parse(vector["input"], catalogue)


def test_the_vector_has_its_one_answer(vector: dict[str, Any], catalogue: Catalogue) -> None:
    if "error" in vector:
        with pytest.raises(GrammarError) as refusal:
            _read(vector, catalogue)

        fault = refusal.value
        assert (fault.kind, fault.position) == (vector["error"]["kind"], vector["error"]["position"])
        assert set(vector["error"].get("nearest", [])) <= set(fault.nearest)
        assert fault.detail
        for form in fault.nearest:
            assert str(parse(form, catalogue)) == form
        return

    request = _read(vector, catalogue)

    assert str(request) == vector["canonical"]
    assert request.to_json() == vector["parsed"]
    assert parse(vector["canonical"], catalogue) == request
    assert Request.from_json(vector["parsed"], catalogue) == request
