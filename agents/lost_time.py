"""After the database was restored to an earlier state: what hosts were told in the time that is lost is not known.

A host may run what was ordered then, by a list of a number that we would give again, and may go on unheard for as long
as an answer allowed that we do not remember. So numbers of lists jump over those that may have been used,
every fence counts from now, and nobody is taken for heard who was heard before.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Value

from agents import host_events, host_life
from agents.models import Host, Workload

LISTS = 1_000_000  # wanted lists of one host that no lost time can have held


@transaction.atomic
def doubt_everything(*, at: datetime) -> int:
    """Make every host suspect, every list new and every fence count from `at`; return how many hosts there are."""
    hosts = list(Host.objects.select_for_update(no_key=True).exclude(state=Host.State.RETIRED).order_by("pk"))
    Host.objects.filter(pk__in=[host.pk for host in hosts]).update(generation=F("generation") + LISTS)
    lasts = ExpressionWrapper(F("valid_for_s") * Value(timedelta(seconds=1)), output_field=DurationField())
    Workload.objects.filter(gone_at__isnull=True).update(
        last_valid_until=ExpressionWrapper(Value(at, DateTimeField()) + lasts, output_field=DateTimeField())
    )
    for host in hosts:
        host_events.record(host_id=host.pk, kind="host.restored", at=at, detail="The database was restored.")
        if host.state == Host.State.ONLINE:
            host_life.move(host, Host.State.SUSPECT, at=at, reason="Not heard since the database was restored.")
    return len(hosts)
