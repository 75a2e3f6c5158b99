"""gpuyard key, member, webhook, audit."""

from __future__ import annotations

import click

from gpuyard.cli import inputs, views
from gpuyard.cli.session import Family, Verb, Write, listing_options, session


@click.group(cls=Family, default="list")
def key() -> None:
    """Look after API keys."""


@key.command("list")
@listing_options
def list_keys(limit: int | None) -> None:
    """List keys; a key itself is never shown again."""
    here = session()
    here.show_list(here.client.api_keys.list(), views.KEYS, limit=limit)


@key.command("create", cls=Write)
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, help="leases:read, leases:write, hosts:write, ...")
@click.option("--expires-at", type=inputs.Instant(), help="An instant, or +30d.")
def create_key(name: str, scopes: tuple[str, ...], expires_at: str | None) -> None:
    """Make a key. It is shown once."""
    here = session()
    here.show(here.client.api_keys.create(name=name, scopes=scopes, expires_at=expires_at), views.anything)


@key.command("delete", cls=Write)
@click.argument("key_id")
def delete_key(key_id: str) -> None:
    """End a key at once."""
    here = session()
    here.confirm(f"End {key_id}? Whoever uses it is locked out at once.")
    here.client.api_keys.delete(key_id)
    here.done(f"{key_id} is ended.")


@key.command("rotate", cls=Write)
@click.argument("key_id")
@click.option("--overlap", "overlap_s", type=inputs.Duration(), help="How long the old key lives on.")
def rotate_key(key_id: str, overlap_s: int | None) -> None:
    """Make a key's successor. It is shown once."""
    here = session()
    here.show(here.client.api_keys.rotate(key_id, overlap_s=overlap_s), views.anything)


@click.group(cls=Family, default="list")
def member() -> None:
    """Look after who may act for the organization."""


@member.command("list")
@listing_options
def list_members(limit: int | None) -> None:
    """List members."""
    here = session()
    here.show_list(here.client.members.list(), views.MEMBERS, limit=limit)


_ROLE = click.Choice(["owner", "admin", "developer", "billing", "viewer"])


@member.command("add", cls=Write)
@click.argument("email")
@click.option("--role", type=_ROLE, required=True)
def add_member(email: str, role: str) -> None:
    """Add somebody."""
    here = session()
    here.show(here.client.members.create(email=email, role=role), views.anything)


@member.command("role", cls=Write)
@click.argument("member_id")
@click.argument("role", type=_ROLE)
def change_role(member_id: str, role: str) -> None:
    """Give a member another role."""
    here = session()
    seen = here.client.members.get(member_id)
    here.show(here.client.members.update(member_id, if_match=seen.etag or "*", role=role), views.anything)


@member.command("remove", cls=Write)
@click.argument("member_id")
def remove_member(member_id: str) -> None:
    """Take somebody out."""
    here = session()
    here.confirm(f"Remove {member_id}?")
    here.client.members.delete(member_id)
    here.done(f"{member_id} is no member any more.")


@click.group(cls=Family, default="list")
def webhook() -> None:
    """Look after webhooks."""


@webhook.command("list")
@listing_options
def list_webhooks(limit: int | None) -> None:
    """List webhooks."""
    here = session()
    here.show_list(here.client.webhooks.list(), views.WEBHOOKS, limit=limit)


@webhook.command("create", cls=Write)
@click.argument("url")
@click.option("--event", "events", multiple=True, required=True, help="lease.active, wallet.low, ...")
def create_webhook(url: str, events: tuple[str, ...]) -> None:
    """Register an address. Its signing secret is shown once."""
    here = session()
    here.show(here.client.webhooks.create(url=url, events=events), views.anything)


@webhook.command("test", cls=Write)
@click.argument("webhook_id")
def test_webhook(webhook_id: str) -> None:
    """Send a test message."""
    here = session()
    here.show(here.client.webhooks.test(webhook_id), views.anything)


@webhook.command("delete", cls=Write)
@click.argument("webhook_id")
def delete_webhook(webhook_id: str) -> None:
    """Send nothing more there."""
    here = session()
    here.confirm(f"Delete {webhook_id}?")
    here.client.webhooks.delete(webhook_id)
    here.done(f"{webhook_id} is deleted.")


@webhook.command("rotate", cls=Write)
@click.argument("webhook_id")
@click.option("--overlap", "overlap_s", type=inputs.Duration(), help="How long the old secret signs, too.")
def rotate_webhook(webhook_id: str, overlap_s: int | None) -> None:
    """Make another signing secret. It is shown once."""
    here = session()
    here.show(here.client.webhooks.rotate(webhook_id, overlap_s=overlap_s), views.anything)


@webhook.command("enable", cls=Write)
@click.argument("webhook_id")
def enable_webhook(webhook_id: str) -> None:
    """Send there again, after it was switched off."""
    here = session()
    seen = here.client.webhooks.get(webhook_id)
    here.show(here.client.webhooks.update(webhook_id, if_match=seen.etag or "*", enabled=True), views.anything)


@webhook.command("deliveries")
@click.argument("webhook_id")
@click.option("--state", type=click.Choice(["pending", "delivered", "failed"]), help="Only these.")
@listing_options
def list_deliveries(webhook_id: str, state: str | None, limit: int | None) -> None:
    """Show what was sent there, and what was answered."""
    here = session()
    here.show_list(here.client.webhooks.deliveries(webhook_id, state=state), views.DELIVERIES, limit=limit)


@webhook.command("replay", cls=Write)
@click.argument("webhook_id")
@click.argument("delivery_id")
def replay_delivery(webhook_id: str, delivery_id: str) -> None:
    """Send something once more."""
    here = session()
    here.show(here.client.webhooks.replay(webhook_id, delivery_id), views.anything)


@click.command(cls=Verb)
@listing_options
def audit(limit: int | None) -> None:
    """Show who did what in your organization, newest first."""
    here = session()
    here.show_list(here.client.audit_events.list(), views.AUDIT, limit=limit)
