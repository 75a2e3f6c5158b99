"""What organizations are told about their money before it matters: written once, delivered by the outbox."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from apikit.instants import instant
from billing import budgets, exhaustion, pricing
from outbox import messages


@transaction.atomic
def watch(*, at: datetime) -> int:
    """Warn of wallets that run dry within 24 h, 60 min, 10 min, and of budgets that are passed; return how many."""
    warnings, alarms = exhaustion.warn_due(at=at), budgets.watch(at=at)
    for warning in warnings:
        owner, currency = warning.wallet.owner, warning.wallet.currency
        payload = {"currency": currency, "exhausts_at": instant(warning.exhaust_at), "lead_s": warning.lead_s}
        _tell("wallet.low", f"{warning.pk}", payload, owner=owner, at=at)
    for alarm in alarms:
        budget = alarm.budget
        topic = "budget.exceeded" if alarm.threshold_bp >= pricing.BP else "budget.threshold"
        spent = pricing.money(alarm.spent_micros, budget.currency)
        payload = {"id": budget.public_id, "threshold_bp": alarm.threshold_bp, "spent": spent}
        _tell(topic, f"{alarm.pk}", payload, owner=budget.owner, at=at)
    return len(warnings) + len(alarms)


def _tell(topic: str, key: str, payload: dict[str, Any], *, owner: UUID | None, at: datetime) -> None:
    messages.post(topic=topic, key=f"{topic}:{key}", payload=payload, organization_id=owner, at=at)
