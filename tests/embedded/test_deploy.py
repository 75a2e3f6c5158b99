"""What is deployed is what the embedded stack runs: process table, compose.yml and systemd units say the same."""

import base64
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedded import process_table

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TABLE = {
    process.name: process
    for process in process_table.control_plane(ports={"api": 1, "streams": 2}, beat_folder=Path("/x"))
}
# Differs with the machine: where it listens, where files are, how many processes.
OF_THE_MACHINE = ("--host", "--port", "--workers", "--schedule")


def essence(arguments: list[str]) -> list[str]:
    """Return the arguments from the program's name on, without those of one machine."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument not in OF_THE_MACHINE:
            kept.append(argument.replace("%%", "%"))
        skip = argument in OF_THE_MACHINE
    for start in ("granian", "celery", "loops"):
        if start in kept:
            return kept[kept.index(start) :]
    raise AssertionError(f"no program of ours in {arguments}")


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    services: dict[str, Any] = document["services"]
    return services


def default_command() -> list[str]:
    """Return the CMD of the image."""
    (line,) = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line.startswith("CMD ")]
    command: list[str] = yaml.safe_load(line.removeprefix("CMD "))
    return command


def unit(name: str) -> dict[str, str]:
    lines = (DEPLOY / "systemd" / f"gpuyard-{name}.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("name", TABLE)
def test_compose_runs_what_the_embedded_stack_runs(name: str) -> None:
    command = [argument.rpartition("/")[2] for argument in essence(list(TABLE[name].command))]
    deployed = essence(compose()[name].get("command", default_command()))

    assert [argument.rpartition("/")[2] for argument in deployed] == command


@pytest.mark.parametrize("name", TABLE)
def test_the_units_run_what_the_embedded_stack_runs(name: str) -> None:
    started = shlex.split(unit(name)["ExecStart"])
    started[0] = started[0].rpartition("/")[2]

    assert essence(started) == essence(list(TABLE[name].command))


@pytest.mark.parametrize("name", TABLE)
def test_the_target_wants_every_unit(name: str) -> None:
    assert f"gpuyard-{name}.service" in (DEPLOY / "systemd" / "gpuyard.target").read_text()


@pytest.mark.parametrize("name", [name for name in TABLE if name.startswith("worker-")])
def test_workers_get_the_time_to_finish_that_they_need(name: str) -> None:
    assert compose()[name]["stop_grace_period"] == f"{TABLE[name].end_within_s:g}s"
    assert unit(name)["TimeoutStopSec"] == f"{TABLE[name].end_within_s:g}"


# -- what is written is what runs --------------------------------------------------------------------------------------


def example() -> dict[str, str]:
    """Return deploy/gpuyard.env.example as somebody would fill it in."""
    lines = (DEPLOY / "gpuyard.env.example").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    made = {
        "SECRET_KEY": secrets.token_urlsafe(48),
        "CONTROL_SIGNING_KEY": secrets.token_hex(32),
        "SEALING_KEYS": f"first:{base64.b64encode(secrets.token_bytes(32)).decode()}",
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
    }
    return {name: value or made[name] for name, value in (given | made).items()}


def manage(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **example(), **more}
    command = [sys.executable, str(DEPLOY.parent / "manage.py"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_with_the_example_filled_in_django_finds_nothing_to_warn_of() -> None:
    found = manage("check", "--deploy", "--fail-level", "WARNING")

    assert found.returncode == 0, found.stderr
    assert "no issues" in found.stdout


@pytest.mark.parametrize("name", ["SECRET_KEY", "CONTROL_SIGNING_KEY", "SEALING_KEYS", "DATABASE_URL"])
def test_what_must_be_given_is_asked_for_by_name(name: str) -> None:
    environment = {key: value for key, value in example().items() if key != name}
    command = [sys.executable, str(DEPLOY.parent / "manage.py"), "check"]
    environment["PATH"] = os.environ["PATH"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    assert found.returncode != 0
    assert f"Set {name}" in found.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("unit_file", sorted(path.name for path in (DEPLOY / "systemd").iterdir()))
def test_systemd_takes_the_units(unit_file: str) -> None:
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", DEPLOY / "systemd" / unit_file],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    # What they start is installed where they run, not here.
    faults = [line for line in found.stderr.splitlines() if "is not executable: No such file" not in line]

    assert [line for line in faults if unit_file in line] == []


@pytest.mark.parametrize("script", sorted(path.name for path in DEPLOY.glob("*.sh")))
def test_the_scripts_are_shell(script: str) -> None:
    assert os.access(DEPLOY / script, os.X_OK)
    subprocess.run(["sh", "-n", DEPLOY / script], check=True)


def test_every_image_copies_every_package_that_the_distribution_has() -> None:
    """A package that pyproject.toml lists and the Dockerfile forgets would be missed at the first import."""
    document = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    packages = document["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = re.findall(r"^COPY (\S+) \1$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)

    assert {package.split("/")[0] for package in packages} <= set(copied)


def test_compose_needs_what_it_names_and_gives_every_process_its_settings() -> None:
    services = compose()
    for name, service in services.items():
        waits_for = service.get("depends_on", {})
        assert set(waits_for) <= set(services), name
        for other, condition in waits_for.items():
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for the health of {other}, which has none"
    ours = [service for service in services.values() if service["image"] == "gpuyard"]
    assert len(ours) == len(TABLE) + 1  # and `migrate`
    for service in ours:
        assert service["env_file"] == "gpuyard.env"
        assert {"DATABASE_URL", "CELERY_BROKER_URL"} <= service["environment"].keys()
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True


def test_the_image_is_built_of_files_that_are_there_and_runs_what_the_lock_installs() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    sources = [word for line in lines if re.match(r"COPY (?!--from)", line) for word in line.split()[1:-1]]
    extras = {word for line in lines if "uv sync" in line for word in re.findall(r"--extra (\S+)", line)}
    document = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())

    assert [source for source in sources if not (DEPLOY.parent / source).exists()] == []
    assert {"server", "oidc"} <= extras <= set(document["project"]["optional-dependencies"])
    assert any(line.startswith("USER ") for line in lines)


IMAGE_RUNS = """
import sys
here, checkout = sys.argv[1], sys.argv[2]
kept = [place for place in sys.path if not place.startswith(checkout) or "site-packages" in place]
sys.path[:] = [here, here + "/platform"] + kept
import django
django.setup()
import config.wsgi, config.asgi, config.celery
from django.core.management import call_command
call_command("check")
call_command("collectstatic", "--no-input", verbosity=0)
ours = {"config", "scheduler", "tenants", "agents"}
files = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] in ours]
assert all(file.startswith(here) for file in files if file), files
"""


def test_what_the_image_copies_is_enough_to_start_each_process_and_to_gather_its_static_files(tmp_path: Path) -> None:
    """The image's steps in an empty folder: a file that no COPY names is missed here as it would be there."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    for source in [word for line in lines if re.match(r"COPY (?!--from)", line) for word in line.split()[1:-1]]:
        found = DEPLOY.parent / source
        if found.is_dir():
            shutil.copytree(found, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(found, tmp_path / source)
    environment = {
        "PATH": os.environ["PATH"], "DEBUG": "1", "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "STATIC_ROOT": str(tmp_path / "static"), "DJANGO_SETTINGS_MODULE": "config.settings",
        "OIDC_ISSUER": "https://sso.example", "OIDC_CLIENT_ID": "a", "OIDC_CLIENT_SECRET": "b",
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", IMAGE_RUNS, str(tmp_path), str(DEPLOY.parent)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    for file in ("accounts/account.css", "mfa/js/webauthn.js", "console/operators.css", "admin/css/base.css"):
        assert (tmp_path / "static" / file).exists(), file
