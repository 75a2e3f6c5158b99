"""An operator shuts an organization out, and lets it in again. What it paid and what it is owed stays as it is."""

from datetime import datetime

from django.db import transaction

from agents import host_life
from agents.models import Host
from leasing import moves, quotes
from leasing.models import Lease, Quote
from leasing.states import EndReason, State
from scheduler import recovery
from tenants import organizations
from tenants.models import Organization


@transaction.atomic
def ban(*, organization: Organization, reason: str, by: str, at: datetime) -> int:
    """Refuse its keys and members, end its leases, cancel its quotes, let nobody onto its hosts; return the leases.

    Leases of others on its hosts go on: their tenants did nothing. Doing it again ends what was left.
    """
    organizations.ban(organization_id=organization.pk, reason=reason, by=by, at=at)
    for quote in Quote.objects.filter(organization=organization, state=Quote.State.OPEN).order_by("pk"):
        quotes.cancel(quote_id=quote.pk, at=at)
    live = Lease.objects.filter(organization=organization).exclude(state__in=[State.ENDING, State.ENDED])
    # All before the first is ended: that takes the wallet, for which whoever has one of the others would wait.
    leases = moves.all_locked(live.values_list("pk", flat=True))
    for lease in leases:
        recovery.end_now(lease=lease, reason=EndReason.OPERATOR, at=at, detail=reason)
    for host in Host.objects.filter(owner=organization).exclude(state=Host.State.RETIRED).order_by("pk"):
        host_life.cordon(host_id=host.pk, reason=f"Its owner is banned: {reason}", by=by, at=at)
    return len(leases)


def unban(*, organization: Organization, reason: str, by: str, at: datetime) -> None:
    """Let its keys and members in again. Its hosts stay cordoned until somebody looks at them."""
    organizations.unban(organization_id=organization.pk, reason=reason, by=by, at=at)
