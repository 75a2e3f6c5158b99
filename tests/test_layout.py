"""The house rules of the layout that no linter knows: see docs/decisions and the README's table."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [
    ROOT / package
    for package in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
]
SOURCES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
# Names that say what kind of thing is inside, not which.
NAMES_THAT_ATTRACT = {"utils", "util", "services", "service", "helpers", "helper", "core", "common", "misc", "lib"}
OF_ONE_MACHINE = re.compile(r"/root/\.|/home/\w+/|pythonhosted|extra-index-url|--index-url|find-links")
# Lists of what was locked, and this file, which must say what it looks for.
MAY_NAME_MACHINES = {"uv.lock", "tests/test_layout.py"}


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_platform_is_the_standard_librarys_module() -> None:
    where = subprocess.run(
        [sys.executable, "-c", "import platform; print(platform.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()

    assert not Path(where).is_relative_to(ROOT / "platform")
    assert Path(where).name == "platform.py"
    assert not (ROOT / "platform" / "__init__.py").exists()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_shadows_no_other_module(package: Path) -> None:
    owners = importlib.metadata.packages_distributions().get(package.name, [])

    assert (package / "__init__.py").exists()
    assert package.name not in sys.stdlib_module_names
    assert set(owners) <= {"gpuyard"}


def test_the_wheel_has_every_package() -> None:
    on_the_shelf = {path.parent for path in (ROOT / "platform").glob("*/__init__.py")}
    beside_it = {ROOT / name for name in ("leasing", "scheduler", "agents", "billing")}

    assert set(PACKAGES) == on_the_shelf | beside_it


def test_modules_are_named_for_what_they_do() -> None:
    named = [path for path in SOURCES if {*path.relative_to(ROOT).parts[:-1], path.stem} & NAMES_THAT_ATTRACT]

    assert named == []


def test_doors_name_no_manager() -> None:
    doors = [path for path in SOURCES if path.name in {"api.py", "tasks.py", "admin.py"}]
    named = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in doors
        for line in path.read_text().splitlines()
        if re.search(r"\.(?:objects|_default_manager)\b", line)
    ]

    assert doors, "no door was found: the layout has changed"
    assert named == []


def test_no_file_names_a_machine_or_a_mirror() -> None:
    found = []
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        if name in MAY_NAME_MACHINES:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a picture or an archive
        found += [f"{name}: {match.group()}" for match in OF_ONE_MACHINE.finditer(text)]

    assert found == []


def test_what_an_agent_installs_needs_no_django() -> None:
    script = (
        "import sys, importlib.util\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'django', 'rest_framework', 'celery', 'paramiko', 'psycopg'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import gpuyard, gpuyard.cli, agents.node.main\n"
    )

    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
