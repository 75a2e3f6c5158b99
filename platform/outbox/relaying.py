"""From message to deliveries: one for each endpoint of the organization that asked for the topic.

Database work alone, so a batch is one transaction: a crash leaves the messages due, and nothing is doubled.
"""

from datetime import datetime, timedelta

from django.db import transaction

from outbox import messages
from outbox.models import Delivery, Endpoint, Message

KEPT_FOR = timedelta(days=30)


@transaction.atomic
def relay_due(*, at: datetime, limit: int = 500) -> int:
    """Make the deliveries of at most `limit` messages that are due; return how many messages were relayed."""
    due = list(
        Message.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
        .filter(relayed_at__isnull=True, available_at__lte=at)
        .order_by("available_at")[:limit]
    )
    organizations = {message.organization_id for message in due if message.organization_id is not None}
    endpoints = list(
        Endpoint.objects.filter(organization_id__in=organizations, deleted_at__isnull=True, disabled_at__isnull=True)
    )
    deliveries = [
        _delivery(message, endpoint, at=at)
        for message in due
        for endpoint in endpoints
        if endpoint.organization_id == message.organization_id and message.topic in endpoint.events
    ]
    Delivery.objects.bulk_create(deliveries, ignore_conflicts=True, batch_size=500)
    Message.objects.filter(pk__in=[message.pk for message in due]).update(relayed_at=at)
    return len(due)


def forget_old(*, at: datetime, limit: int = 5000) -> int:
    """Delete messages and finished deliveries that are older than 30 days; return how many rows."""
    old = at - KEPT_FOR
    finished = Delivery.objects.filter(created_at__lt=old).exclude(state="pending").values("pk")[:limit]
    relayed = Message.objects.filter(relayed_at__lt=old).values("pk")[:limit]
    return Delivery.objects.filter(pk__in=finished).delete()[0] + Message.objects.filter(pk__in=relayed).delete()[0]


def _delivery(message: Message, endpoint: Endpoint, *, at: datetime) -> Delivery:
    return Delivery(
        endpoint=endpoint,
        message_id=message.pk,
        topic=message.topic,
        body=messages.body(topic=message.topic, payload=message.payload, at=message.created_at),
        due_at=at,
        created_at=at,
    )
