"""The change log that the placer reads: which hosts' capacity changed, without skipping a commit that came late.

Whatever changes what can be placed on a host (its state, scheduling, devices, their health, figures of its inventory)
has its line in the same transaction: triggers on the tables of hosts and devices write it, and so does whoever adds to
what these tables say (`changed`). A row carries its transaction's number. A reader takes the rows of transactions
that had all ended when it looked (below `pg_snapshot_xmin`); a sequence as a cursor would skip a row whose transaction
took its number early and committed late. The price: a transaction that writes and stays open, in any database of the
server, holds readers back until it ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Max

from agents.models import CapacityChange, Sweep

# Older rows are deleted; a reader that was away for longer reloads everything.
KEPT = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Changes:
    hosts: frozenset[UUID]  # whose capacity changed since the cursor
    cursor: int  # to be given at the next call
    unsettled: frozenset[UUID] = frozenset()  # those of `hosts` that the next call returns again
    everything: bool = False  # the cursor was None or too old: reload all hosts


def changed(host_ids: Iterable[UUID]) -> None:
    """Write one line for each host. Must be called in the transaction that makes the change."""
    CapacityChange.objects.bulk_create([CapacityChange(host_id=host_id) for host_id in sorted(set(host_ids))])


def changed_since(cursor: int | None, *, unsettled: bool = False) -> Changes:
    """Return the hosts whose capacity changed in transactions that have ended since `cursor` was returned.

    unsettled: also those of transactions that have ended, or are this one, while an older one is still open. The next
    call returns them again; whoever cannot wait for it may be shown what is taken back.

    A host that is returned must be read after this call, whole. With None, or a cursor so old that rows may have been
    deleted since, `everything` is true and `hosts` says nothing.
    """
    with connection.cursor() as sql:
        # One statement, hence one snapshot: the bound and the rows belong together.
        sql.execute(
            """
            SELECT bound.xmin, array_agg(DISTINCT change.host_id) FILTER (WHERE change.host_id IS NOT NULL),
                   array_agg(DISTINCT change.host_id) FILTER (WHERE change.xid8 >= bound.xmin),
                   coalesce((SELECT forgotten_below FROM agents_sweep), 0)
            FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin) AS bound
            LEFT JOIN agents_capacitychange AS change ON change.xid8 >= %s AND (%s OR change.xid8 < bound.xmin)
            GROUP BY bound.xmin
            """,
            [cursor or 0, unsettled],
        )
        xmin, hosts, unsettled_hosts, forgotten_below = sql.fetchone()
    if cursor is None or cursor < forgotten_below:
        return Changes(hosts=frozenset(), cursor=xmin, everything=True)
    return Changes(hosts=frozenset(hosts or ()), unsettled=frozenset(unsettled_hosts or ()), cursor=xmin)


@transaction.atomic
def forget(*, at: datetime) -> int:
    """Delete the lines that every reader has long read, and note how far; return how many."""
    old = CapacityChange.objects.filter(at__lt=at - KEPT)
    newest = old.aggregate(newest=Max("xid8"))["newest"]
    if newest is None:
        return 0
    Sweep.objects.get_or_create(id=1, defaults={"swept_at": at, "listening_since": at})
    Sweep.objects.filter(id=1).update(forgotten_below=newest + 1)
    deleted, _ = CapacityChange.objects.filter(xid8__lte=newest).delete()
    return deleted
