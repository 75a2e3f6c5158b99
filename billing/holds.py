"""Money kept for a request until its use begins: taken under the wallet's lock and CHECK, settled once."""

from datetime import datetime
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F

from apikit.errors import DomainError
from billing import exhaustion, ledger, pricing, wallets
from billing.models import Account, AccountBalance, Hold, HoldPart, HoldSettlement


class InsufficientFunds(DomainError):
    slug = "insufficient-funds"
    title = "The wallet does not cover the first hold"
    status = 402


class HoldReused(DomainError):
    slug = "hold-reused"
    title = "This reference holds another amount"


class HoldSettled(DomainError):
    slug = "hold-settled"
    title = "This hold is settled"


# The usual case in one statement: a wallet without credits whose burn changes at no second that is known ahead. What
# ran since `as_of` is then burn x seconds exactly, and the new instant of exhaustion follows (exhaustion.REFRESH).
AT_ONCE = """
WITH wallet AS (
    SELECT b.account_id, b.burn_micros_per_hour AS burn, b.balance_micros - b.held_micros - b.floor_micros AS free,
        b.accrued_num + b.burn_micros_per_hour::numeric
            * (%(at_s)s - coalesce(extract(epoch FROM b.as_of)::bigint, %(at_s)s)) AS accrued
    FROM billing_accountbalance b JOIN billing_account a ON a.id = b.account_id
    WHERE a.kind = 'wallet' AND a.owner = %(owner)s AND a.currency = %(currency)s
        AND b.refresh_at IS NULL AND (b.as_of IS NULL OR b.as_of <= to_timestamp(%(at_s)s))
        AND NOT EXISTS (SELECT 1 FROM billing_account g
            WHERE g.kind = 'promo_grant' AND g.owner = a.owner AND g.currency = a.currency)
        AND NOT EXISTS (SELECT 1 FROM billing_hold h WHERE h.reference = %(reference)s)
    FOR NO KEY UPDATE OF b
), taken AS (
    UPDATE billing_accountbalance b
    SET held_micros = b.held_micros + %(amount)s, accrued_num = w.accrued, as_of = to_timestamp(%(at_s)s),
        exhaust_at = CASE WHEN w.burn > 0 AND div((w.free - %(amount)s) * 3600 - w.accrued, w.burn) <= %(horizon_s)s
            THEN to_timestamp(%(at_s)s + greatest(0, div((w.free - %(amount)s) * 3600 - w.accrued, w.burn))) END
    FROM wallet w WHERE b.account_id = w.account_id AND w.free - ceil(greatest(0, w.accrued) / 3600) >= %(amount)s
    RETURNING b.account_id
), hold AS (
    INSERT INTO billing_hold (account_id, reference, amount_micros, placed_at, expires_at)
    SELECT account_id, %(reference)s, %(amount)s, %(at)s, %(expires_at)s FROM taken RETURNING id, account_id
)
INSERT INTO billing_holdpart (hold_id, account_id, amount_micros)
SELECT id, account_id, %(amount)s FROM hold RETURNING hold_id, account_id
"""


def place(
    *, owner: UUID, currency: str, amount_micros: int, reference: str, expires_at: datetime, at: datetime
) -> Hold:
    """Keep an amount until `expires_at`; the same reference and amount again returns the first hold.

    Raises InsufficientFunds with `needed` and `missing`, HoldReused for another amount, ValueError below zero.
    """
    if amount_micros < 0:
        raise ValueError(f"negative hold: {amount_micros}")
    hold = Hold(reference=reference, amount_micros=amount_micros, placed_at=at, expires_at=expires_at)
    if amount_micros and _place_at_once(hold, owner=owner, currency=currency):
        return hold
    return _place_closely(hold, owner=owner, currency=currency, at=at)


@transaction.atomic
def _place_closely(hold: Hold, *, owner: UUID, currency: str, at: datetime) -> Hold:
    reference, amount_micros = hold.reference, hold.amount_micros
    wallet = wallets.account_of(owner=owner, currency=currency, at=at)
    row = wallets.refreshed(wallet, at=at)
    found = Hold.objects.filter(reference=reference).first()
    if found is not None:
        if (found.account_id, found.amount_micros) != (wallet.pk, amount_micros):
            raise HoldReused(f"{reference} already holds another amount.", reference=reference)
        return found
    funds = wallets.pledgeable(wallet, row, at=at)
    available = max(0, sum(micros for _, micros in funds))
    if available < amount_micros:
        raise InsufficientFunds(
            f"{pricing.show(amount_micros)} {currency} are needed and {pricing.show(available)} are available.",
            needed=pricing.money(amount_micros, currency),
            missing=pricing.money(amount_micros - available, currency),
        )
    hold.account = wallet
    hold.save(force_insert=True)
    _keep(hold, funds)
    exhaustion.refresh(accounts=[wallet.pk], at=at)
    return hold


