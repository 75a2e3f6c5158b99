"""What every verb shares: the options that stand anywhere, the client, and the two ways out (data and talk)."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click
import httpx2
from rich.cells import cell_len
from rich.console import Console

from gpuyard import config
from gpuyard.cli import emit, explaining, tongue
from gpuyard.cli.tables import Column, printable, table
from gpuyard.client import Client
from gpuyard.durations import show
from gpuyard.json_object import Object
from gpuyard.transport import Send

OUTPUTS = ("table", "wide", "json", "yaml", "name")
_WORTH_SAYING_S = 2.0  # a pause before another try that is longer than this is told
_Details = Callable[[dict[str, Any]], Iterable[tuple[str, str]]]


class _Pipe(Console):
    """A console whose reader may leave early (`| head`): that is told at the door, not here."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@dataclass
class Session:
    """One run of the command."""

    asked_output: str | None = None
    profile: str | None = None
    api_url: str | None = None
    explain: bool = False
    dry_run: bool = False
    yes: bool = False

    @cached_property
    def file(self) -> config.ConfigFile:
        return config.read()

    @property
    def output(self) -> str:
        if self.asked_output:
            return self.asked_output
        saved = self.saved.get("output")
        return saved if saved in OUTPUTS else "table"

    @property
    def saved_as(self) -> str:
        """The name of the profile that this run uses."""
        return self.profile or os.environ.get("GPUYARD_PROFILE") or self.file.profile

    @property
    def saved(self) -> dict[str, str]:
        """The values of that profile."""
        return self.file.profiles.get(self.saved_as, {})

    @cached_property
    def client(self) -> Client:
        if self.file.exposed:
            self.say(f"Others can read {self.file.path}, which holds your key: chmod 600 it.", style="yellow")
        plain = Client(api_url=self.api_url, profile=self.profile, language=tongue.language(), observer=self._observe)
        return plain.with_options(dry_run=True) if self.dry_run else plain

    @cached_property
    def out(self) -> Console:
        return _Pipe(highlight=False, soft_wrap=True)

    @cached_property
    def talk(self) -> Console:
        return _Pipe(stderr=True, highlight=False, soft_wrap=True)

    def say(self, text: str, *, style: str = "") -> None:
        """Tell the person something; never data."""
        self.talk.print(printable(tongue.said(text)), style=style, markup=False)

    def done(self, text: str) -> None:
        """Tell what was done; in a dry run, that it would have been."""
        self.say(f"Dry run, nothing was changed. It would say: {text}" if self.dry_run else text)

    def show_list(self, found: Iterable[Any], columns: Sequence[Column], *, limit: int | None) -> None:
        """Print at most `limit` items (None: all), and say so when there are more."""
        items = [*found] if limit is None else [*itertools.islice(found, limit + 1)]
        more = limit is not None and len(items) > limit
        rows = [item.to_dict() for item in items[:limit]]
        if self.output in ("json", "yaml"):
            self._print({"items": rows, "more": more})
        elif self.output == "name":
            for row in rows:
                self.out.print(printable(emit.name(row)), markup=False)
        else:
            self._print_table(rows, columns)
        if more:
            self.say(f"There are more than {limit}: --limit N or --all shows them.")

    def show(self, thing: Object, details: _Details) -> None:
        """Print one object."""
        data = thing.to_dict()
        if self.output in ("json", "yaml"):
            self._print(data)
        elif self.output == "name":
            self.out.print(printable(emit.name(data)), markup=False)
        elif self.dry_run:
            self._print_pairs(explaining.plan(data))
        else:
            self._print_pairs(details(data))
        if self.explain:
            for line in explaining.why(data):
                self.say(line)

    def show_table(self, rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> None:
        """Print rows that are part of something larger; the whole goes out as data elsewhere."""
        if self.output in ("table", "wide"):
            self._print_table(rows, columns)

    def confirm(self, question: str) -> None:
        """Ask before something that cannot be undone. Without a terminal to ask on, -y must have been said."""
        if self.yes or self.dry_run:
            return
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} Say -y to do it without being asked.")
        if not click.confirm(question, err=True):
            raise click.Abort

    def _print(self, data: Any) -> None:
        text = emit.as_json(data) if self.output == "json" else emit.as_yaml(data)
        click.echo(text, nl=False)

    def _print_pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        shown = [(tongue.said(title), text) for title, text in pairs if text]
        width = max((cell_len(title) for title, _ in shown), default=0)
        for title, text in shown:
            self.out.print(f"{title}{' ' * (width - cell_len(title))}  {printable(text)}", markup=False)

    def _print_table(self, rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> None:
        if not rows:
            self.say("Nothing to show.")
            return
        width = self.out.width if self.out.is_terminal or os.environ.get("COLUMNS") else None
        for line in table(rows, columns, width=width, wide=self.output == "wide"):
            self.out.print(line)

    def _observe(self, sent: Send, outcome: httpx2.Response | httpx2.TransportError, took_s: float) -> None:
        if self.explain:
            for line in explaining.exchange(sent, outcome, took_s):
                self.say(line, style="dim")
        pause = outcome.headers.get("Retry-After", "") if isinstance(outcome, httpx2.Response) else ""
        if pause.isdecimal() and float(pause) > _WORTH_SAYING_S:
            self.say(f"The server asks to wait {show(float(pause))}; trying again then.", style="yellow")


def session() -> Session:
    """Return the session of the running command."""
    return click.get_current_context().find_root().ensure_object(Session)


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Store an option on the session: the same option may stand before or behind the verb, and the last one counts."""
    if value not in (None, False) and parameter.name is not None:
        setattr(context.find_root().ensure_object(Session), parameter.name, value)


def _keep_json(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.find_root().ensure_object(Session).asked_output = "json"


def common_options() -> list[click.Option]:
    """Return fresh options that every verb takes."""
    kept: dict[str, Any] = {"expose_value": False, "callback": _keep}
    return [
        click.Option(["--json"], is_flag=True, expose_value=False, callback=_keep_json, help="Print JSON."),
        click.Option(
            ["-o", "--output", "asked_output"], type=click.Choice(OUTPUTS), help="How data is printed.", **kept
        ),
        click.Option(["--profile"], help="The profile of the configuration to use.", **kept),
        click.Option(["--api-url"], help="Where the API is.", **kept),
        click.Option(["--explain"], is_flag=True, help="Show the HTTP call and why the answer is so.", **kept),
    ]


class Verb(click.Command):
    """A command that reads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += common_options()


class Write(Verb):
    """A command that changes something: it can be tried with --dry-run, and -y answers its question."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        kept: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": _keep}
        self.params += [
            click.Option(["--dry-run"], help="Check and price it, and change nothing.", **kept),
            click.Option(["-y", "--yes"], help="Do not ask.", **kept),
        ]


_ALIKE = (("get", "show"), ("list", "ls"), ("delete", "remove", "rm"), ("create", "add", "new"))


class Family(click.Group):
    """A group of verbs. `default`: the verb that is meant when none is named."""

    command_class = Verb

    def __init__(self, *args: Any, default: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (self.get_command(ctx, args[0]) is not None or args[0] in ctx.help_option_names)
        if self.default is not None and not named:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb of this name, or the one that has another of the names that people type for the same."""
        alike = next((words for words in _ALIKE if cmd_name in words), ())
        return next((self.commands[word] for word in (cmd_name, *alike) if word in self.commands), None)


def listing_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --limit and --all; the verb receives `limit`, None for all."""

    @click.option("--limit", type=click.IntRange(min=1), default=50, help="Show at most so many (50).")
    @click.option("--all", "every", is_flag=True, help="Show all of them.")
    @functools.wraps(function)
    def verb(*args: Any, limit: int, every: bool, **kwargs: Any) -> None:
        function(*args, limit=None if every else limit, **kwargs)

    return verb
