"""What the platform takes of a host's charge, in basis points: less from owners who earned more, and by host class.

The rule: what the owner earned in the calendar month before (UTC), in the currency of the lease, chooses the tier; the
class of the host takes its part off. The tier of a month is looked up once and stays for that month; a meter keeps the
commission that it began with for good, so no later month changes what a running lease pays.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Sum

from billing import ledger, statements
from billing.models import Account, CommissionRate, Transfer
from billing.models.accounts import AccountKind

type Tiers = Sequence[tuple[int, int]]  # (earned at least, in micro-units; basis points), the lowest first


def tier_bp(*, earned_micros: int, tiers: Tiers) -> int:
    """Return the basis points of the highest tier that was reached. Raises ValueError where none was."""
    reached = [bp for from_micros, bp in sorted(tiers) if earned_micros >= from_micros]
    if not reached:
        raise ValueError(f"no tier begins at {earned_micros}")
    return reached[-1]


def of_class(*, bp: int, host_class: str, class_discount_bp: Mapping[str, int]) -> int:
    """Return a tier's basis points less what the class of the host takes off, never below 0."""
    return max(0, bp - class_discount_bp.get(host_class, 0))


@transaction.atomic
def rate_bp(*, owner: UUID, currency: str, host_class: str, at: datetime) -> int:
    """Return the commission of a meter that begins at `at` on a host of this owner and class."""
    earnings = ledger.account(kind=AccountKind.HOST_EARNINGS, owner=owner, currency=currency, at=at)
    month = at.astimezone(UTC).date().replace(day=1)
    kept = CommissionRate.objects.filter(payee=earnings, month=month).first() or _look_up(earnings, at=at)
    return of_class(bp=kept.bp, host_class=host_class, class_discount_bp=settings.COMMISSION_CLASS_DISCOUNT_BP)


def _look_up(earnings: Account, *, at: datetime) -> CommissionRate:
    month = at.astimezone(UTC).date().replace(day=1)
    earned = max(0, _earned_in_month_before(earnings, at=at))
    kept, _ = CommissionRate.objects.get_or_create(
        payee=earnings,
        month=month,
        defaults={"bp": tier_bp(earned_micros=earned, tiers=settings.COMMISSION_TIERS), "earned_micros": earned},
    )
    return kept


def _earned_in_month_before(earnings: Account, *, at: datetime) -> int:
    """Return what usage of the last calendar month has brought the owner, less what was taken back for it."""
    day = at.astimezone(UTC).date()
    year, month = (day.year, day.month - 1) if day.month > 1 else (day.year - 1, 12)
    start, end = statements.month_bounds(year=year, month=month, time_zone="UTC")
    # Usage is effective at the end of what it covers: the close of a month's last hour belongs to it.
    usage = Transfer.objects.filter(
        journal__kind="usage", journal__effective_at__gt=start, journal__effective_at__lte=end
    )
    gained = usage.filter(credit=earnings).aggregate(n=Sum("amount_micros", default=0))["n"]
    return int(gained - usage.filter(debit=earnings).aggregate(n=Sum("amount_micros", default=0))["n"])
