"""Vouchers: a code that becomes promotional credit, once."""

import hashlib
import secrets
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction

from apikit.errors import DomainError
from billing import currencies, grants
from billing.models import Grant, Voucher


class NoSuchVoucher(DomainError):
    """One answer for unknown, used and out of date: whoever guesses codes learns nothing."""

    slug = "no-such-voucher"
    title = "This code is not valid"
    status = 422


def issue(
    *, currency: str, amount_micros: int, at: datetime, valid_until: datetime | None = None, grant_days: int = 365
) -> str:
    """Make a voucher and return its code, which is shown this once: 100 random bits."""
    currencies.get(currency)
    code = secrets.token_hex(13)
    Voucher.objects.create(
        code_sha256=_digest(code),
        currency=currency,
        amount_micros=amount_micros,
        valid_until=valid_until,
        grant_days=grant_days,
        created_at=at,
    )
    return code


@transaction.atomic
def redeem(*, code: str, owner: UUID, by: str, at: datetime) -> Grant:
    """Turn a code into a grant; the same organization again gets the same grant. Raises NoSuchVoucher."""
    voucher = Voucher.objects.select_for_update().filter(code_sha256=_digest(code)).first()
    expired = voucher is not None and voucher.valid_until is not None and voucher.valid_until <= at
    if voucher is None or (voucher.redeemed_by not in (None, owner)) or (expired and voucher.redeemed_by is None):
        raise NoSuchVoucher("This code is not valid.")
    if voucher.redeemed_by is None:
        voucher.redeemed_by, voucher.redeemed_at = owner, at
        voucher.save(update_fields=["redeemed_by", "redeemed_at"])
    begun = voucher.redeemed_at or at
    return grants.give(
        owner=owner,
        currency=voucher.currency,
        amount_micros=voucher.amount_micros,
        key=f"voucher:{voucher.pk}",
        effective_at=begun,
        expires_at=begun + timedelta(days=voucher.grant_days),
        reason="voucher",
        by=by,
        at=at,
    )


def _digest(code: str) -> str:
    return hashlib.sha256(code.strip().lower().encode()).hexdigest()
