"""Budgets: a line over a month's usage, alarms that ring once, and what is refused when the line is passed."""

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from apikit.errors import DomainError
from billing import pricing, statements
from billing.models import Budget, BudgetAlarm
from billing.models.terms import BudgetAction


class BudgetExceeded(DomainError):
    slug = "budget-exceeded"
    title = "A budget of the organization is used up"


def spent_micros(*, budget: Budget, at: datetime) -> int:
    """Return the usage of the month around `at` that a budget is about, posted or not."""
    start, end = month_around(budget, at=at)
    statement = statements.between(owner=budget.owner, currency=budget.currency, start=start, end=end, at=at)
    return sum(part.micros for part in statement.parts if _about(budget, part.labels))


def month_around(budget: Budget, *, at: datetime) -> tuple[datetime, datetime]:
    local = at.astimezone(ZoneInfo(budget.time_zone))
    return statements.month_bounds(year=local.year, month=local.month, time_zone=budget.time_zone)


def watch(*, at: datetime) -> list[BudgetAlarm]:
    """Look at every budget; return the alarms that are new."""
    return [alarm for budget in Budget.objects.order_by("pk") for alarm in check(budget=budget, at=at)]


def check(*, budget: Budget, at: datetime) -> list[BudgetAlarm]:
    """Look at one budget; return the alarms that are new."""
    return ring(budget=budget, spent=spent_micros(budget=budget, at=at), at=at)


@transaction.atomic
def ring(*, budget: Budget, spent: int, at: datetime) -> list[BudgetAlarm]:
    """Ring for each threshold that `spent` micro-units have reached and that has not rung in this month."""
    period = DateTimeTZRange(*month_around(budget, at=at))
    rung = []
    for threshold_bp in sorted(budget.thresholds_bp):
        if spent * pricing.BP >= budget.amount_micros * threshold_bp:
            alarm, fresh = BudgetAlarm.objects.get_or_create(
                budget=budget, period=period, threshold_bp=threshold_bp, defaults={"spent_micros": spent, "at": at}
            )
            rung += [alarm] if fresh else []
    return rung


def refuse_if_exceeded(*, owner: UUID, currency: str, labels: Mapping[str, str], at: datetime) -> None:
    """Raise BudgetExceeded if a budget that caps what bears these labels is used up: no new start then."""
    capping = Budget.objects.filter(owner=owner, currency=currency).exclude(action=BudgetAction.NOTIFY)
    for budget in capping.order_by("pk"):
        if _about(budget, labels) and spent_micros(budget=budget, at=at) >= budget.amount_micros:
            raise BudgetExceeded(
                f"The budget {budget.name!r} is used up.",
                budget=budget.public_id,
                amount=pricing.money(budget.amount_micros, currency),
            )


def to_stop(*, at: datetime) -> list[str]:
    """Return the references that run under a budget that stops what it covers and is used up."""
    references: set[str] = set()
    for budget in Budget.objects.filter(action=BudgetAction.STOP):
        start, end = month_around(budget, at=at)
        statement = statements.between(owner=budget.owner, currency=budget.currency, start=start, end=end, at=at)
        about = [part for part in statement.parts if _about(budget, part.labels)]
        if sum(part.micros for part in about) >= budget.amount_micros:
            references |= {part.reference for part in about if any(line.end is None for line in part.lines)}
    return sorted(references)


def _about(budget: Budget, labels: Mapping[str, str]) -> bool:
    if not budget.label:
        return True
    key, _, value = budget.label.partition("=")
    return labels.get(key) == value
