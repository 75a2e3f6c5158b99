"""What a person types, as the API wants it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gpuyard.cli import naming
from gpuyard.cli.session import session
from gpuyard.durations import parse_s

_DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]{1,6})?", re.ASCII)


class Duration(click.ParamType[int]):
    """90s, 30m, 2h, 7d, PT2H, as whole seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_s(value)
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)


class Instant(click.ParamType[str]):
    """An RFC 3339 instant, with an offset; "+2h" is two hours from now."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value.startswith("+"):
            at = datetime.fromtimestamp(datetime.now(UTC).timestamp() + Duration().convert(value[1:], param, ctx), UTC)
        else:
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                self.fail(f"{value!r} is no instant: write 2026-12-01T08:00:00Z, or +2h for two hours from now.")
            if at.tzinfo is None:
                self.fail(f"{value!r} names no time zone: add Z or an offset such as +08:00.")
        return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Health(click.ParamType[dict[str, Any]]):
    """8080/healthz: the port and path that must answer."""

    name = "port/path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        port, slash, path = value.partition("/")
        if not port.isascii() or not port.isdecimal() or not 1 <= int(port) <= 65_535:
            self.fail(f"{value!r} is no health check: write 8080/healthz, or 8080 alone.", param, ctx)
        return {"port": int(port), "path": slash + path} if slash else {"port": int(port)}


class Past(Instant):
    """An instant that is over: "5m" is five minutes ago."""

    name = "past"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            ago_s = parse_s(value)
        except ValueError:
            return super().convert(value, param, ctx)
        return datetime.fromtimestamp(datetime.now(UTC).timestamp() - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Pair(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=VALUE.", param, ctx)
        return name, text


class Volume(click.ParamType[dict[str, Any]]):
    """NAME:/path, or NAME:/path:SIZE to have it made, in GiB."""

    name = "name:/path[:gib]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        found = re.fullmatch(r"([^:]+):(/[^:]*)(?::([0-9]{1,6})(?:G|GiB)?)?", str(value), re.ASCII)
        if found is None:
            self.fail(f"{value!r} is no volume: write data:/data, or data:/data:100 to have one of 100 GiB made.")
        name, path, size = found.groups()
        return {"name": name, "path": path, **({"size_gib": int(size)} if size else {})}


class Amount(click.ParamType[tuple[str, str | None]]):
    """12.50, or "12.50 CNY"."""

    name = "amount"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:
        number, _, currency = value.strip().partition(" ")
        currency = currency.strip().upper()
        if not _DECIMAL.fullmatch(number):
            self.fail(f"{value!r} is no amount: write 12.50 or '12.50 CNY', with at most 6 places.", param, ctx)
        if currency and not re.fullmatch("[A-Z]{3}", currency, re.ASCII):
            self.fail(f"{currency!r} is no currency: three letters such as CNY or USD.", param, ctx)
        return number, currency or None


class Percent(click.ParamType[int]):
    """80%, as basis points (hundredths of a percent)."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([0-9]{1,3})(?:\.([0-9]{1,2}))?\s*%", str(value), re.ASCII)
        if found is None:
            self.fail(f"{value!r} is no percentage: write 80%.", param, ctx)
        return int(found[1]) * 100 + int((found[2] or "").ljust(2, "0"))


def money(amount: tuple[str, str | None]) -> dict[str, str]:
    """Return an amount as the API wants it; without a currency it is the wallet's."""
    number, currency = amount
    return {"amount": number, "currency": currency or session().saved.get("currency") or _only_currency()}


def max_price(text: str) -> dict[str, str]:
    """Read "1.20", or "1.20 CNY"; without a currency it is the wallet's."""
    number, _, currency = text.strip().partition(" ")
    if not _DECIMAL.fullmatch(number):
        raise click.BadParameter(f"{text!r} is no price: write 1.20 or '1.20 CNY'.", param_hint="--max-price")
    return money((number, currency.strip().upper() or None))


def _only_currency() -> str:
    """Return the currency of the wallet, if it has but one."""
    held = [balance.currency for balance in session().client.wallet.get().balances]
    if len(held) != 1:
        known = f" ({', '.join(held)})" if held else ""
        detail = f"Name a currency{known}: '1.20 CNY'. Or save one: gpuyard config set currency CNY."
        raise click.UsageError(detail)
    return held[0]


def ssh_key(text: str) -> str:
    """Return a public key given as itself, or as the path of its file."""
    path = Path(text).expanduser()
    if text.startswith(("ssh-", "ecdsa-", "sk-")):
        return text
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as unreadable:
        raise click.BadParameter(f"{text}: {unreadable}", param_hint="--ssh-key") from unreadable


