"""What the tests of billing begin with: an owner with money, a price, a running meter. Real domain functions only."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import connection, transaction

from billing import ledger, metering, price_list, wallets
from billing.models import PriceVersion
from billing.models.accounts import AccountKind

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
LONG_AGO = datetime(2016, 1, 1, tzinfo=UTC)


def after(seconds: float, start: datetime = NOON) -> datetime:
    return start + timedelta(seconds=seconds)


def make_price(
    price: int,
    *,
    sku: str | None = None,
    use: str = "active",
    currency: str = "USD",
    term: str = "on_demand",
    starts_at: datetime = LONG_AGO,
    minimum_s: int = 0,
    free_if_interrupted_s: int = 0,
) -> PriceVersion:
    return price_list.publish(
        series=price_list.Series(
            sku=sku or uuid4().hex, region="north", tier="verified", term=term, use=use, currency=currency
        ),
        price_micros_per_hour=price,
        starts_at=starts_at,
        cause="test",
        minimum_s=minimum_s,
        free_if_interrupted_s=free_if_interrupted_s,
        at=starts_at,
    )


def make_owner(micros: int = 0, *, currency: str = "USD", at: datetime = LONG_AGO) -> UUID:
    owner = uuid4()
    if micros:
        give(owner, micros, currency=currency, at=at)
    return owner


def give(owner: UUID, micros: int, *, currency: str = "USD", at: datetime = LONG_AGO) -> None:
    """Put money of any fineness into a wallet; what comes from outside is never finer than a cent."""
    wallet = wallets.account_of(owner=owner, currency=currency, at=at)
    cash = ledger.account(kind=AccountKind.CASH, currency=currency, part="test", at=at)
    ledger.post(key=f"test:{uuid4()}", kind="topup", legs=ledger.flow(cash, wallet, micros), effective_at=at, at=at)


def run(
    *,
    payer: UUID,
    price: PriceVersion,
    at: datetime = NOON,
    reference: str = "",
    payee: UUID | None = None,
    member: int = 0,
    quantity: int = 1,
    seq: int = 1,
    commission_bp: int = 1000,
    use: str = "active",
    follows: bool = False,
    tax_on_commission_bp: int = 0,
    received_at: datetime | None = None,
) -> str:
    """Start a meter and return its reference."""
    reference = reference or f"lease_{uuid4().hex}"
    metering.start(
        payer=payer,
        payee=payee or uuid4(),
        currency=price.series.currency,
        reference=reference,
        member=member,
        use=use,
        price_version_id=price.pk,
        quantity=quantity,
        commission_bp=commission_bp,
        labels={},
        seq=seq,
        at=at,
        follows=follows,
        tax_on_commission_bp=tax_on_commission_bp,
        received_at=received_at,
    )
    return reference


class Killed(Exception):
    """Our process died here; whatever was not committed is gone."""


def killed_at(point: int, act: Callable[[], object]) -> bool:
    """Do `act` and die at its statement number `point`; False if it had fewer and is done."""
    seen = 0

    def killer(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        nonlocal seen
        if not str(sql).startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")):
            seen += 1
            if seen > point:
                raise Killed
        return execute(sql, params, many, context)

    try:
        with transaction.atomic(), connection.execute_wrapper(killer):
            act()
    except Killed:
        return True
    return False
