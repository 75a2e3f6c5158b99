"""gpuyard image, secret, volume: what an organization keeps for its leases."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import click

from gpuyard.cli import naming, views
from gpuyard.cli.session import Family, Session, Write, listing_options, session


@click.group(cls=Family, default="list")
def image() -> None:
    """Look after images that can be started by name, the platform's and your own."""


@image.command("list")
@click.option("--own", is_flag=True, help="Only your organization's.")
@listing_options
def list_images(limit: int | None, own: bool) -> None:
    """List images."""
    here = session()
    found = (each for each in here.client.images.list() if not own or each.to_dict().get("own"))
    here.show_list(found, views.IMAGES, limit=limit)


@image.command()
@click.argument("slug", shell_complete=naming.images_offered)
def get(slug: str) -> None:
    """Show an image: what it needs, and what it starts."""
    here = session()
    image_id = naming.one(here.client.images.list(), slug, what="image", by="slug")
    here.show(here.client.images.get(image_id), views.anything)


@image.command(cls=Write)
@click.argument("slug")
@click.argument("reference")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", help="How it is shown; SLUG if not given.")
@click.option("--description")
@click.option("--min-cuda", help="The least CUDA version that it runs with: 12.4")
@click.option("--vendor", type=click.Choice(["nvidia", "amd"]), help="Runs on the GPUs of this vendor only.")
@click.option("-p", "--port", "ports", type=click.IntRange(1, 65535), multiple=True, help="A port that it listens on.")
def add(slug: str, reference: str, command: tuple[str, ...], ports: tuple[int, ...], **given: str | None) -> None:
    """Put the name SLUG on an image REFERENCE, such as docker.io/me/train:3; a COMMAND stands behind `--`."""
    here = session()
    fields: dict[str, Any] = {"slug": slug, "reference": reference, "ports": [*ports] or None}
    fields["command"] = [*command] or None
    here.show(here.client.images.create(**fields, **given), views.anything)


@image.command("rm", cls=Write)
@click.argument("slug", shell_complete=naming.images_offered)
def remove_image(slug: str) -> None:
    """Forget one of your names; leases that run it go on."""
    here = session()
    image_id = naming.one(_own(here), slug, what="image of your own", by="slug")
    here.client.images.delete(image_id)
    here.done(f"{slug} is forgotten.")


def _own(here: Session) -> list[Any]:
    return [each for each in here.client.images.list() if each.to_dict().get("own")]


@click.group(cls=Family, default="list")
def secret() -> None:
    """Keep values (tokens, passwords) for leases; a value is stored sealed and never shown."""


@secret.command("list")
@listing_options
def list_secrets(limit: int | None) -> None:
    """List the names of what is kept."""
    here = session()
    here.show_list(here.client.secrets.list(), views.SECRETS, limit=limit)


@secret.command("set", cls=Write)
@click.argument("name")
@click.option("--from-file", type=click.File(encoding="utf-8"), help="The value is this file's content.")
def set_secret(name: str, from_file: TextIO | None) -> None:
    """Keep a value under NAME, or replace it; `--secret NAME` gives it to a lease.

    The value is asked for, or read from standard input or a file; it is never an argument, which others see. One line
    break at the end is left out.
    """
    here = session()
    here.show(here.client.secrets.create(name=name, value=_value(from_file)), views.anything)


def _value(from_file: TextIO | None) -> str:
    if from_file is None and sys.stdin.isatty():
        typed: str = click.prompt("Value", hide_input=True, err=True)
        return typed
    value = (from_file or sys.stdin).read()
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise click.UsageError("No value came: `echo VALUE | gpuyard secret set NAME`, or --from-file FILE.")
    return value


@secret.command("rm", cls=Write)
@click.argument("name", shell_complete=naming.secrets_offered)
def remove_secret(name: str) -> None:
    """Forget a value."""
    here = session()
    secret_id = naming.one(here.client.secrets.list(), name, what="secret")
    here.client.secrets.delete(secret_id)
    here.done(f"{name} is forgotten.")


@click.group(cls=Family, default="list")
def volume() -> None:
    """Storage that outlives leases: `--volume NAME:/path` mounts it. It lives on one host; charged until deleted."""


@volume.command("list")
@listing_options
def list_volumes(limit: int | None) -> None:
    """List what there is, with the moment of its destruction where the money is out."""
    here = session()
    here.show_list(here.client.volumes.list(), views.VOLUMES, limit=limit)


@volume.command("get")
@click.argument("name", shell_complete=naming.volumes_offered)
def get_volume(name: str) -> None:
    """Show a volume, by its name or id."""
    here = session()
    here.show(here.client.volumes.get(_volume_id(here, name)), views.anything)


@volume.command("create", cls=Write)
@click.argument("name")
@click.option("--size", "size_gib", type=click.IntRange(1), required=True, help="In GiB; it stays as it is.")
@click.option("--region", help="Where its first lease is to run.")
def create_volume(name: str, size_gib: int, region: str | None) -> None:
    """Make a volume. It gets its host with the first lease that mounts it, and costs nothing before."""
    here = session()
    here.show(here.client.volumes.create(name=name, size_gib=size_gib, region=region), views.anything)


@volume.command("delete", cls=Write)
@click.argument("name", shell_complete=naming.volumes_offered)
def delete_volume(name: str) -> None:
    """Destroy a volume and all that is in it."""
    here = session()
    volume_id = _volume_id(here, name)
    here.confirm(f"Destroy {name} and all that is in it?")
    here.client.volumes.delete(volume_id)
    here.done(f"{name} is destroyed.")


def _volume_id(here: Session, name: str) -> str:
    return name if name.startswith("volume_") else naming.one(here.client.volumes.list(), name, what="volume")