_TERM_OPTIONS = (
    click.option("--for", "duration_s", type=Duration(), help="End after so long: 90s 30m 2h 7d PT2H."),
    click.option("--term", "kind", help="on_demand (default), spot, or a reserved period: P1W P1M P1Y."),
    click.option("--start-at", type=Instant(), help="Start then: an instant, or +2h."),
    click.option("--end-at", type=Instant(), help="End then: an instant, or +2h."),
    click.option("--renew", is_flag=True, default=None, help="Renew a reserved term when it is over."),
)
_CONSTRAINT_OPTIONS = (
    click.option("--max-price", help="A hard bound per GPU-hour: 1.20 or '1.20 CNY'."),
    click.option("--region", "regions", multiple=True, help="Only there (may be repeated)."),
    click.option("--same", type=click.Choice(["zone", "fabric"]), help="Keep the machines of a gang together."),
    click.option("--nvlink", type=click.Choice(["wanted", "required"])),
    click.option("--whole-machine", is_flag=True, default=None),
    click.option("--min-cuda"),
    click.option("--min-driver"),
    click.option("--min-cpu-cores", type=click.IntRange(min=1)),
    click.option("--min-ram-gib", type=click.IntRange(min=1)),
    click.option("--min-disk-gib", type=click.IntRange(min=1)),
    click.option("--min-reliability"),
    click.option("--exclude-host", "exclude_hosts", multiple=True),
    click.option("--exclude-owner", "exclude_owners", multiple=True),
)
_DEPLOYMENT_OPTIONS = (
    click.option(
        "--image",
        shell_complete=naming.images_offered,
        help="A catalogue slug such as pytorch_latest, or an image reference.",
    ),
    click.option("--bare", is_flag=True, default=None, help="A machine without an image."),
    click.option("--name"),
    click.option("-l", "--label", "labels", type=Pair(), multiple=True),
    click.option("-e", "--env", type=Pair(), multiple=True),
    click.option(
        "--secret", "secrets", multiple=True, shell_complete=naming.secrets_offered, help="The name of a stored value."
    ),
    click.option("-p", "--port", "ports", type=click.IntRange(1, 65535), multiple=True),
    click.option("--ssh-key", "ssh_keys", multiple=True, help="A public key, or the path of one."),
    click.option("--registry-secret", shell_complete=naming.secrets_offered, help="The stored login of the registry."),
    click.option("--jupyter", is_flag=True, default=None, help="Start the image's Jupyter, too."),
    click.option("--health", type=Health(), help="PORT/PATH that must answer before it is active: 8080/healthz"),
    click.option("--read-only", is_flag=True, default=None, help="Only /tmp and /scratch can be written."),
    click.option("--may-move", is_flag=True, default=None, help="It may be moved, after notice, for a large request."),
    click.option("--on-interrupt", type=click.Choice(["restart_elsewhere", "wait_for_host", "end"])),
    click.option("--on-exit", type=click.Choice(["end", "restart"])),
    click.option("--notice", "notice_s", type=Duration(), help="0s, 120s or 600s; of a spot lease, each at its price."),
)
_WAY_OPTIONS = (
    click.option(
        "--if-no-capacity", type=click.Choice(["queue", "refuse"]), help="Wait for it (default), or refuse it (exit 6)."
    ),
    click.option("--no-queue", is_flag=True, help="The same as --if-no-capacity refuse."),
    click.option("--quote", help="Redeem this quote."),
    click.option(
        "--volume",
        "volumes",
        type=Volume(),
        multiple=True,
        shell_complete=naming.volumes_offered,
        help="Mount a volume: data:/data, or data:/data:100 to have one of 100 GiB made.",
    ),
)


def _options[F: Callable[..., Any]](options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_SAID_OF_BOTH = (*_DEPLOYMENT_OPTIONS, *_TERM_OPTIONS, *_CONSTRAINT_OPTIONS)


def quote_options[F: Callable[..., Any]](function: F) -> F:
    return _options(_SAID_OF_BOTH)(function)


def lease_options[F: Callable[..., Any]](function: F) -> F:
    return _options((*_SAID_OF_BOTH, *_WAY_OPTIONS))(function)


def term(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the term of the options, None if none was given: then the server's default holds."""
    kind = given["kind"]
    names = ("duration_s", "start_at", "end_at", "renew")
    rest = {name: given[name] for name in names if given[name] is not None}
    if kind is None and not rest:
        return None
    if kind is not None and kind.upper().startswith("P"):
        return {"kind": "reserved", "period": kind.upper(), **rest}
    return {"kind": kind or "on_demand", **rest}


def constraints(given: Mapping[str, Any]) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for name in (
        *("regions", "same", "nvlink", "whole_machine", "min_cuda", "min_driver", "min_cpu_cores", "min_ram_gib"),
        *("min_disk_gib", "min_reliability", "exclude_hosts", "exclude_owners"),
    ):
        if given[name] not in (None, ()):
            found[name] = list(given[name]) if isinstance(given[name], tuple) else given[name]
    if given["max_price"] is not None:
        found["max_price"] = max_price(given["max_price"])
    return found or None


def _if_no_capacity(given: Mapping[str, Any]) -> str | None:
    said: str | None = given.get("if_no_capacity")
    if given.get("no_queue") and said == "queue":
        raise click.UsageError("--no-queue and --if-no-capacity queue say opposite things; leave one out.")
    return "refuse" if given.get("no_queue") else said


def lease_fields(request: str | None, command: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a lease from the options; what was not given is left to the server."""
    fields: dict[str, Any] = {
        "request": request,
        "image": given["image"],
        "bare": given["bare"],
        "term": term(given),
        "constraints": constraints(given),
        "name": given["name"],
        "labels": dict(given["labels"]) or None,
        "env": dict(given["env"]) or None,
        "secrets": list(given["secrets"]) or None,
        "ports": list(given["ports"]) or None,
        "ssh_keys": [ssh_key(text) for text in given["ssh_keys"]] or None,
        "on_interrupt": given["on_interrupt"],
        "on_exit": given["on_exit"],
        "notice_s": given["notice_s"],
        **{name: given[name] for name in ("registry_secret", "jupyter", "health", "read_only", "may_move")},
        "if_no_capacity": _if_no_capacity(given),
        "quote": given.get("quote"),
        "volumes": list(given.get("volumes") or ()) or None,
        "command": list(command) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}
