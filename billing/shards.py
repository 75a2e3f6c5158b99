"""Payers in shards: each is closed by itself, up to an instant that its runs record."""

from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db import connection

from billing.models import BillingRun

LOCK = 7_301  # the first key of the advisory locks on shards


def count() -> int:
    """Return how many shards there are (BILLING_SHARDS, default 1)."""
    shards: int = getattr(settings, "BILLING_SHARDS", 1)
    return shards


def of_owner(owner: UUID | None) -> int:
    return owner.int % count() if owner else 0


def lock(shard: int) -> None:
    """Wait for and keep the shard's lock until the transaction ends: one close at a time, and no new wallet."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [LOCK, shard])


def lock_shared(shard: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", [LOCK, shard])


def closed_to(shard: int) -> datetime | None:
    """Return the end of the shard's last run: all usage before it is posted. None: there was no run yet."""
    last = BillingRun.objects.filter(shard=shard).order_by("-during").first()
    return None if last is None else last.during.upper


def closed_to_s(shard: int) -> int:
    """Return the same in seconds since 1970; 0 before the first run."""
    last = closed_to(shard)
    return 0 if last is None else int(last.timestamp())
