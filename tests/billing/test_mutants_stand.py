"""Every seeded defect of `make mutants-billing` still has its text in the code, once, and its tests are there."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_mutant_can_be_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    import billing_mutants

    all_of_them = billing_mutants.mutants()

    assert billing_mutants.stale(all_of_them) == []
    assert {test for m in all_of_them for test in m.tests if not (ROOT / test.partition("::")[0]).exists()} == set()
    assert len({m.name for m in all_of_them}) == len(all_of_them) >= 88