def _place_at_once(hold: Hold, *, owner: UUID, currency: str) -> bool:
    """Place a hold in one statement; False, and nothing is written, where it takes a closer look or more money."""
    asked: dict[str, str | int | UUID | datetime] = {
        "owner": owner, "currency": currency, "reference": hold.reference, "amount": hold.amount_micros,
        "at": hold.placed_at, "at_s": int(hold.placed_at.timestamp()), "expires_at": hold.expires_at,
        "horizon_s": exhaustion.HORIZON_S,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(AT_ONCE, asked)
        placed = cursor.fetchone()
    if placed is None:
        return False
    hold.pk, hold.account_id = placed
    hold._state.adding = False
    return True


def _keep(hold: Hold, funds: list[tuple[Account, int]]) -> None:
    left = hold.amount_micros
    for account, micros in funds:
        taken = max(0, min(left, micros))
        left -= taken
        if taken:
            HoldPart.objects.create(hold=hold, account=account, amount_micros=taken)
            AccountBalance.objects.filter(pk=account.pk).update(held_micros=F("held_micros") + taken)


@transaction.atomic
def release(*, reference: str, at: datetime, cause: str = "released") -> None:
    """Give a hold back in full; nothing happens when it is settled or was never placed."""
    hold = Hold.objects.filter(reference=reference, settlement=None).select_related("account").first()
    if hold is not None:
        ledger.lock([hold.account_id])
        _settle(hold, captured_micros=0, cause=cause, at=at)


@transaction.atomic
def capture(*, reference: str, amount_micros: int, to: Account, key: str, at: datetime) -> None:
    """Take part of a hold for good and give the rest back. Raises HoldSettled the second time, Overdrawn above it."""
    hold = Hold.objects.select_related("account").get(reference=reference)
    ledger.lock([hold.account_id])
    if not 0 <= amount_micros <= hold.amount_micros:
        raise ledger.Overdrawn(f"{reference} holds less than that.", reference=reference)
    parts = list(hold.parts.select_related("account").order_by("pk"))
    if not _settle(hold, captured_micros=amount_micros, cause="captured", at=at):
        raise HoldSettled(f"The hold of {reference} is settled.", reference=reference)
    legs, left = [], amount_micros
    for part in parts:
        taken = min(left, part.amount_micros)
        legs += ledger.flow(part.account, to, taken)
        left -= taken
    ledger.post(key=key, kind="capture", legs=legs, effective_at=at, at=at)
    exhaustion.refresh(accounts=[hold.account_id], at=at)


@transaction.atomic
def lower(*, reference: str, to: str, amount_micros: int, at: datetime) -> None:
    """Let a hold keep less, under another name (a hold is settled once); nothing of it is left where that is 0.

    What comes free first is what was taken first: grants before the wallet, as usage draws them.
    """
    hold = Hold.objects.select_related("account").get(reference=reference, settlement=None)
    ledger.lock([hold.account_id])
    if not 0 <= amount_micros <= hold.amount_micros:
        raise ValueError(f"{reference} holds {hold.amount_micros}, and cannot be lowered to {amount_micros}")
    parts = [(part.account, part.amount_micros) for part in hold.parts.select_related("account").order_by("pk")]
    _settle(hold, captured_micros=0, cause="lowered", at=at)
    if amount_micros:
        less = Hold(account=hold.account, reference=to, amount_micros=amount_micros, placed_at=at)
        less.expires_at = hold.expires_at
        less.save(force_insert=True)
        _keep(less, list(reversed(parts)))
        exhaustion.refresh(accounts=[hold.account_id], at=at)


@transaction.atomic
def release_expired(*, at: datetime) -> int:
    """Give back the holds whose time is over; return how many."""
    expired = Hold.objects.filter(expires_at__lte=at, settlement=None).order_by("account_id", "pk")
    references = list(expired.values_list("reference", flat=True))
    for reference in references:
        release(reference=reference, at=at, cause="expired")
    return len(references)


def _settle(hold: Hold, *, captured_micros: int, cause: str, at: datetime) -> bool:
    """Record the end of a hold and free what it kept; False if somebody had settled it. The wallet is locked."""
    with connection.cursor() as cursor:
        # The primary key decides: whoever comes second inserts nothing.
        cursor.execute(
            "INSERT INTO billing_holdsettlement (hold_id, captured_micros, cause, at) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            [hold.pk, captured_micros, cause, at],
        )
        if cursor.rowcount == 0:
            return False
    for part in hold.parts.order_by("account_id"):
        AccountBalance.objects.filter(pk=part.account_id).update(held_micros=F("held_micros") - part.amount_micros)
    exhaustion.refresh(accounts=[hold.account_id], at=at)
    return True


def held_for(reference: str) -> HoldSettlement | None:
    """Return how the hold of a reference ended, or None while it is open or when there is none."""
    return HoldSettlement.objects.filter(hold__reference=reference).first()
