"""Budgets: a line over a month's usage, alarms that ring once, and what is refused when the line is passed."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from apikit.errors import DomainError, InvalidInput
from apikit.statements import Statement
from billing import currencies, pricing, statements
from billing.models import Budget, BudgetAlarm
from billing.models.terms import BudgetAction

THRESHOLDS_BP = (5_000, 8_000, 10_000)


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


def rung(*, budget: Budget, at: datetime) -> list[BudgetAlarm]:
    """Return the alarms of the month around `at`, the lowest threshold first."""
    period = DateTimeTZRange(*month_around(budget, at=at))
    return list(budget.alarms.filter(period=period).order_by("threshold_bp"))


def capping(*, owner: UUID, currency: str) -> Statement:
    """Return the question whether any budget caps what an owner starts; without a row there is nothing to refuse."""
    return Statement(
        "SELECT 1 FROM billing_budget WHERE owner = %s AND currency = %s AND action <> %s LIMIT 1",
        [owner, currency, BudgetAction.NOTIFY.value],
    )


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


@transaction.atomic
def create(
    *,
    owner: UUID,
    currency: str,
    amount_micros: int,
    name: str,
    label: str,
    thresholds_bp: Sequence[int],
    action: BudgetAction,
    time_zone: str,
    at: datetime,
) -> Budget:
    """Draw a line; `label` is "" or "key=value". Raises InvalidInput for a currency or an amount that cannot be one."""
    if currency not in currencies.CURRENCIES or amount_micros < 1 or (label and "=" not in label):
        raise InvalidInput(
            "A budget is a positive amount in a currency, over everything or one label.",
            errors=[
                {"pointer": "", "code": "bad_value", "detail": "The amount, its currency or the label is not usable."}
            ],
        )
    return Budget.objects.create(
        owner=owner,
        currency=currency,
        amount_micros=amount_micros,
        name=name,
        label=label,
        thresholds_bp=sorted(set(thresholds_bp)),
        action=action,
        time_zone=time_zone,
        created_at=at,
    )


@transaction.atomic
def change(
    *,
    budget: Budget,
    name: str | None = None,
    amount: tuple[int, str] | None = None,
    thresholds_bp: Sequence[int] | None = None,
    action: BudgetAction | None = None,
) -> Budget:
    """Move a line (None: as it is); what it is about stays. amount: (micro-units, currency). The row is locked.

    Alarms that have rung this month do not ring again. Raises InvalidInput for another currency or no amount.
    """
    if amount is not None and (amount[0] < 1 or amount[1] != budget.currency):
        raise InvalidInput(
            "A budget keeps its currency.",
            errors=[{"pointer": "/amount", "code": "bad_value", "detail": f"A positive amount of {budget.currency}."}],
        )
    budget.name = budget.name if name is None else name
    budget.amount_micros = budget.amount_micros if amount is None else amount[0]
    budget.thresholds_bp = budget.thresholds_bp if thresholds_bp is None else sorted(set(thresholds_bp))
    budget.action = budget.action if action is None else action
    budget.version += 1
    budget.save(update_fields=["name", "amount_micros", "thresholds_bp", "action", "version"])
    return budget


def remove(*, budget: Budget) -> None:
    """Take a line away, with its alarms."""
    budget.delete()
