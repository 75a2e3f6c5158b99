"""gpuyard host price, access, hours: on which terms the market may use a machine."""

from __future__ import annotations

import re
from typing import Any

import click

from gpuyard.cli import inputs, naming, views
from gpuyard.cli.host_verbs import host
from gpuyard.cli.session import Session, Write, session

__all__ = ["host"]  # with the verbs of this file

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(
    rf"(?P<days>daily|(?:{'|'.join(_DAYS)})(?:[-,](?:{'|'.join(_DAYS)}))*)"
    r"\s+(?P<from>(?:[01][0-9]|2[0-3]):[0-5][0-9])-(?P<to>(?:[01][0-9]|2[0-3]):[0-5][0-9])",
    re.ASCII | re.IGNORECASE,
)


class Window(click.ParamType[dict[str, Any]]):
    """ "mon-fri 20:00-08:00", "sat,sun 00:00-00:00", "daily 22:00-06:00"."""

    name = "window"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        found = _WINDOW.fullmatch(value.strip())
        if found is None:
            self.fail(f"{value!r} is no window: write 'mon-fri 20:00-08:00' or 'daily 22:00-06:00'.", param, ctx)
        return {"days": _days(found["days"].lower()), "from": found["from"], "to": found["to"]}


def _days(text: str) -> list[int]:
    """Return the days that "mon-fri,sun" names; Monday is 0, and fri-mon goes over the week's end."""
    if text == "daily":
        return list(range(7))
    named: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = _DAYS.index(first), _DAYS.index(last or first)
        named |= {(start + step) % 7 for step in range((end - start) % 7 + 1)}
    return sorted(named)


@host.command(cls=Write)
@naming.host_argument
@click.argument("amount", type=inputs.Amount(), metavar="AMOUNT")
def price(host_id: str, amount: tuple[str, str | None]) -> None:
    """Set the least that a GPU-hour of a host may cost, such as 1.20; 0 takes every price.

    It counts for leases made from now on. Without a currency it is that of the host's region.
    """
    here = session()
    seen = here.client.hosts.get(host_id)
    number, currency = amount
    known = seen.price_floor.currency if seen.price_floor else inputs.money(amount)["currency"]
    floor = {"amount": number, "currency": currency or known}
    _change(here, host_id, seen.etag, {"price_floor": floor})


@host.command(cls=Write)
@naming.host_argument
@click.argument("access_class", metavar="ACCESS", type=click.Choice(["public", "shared_when_idle", "private"]))
def access(host_id: str, access_class: str) -> None:
    """Say who may lease a host: everybody, everybody while you do not, or only you."""
    here = session()
    _change(here, host_id, here.client.hosts.get(host_id).etag, {"access": access_class})


@host.command(cls=Write)
@naming.host_argument
@click.argument("windows", nargs=-1, type=Window(), metavar="[WINDOW]...")
@click.option("--always", is_flag=True, help="At all hours.")
@click.option("--time-zone", help="Of these hours: Asia/Shanghai.")
def hours(host_id: str, windows: tuple[dict[str, Any], ...], always: bool, time_zone: str | None) -> None:
    """Say when the market may use a host: 'mon-fri 20:00-08:00' 'sat,sun 00:00-00:00', or --always."""
    here = session()
    if always == bool(windows):
        raise click.UsageError("Say windows such as 'mon-fri 20:00-08:00', or --always.")
    changes: dict[str, Any] = {"hours": list(windows)}
    if time_zone:
        changes["hours_time_zone"] = time_zone
    _change(here, host_id, here.client.hosts.get(host_id).etag, changes)


def _change(here: Session, host_id: str, etag: str | None, changes: dict[str, Any]) -> None:
    here.show(here.client.hosts.update(host_id, if_match=etag or "*", **changes), views.host)
