"""Posting the charge of one meter outside the hourly close: its end, a late fact, seconds taken back.

Everything is `charge now - posted`, so it can never double what the close has posted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from billing import grant_windows, ledger, pricing
from billing.models import Account, AccountBalance, Adjustment, Journal, Meter
from billing.models.accounts import AccountKind


@dataclass(frozen=True)
class Usage:
    """A charge of [start_s, end_s) in micro-units; below zero it is given back."""

    start_s: int
    end_s: int
    gross_micros: int


def post(meter: Meter, *, posted_micros: int, usage: Sequence[Usage], cause: str, at: datetime) -> Journal | None:
    """Post the usage of a meter of which `posted_micros` are posted; None when it adds up to nothing.

    The caller holds the payer's wallet. A part of usage is one between two edges of grants.
    """
    gross = sum(part.gross_micros for part in usage)
    if gross == 0:
        return None
    n = meter.adjustments.count()
    legs = _payers_side(meter.payer, usage, at=at) + _payees_side(meter, posted_micros, posted_micros + gross, at=at)
    end_s = max(part.end_s for part in usage)
    journal = ledger.post(
        key=f"adjust:{meter.pk}:{n}",
        kind="usage",
        legs=legs,
        effective_at=datetime.fromtimestamp(end_s, UTC),
        at=at,
        memo=f"{cause}: {meter.reference}/{meter.member} {meter.use}",
    )
    Adjustment.objects.create(
        meter=meter,
        n=n,
        journal=journal,
        gross_micros=gross,
        start_s=min(part.start_s for part in usage),
        end_s=end_s,
        cause=cause,
    )
    return journal


def draw(payer: Account, usage: Sequence[Usage], *, at: datetime) -> list[tuple[Account, int]]:
    """Return what pays for usage: grants inside their window, the wallet down to its floor, the platform for the rest.

    Amounts of one account may come several times. The wallet's row is locked, and nothing is posted here.
    """
    given = grant_windows.of_wallet(payer, start_s=usage[0].start_s, end_s=usage[-1].end_s)
    row = AccountBalance.objects.get(pk=payer.pk)
    wallet = max(0, row.balance_micros - row.held_micros - row.floor_micros)
    left = {g.pk: g.account.limited.balance_micros - g.account.limited.held_micros for g in given}
    drawn: list[tuple[Account, int]] = []
    for part in usage:
        due = part.gross_micros
        for grant in given:
            start_s, end_s = grant_windows.window_s(grant)
            if start_s <= part.start_s and (end_s is None or part.start_s < end_s):
                taken = min(due, left[grant.pk])
                left[grant.pk] -= taken
                due -= taken
                drawn.append((grant.account, taken))
        drawn.append((payer, min(due, wallet)))
        drawn.append((overrun(payer, at=at), max(0, due - wallet)))
        wallet -= min(due, wallet)
    return [(account, micros) for account, micros in drawn if micros]


def overrun(payer: Account, *, at: datetime) -> Account:
    return ledger.account(kind=AccountKind.OVERRUN_EXPENSE, owner=payer.owner, currency=payer.currency, at=at)


def clearing(currency: str, *, at: datetime) -> Account:
    return ledger.account(kind=AccountKind.USAGE_CLEARING, currency=currency, at=at)


def _payers_side(payer: Account, usage: Sequence[Usage], *, at: datetime) -> list[ledger.Leg]:
    through = clearing(payer.currency, at=at)
    charged = [part for part in usage if part.gross_micros > 0]
    back = -sum(part.gross_micros for part in usage if part.gross_micros < 0)
    legs = [leg for account, micros in (draw(payer, charged, at=at) if charged else []) for leg in
            ledger.flow(account, through, micros)]  # fmt: skip
    if back:
        start_s, end_s = min(part.start_s for part in usage), max(part.end_s for part in usage)
        for account, micros in _give_back(payer, back, start_s=start_s, end_s=end_s, at=at):
            legs += ledger.flow(through, account, micros)
    return legs


def _give_back(payer: Account, amount: int, *, start_s: int, end_s: int, at: datetime) -> list[tuple[Account, int]]:
    """Return where money goes back to, as it came: the platform's overrun first, then grants, then the wallet.

    Credit that goes back to an expired grant is taken to breakage with the next expiry.
    """
    carried = overrun(payer, at=at)
    sinks = [(carried, -ledger.balance_micros(carried))]
    sinks += [(g.account, _drawn(g.account)) for g in grant_windows.of_wallet(payer, start_s=start_s, end_s=end_s)]
    returned = []
    for account, limit in sinks:
        part = min(amount, limit)
        amount -= part
        returned.append((account, part))
    return [*returned, (payer, amount)]


def _drawn(grant_account: Account) -> int:
    """Return how much usage a grant has paid for and not got back."""
    debits = grant_account.debits.filter(journal__kind="usage").values_list("amount_micros", flat=True)
    credits = grant_account.credits.filter(journal__kind="usage").values_list("amount_micros", flat=True)
    return sum(debits) - sum(credits)


def _payees_side(meter: Meter, before: int, after: int, *, at: datetime) -> list[ledger.Leg]:
    shared = parts(meter, after).minus(parts(meter, before))
    currency = meter.payer.currency
    through = clearing(currency, at=at)
    fee = ledger.account(kind=AccountKind.COMMISSION, currency=currency, at=at)
    tax = ledger.account(kind=AccountKind.TAX_PAYABLE, currency=currency, part="commission", at=at)
    return (
        ledger.flow(through, meter.payee, shared.host)
        + ledger.flow(through, fee, shared.fee)
        + ledger.flow(through, tax, shared.tax)
    )


def parts(meter: Meter, gross_micros: int) -> pricing.Parts:
    return pricing.parts(
        gross=gross_micros,
        commission_bp=meter.commission_bp,
        tax_on_commission_bp=meter.tax_on_commission_bp,
    )
