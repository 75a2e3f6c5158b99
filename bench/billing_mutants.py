"""Seeded defects in the money code, each of which a named test must catch: `make mutants-billing`.

A mutant is one replacement in one file, in a copy of the tree; the tests named beside it must fail on it. Prints every
survivor and `caught/total`; exits 1 if one survives. `--only NAME` runs one, `--list` shows them.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))


def mutants() -> tuple[Any, ...]:
    import billing_mutants_of_money
    import billing_mutants_of_time

    return (*billing_mutants_of_time.MUTANTS, *billing_mutants_of_money.MUTANTS)


def stale(chosen: Iterable[Any]) -> list[str]:
    """Name the mutants whose text does not stand once in their file: the code has moved on without them."""
    found = [(m, (ROOT / m.path).read_text().count(m.old)) for m in chosen]
    return [f"{m.name}: its text stands {n} times in {m.path}" for m, n in found if n != 1]


def caught(mutant: Any, tree: Path, *, fresh: bool) -> bool:
    """Plant the mutant in the copy, run its tests, take it out again; True if one of them failed."""
    file = tree / mutant.path
    right = file.read_text()
    # The tables of the last mutant serve, unless they are what this or the last one has changed.
    database = "--create-db" if fresh or "migrations" in mutant.path else "--reuse-db"
    file.write_text(right.replace(mutant.old, mutant.new))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", database, *mutant.tests],
            cwd=tree, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
    finally:
        file.write_text(right)
    if done.returncode not in (0, 1):  # 1: a test failed; anything else proves nothing
        raise SystemExit(f"{mutant.name}: the tests did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the mutants whose name contains this")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    chosen = [mutant for mutant in mutants() if asked.only in mutant.name]
    if asked.list:
        print("\n".join(f"{m.name}: {m.path}" for m in chosen))
        return
    if lost := stale(chosen):
        raise SystemExit("\n".join(lost))
    os.environ.setdefault("DEBUG", "1")
    survivors = []
    with tempfile.TemporaryDirectory(prefix="gpuyard-mutants-") as folder:
        tree = Path(folder) / "tree"
        skipped = shutil.ignore_patterns(".git", ".venv", "var", "out", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, tree, ignore=skipped)
        for number, mutant in enumerate(chosen):
            fresh = number == 0 or "migrations" in chosen[number - 1].path
            if not caught(mutant, tree, fresh=fresh):
                survivors.append(mutant.name)
            print(f"{'SURVIVED' if mutant.name in survivors else 'caught'}: {mutant.name}", flush=True)
    print(f"{len(chosen) - len(survivors)}/{len(chosen)} caught")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
