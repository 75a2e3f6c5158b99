"""gpuyard receipt: what was used and charged, and whether that follows from the events."""

from __future__ import annotations

import json
from typing import Any, TextIO

import click

from billing import receipt_check
from gpuyard.cli import emit, problems, views
from gpuyard.cli.session import Family, listing_options, session


@click.group(cls=Family)
def receipt() -> None:
    """Usage receipts: fetch one, or recompute one without asking us."""


@receipt.command()
@click.argument("lease_id")
def get(lease_id: str) -> None:
    """Print the signed receipt of a lease as JSON, to keep and to verify."""
    here = session()
    found = here.client.leases.receipt(lease_id)
    if here.asked_output in (None, "json") and not here.dry_run:
        click.echo(emit.as_json(found.to_dict()), nl=False)
    else:
        here.show(found, views.anything)


@receipt.command()
@listing_options
def keys(limit: int | None) -> None:
    """List the platform's keys that sign receipts, for `receipt verify --public-key` (no key of yours is needed)."""
    here = session()
    here.show_list(here.client.market.receipt_keys(), views.RECEIPT_KEYS, limit=limit)


@receipt.command()
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--public-key", metavar="HEX", help="The platform's Ed25519 key: checks the signature too.")
def verify(file: TextIO, public_key: str | None) -> int:
    """Recompute the charge of a receipt in FILE (- is stdin) from its events; exit code 1 if it does not follow.

    Nothing is asked of a server.
    """
    here = session()
    faults = _faults(_read(file), public_key)
    for fault in faults:
        here.say(f"Wrong: {fault}.", style="red")
    if faults:
        return problems.ERROR
    here.say("The charge follows from the events.")
    here.say("The signature is the platform's." if public_key else "The signature was not checked: give --public-key.")
    return problems.OK


def _read(file: TextIO) -> dict[str, Any]:
    try:
        found = json.load(file)
    except ValueError as error:
        raise click.UsageError(f"{file.name} holds no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise click.UsageError(f"{file.name} holds no receipt.")
    return found


def _faults(found: dict[str, Any], public_key: str | None) -> list[str]:
    if public_key is not None and len(_bytes(public_key)) != receipt_check.KEY_BYTES:
        raise click.UsageError(f"A public key is {receipt_check.KEY_BYTES} bytes in hexadecimal.")
    try:
        return receipt_check.verify(found, public_key_hex=public_key)
    except ModuleNotFoundError as error:
        raise click.UsageError("To check the signature, install PyNaCl: pip install pynacl.") from error


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
