"""gpuyard group: several members with one more role."""

from __future__ import annotations

import click

from gpuyard.cli import views
from gpuyard.cli.session import Family, Write, listing_options, session
from gpuyard.cli.tables import Column
from gpuyard.cli.values import member

GROUPS = (
    Column("ID", member("id")),
    Column("NAME", member("name"), flexible=True),
    Column("ROLE", member("role")),
    Column("MEMBERS", member("member_count"), right=True),
)
_ROLE = click.Choice(["admin", "developer", "billing", "viewer"])


@click.group(cls=Family, default="list")
def group() -> None:
    """Look after groups: several members with one more role."""


@group.command("list")
@listing_options
def list_groups(limit: int | None) -> None:
    """List groups."""
    here = session()
    here.show_list(here.client.groups.list(), GROUPS, limit=limit)


@group.command("create", cls=Write)
@click.argument("name")
@click.option("--role", type=_ROLE, required=True)
def create_group(name: str, role: str) -> None:
    """Make a group. Who is put in may do what its role may, beside his own."""
    here = session()
    here.show(here.client.groups.create(name=name, role=role), views.anything)


@group.command("edit", cls=Write)
@click.argument("group_id")
@click.option("--name")
@click.option("--role", type=_ROLE)
def edit_group(group_id: str, name: str | None, role: str | None) -> None:
    """Give a group another name or role."""
    if name is None and role is None:
        raise click.UsageError("Say --name, --role or both.")
    here = session()
    said = {key: value for key, value in (("name", name), ("role", role)) if value is not None}
    seen = here.client.groups.get(group_id)
    here.show(here.client.groups.update(group_id, if_match=seen.etag or "*", **said), views.anything)


@group.command("delete", cls=Write)
@click.argument("group_id")
def delete_group(group_id: str) -> None:
    """Delete a group; who was in it keeps his own role."""
    here = session()
    here.confirm(f"Delete {group_id}? Its members keep their own roles only.")
    here.client.groups.delete(group_id)
    here.done(f"{group_id} is deleted.")


@group.command("members")
@click.argument("group_id")
@listing_options
def list_members(group_id: str, limit: int | None) -> None:
    """List who is in a group."""
    here = session()
    here.show_list(here.client.groups.members(group_id), views.MEMBERS, limit=limit)


@group.command("add", cls=Write)
@click.argument("group_id")
@click.argument("member_id")
def add_member(group_id: str, member_id: str) -> None:
    """Put a member in."""
    here = session()
    here.show(here.client.groups.add(group_id, member_id=member_id), views.anything)


@group.command("remove", cls=Write)
@click.argument("group_id")
@click.argument("member_id")
def remove_member(group_id: str, member_id: str) -> None:
    """Take a member out."""
    here = session()
    here.client.groups.remove(group_id, member_id)
    here.done(f"{member_id} is not in {group_id} any more.")
