"""How the doors show money: amounts as decimal text with a currency, instants in UTC."""

from typing import Any
from uuid import UUID

from apikit.instants import instant, instant_or_none
from billing import costs, documents, entries, pricing, statements, wallets
from billing.models import Budget, BudgetAlarm, Invoice, Payment, Payout, PriceVersion, Transfer
from billing.models.meters import Use


def wallet(found: wallets.Balance) -> dict[str, Any]:
    def money(micros: int) -> dict[str, str]:
        return pricing.money(micros, found.currency)

    return {
        "currency": found.currency,
        "balance": money(found.balance_micros),
        "held": money(found.held_micros),
        "accrued": money(found.accrued_micros),
        "available": money(found.available_micros),
        "credit_line": money(found.credit_micros),
        "credits": money(found.grants_micros),
        "owed": money(found.owed_micros),
        "burn": {**money(found.burn_micros_per_hour), "per": "hour"},
        "exhausts_at": instant_or_none(found.exhausts_at),
    }


def entry(transfer: Transfer, *, owner: UUID) -> dict[str, Any]:
    mine = transfer.credit if transfer.credit.owner == owner else transfer.debit
    return {
        "id": transfer.pk,
        "kind": transfer.journal.kind,
        "account": mine.kind,
        "amount": pricing.money(entries.signed_micros(transfer, owner=owner), transfer.currency),
        "effective_at": instant(transfer.journal.effective_at),
        "posted_at": instant(transfer.journal.posted_at),
        "memo": transfer.journal.memo or None,
    }


def price(version: PriceVersion) -> dict[str, Any]:
    series = version.series
    return {
        "sku": series.sku,
        "region": series.region,
        "tier": series.tier,
        "term": series.term,
        "use": series.use,
        "notice_s": series.notice_s,
        "price": {**pricing.money(version.price_micros_per_hour, series.currency), "per": version.unit},
        "minimum_s": version.minimum_s,
        "free_if_interrupted_s": version.free_if_interrupted_s,
        "from": instant(version.during.lower),
        "to": instant_or_none(version.during.upper),
        "cause": version.cause,
        "published_at": instant(version.published_at),
        "version": version.pk,
    }


def line(found: costs.Line, currency: str) -> dict[str, Any]:
    return {
        "member": found.member,
        "use": found.use,
        "what": found.what,
        "price": {
            **pricing.money(found.price_micros_per_hour, currency),
            "per": "gib_hour" if found.use == Use.STORAGE else "gpu_hour",
        },
        "quantity": found.quantity,
        "from": instant(found.start),
        "to": instant_or_none(found.end),
        "seconds": found.seconds,
        "amount": pricing.money(found.micros, currency),
    }


def month(found: statements.MonthStatement) -> dict[str, Any]:
    return {
        "currency": found.currency,
        "from": instant(found.start),
        "to": instant(found.end),
        "opening": pricing.money(found.opening_micros, found.currency),
        "paid_in": pricing.money(found.paid_in_micros, found.currency),
        "charged": pricing.money(found.charged_micros, found.currency),
        "closing": pricing.money(found.closing_micros, found.currency),
        "references": [
            {
                "reference": part.reference,
                "amount": pricing.money(part.micros, found.currency),
                "lines": [line(one, found.currency) for one in part.lines],
            }
            for part in found.parts
        ],
    }


def invoice(found: Invoice) -> dict[str, Any]:
    return {
        "id": found.public_id,
        "number": found.full_number,
        "state": found.state,
        "currency": found.currency,
        "from": instant(found.period.lower),
        "to": instant(found.period.upper),
        "tax": documents.minor(found.tax_minor, found.currency),
        "due": documents.minor(found.due_minor, found.currency),
        "issued_at": instant_or_none(found.issued_at),
        "actions": [],
    }


def payment(found: Payment) -> dict[str, Any]:
    return {
        "id": found.public_id,
        "state": found.state,
        "provider": found.provider,
        "amount": documents.minor(found.amount_minor, found.wallet.currency),
        "currency": found.wallet.currency,
        "created_at": instant(found.created_at),
        "settled_at": instant_or_none(found.settled_at),
        "client_secret": None,  # shown once, to whom began it
    }


def payout(found: Payout) -> dict[str, Any]:
    return {
        "id": found.public_id,
        "state": found.state,
        "period": found.period,
        "amount": documents.minor(found.amount_minor, found.payee.currency),
        "currency": found.payee.currency,
        "created_at": instant(found.created_at),
        "settled_at": instant_or_none(found.settled_at),
    }


def budget(found: Budget) -> dict[str, Any]:
    return {
        "id": found.public_id,
        "name": found.name,
        "label": found.label or None,
        "amount": pricing.money(found.amount_micros, found.currency),
        "thresholds_bp": found.thresholds_bp,
        "action": found.action,
        "created_at": instant(found.created_at),
    }


def alarm(found: BudgetAlarm, *, currency: str) -> dict[str, Any]:
    return {
        "threshold_bp": found.threshold_bp,
        "spent": pricing.money(found.spent_micros, currency),
        "at": instant(found.at),
    }


def earnings(found: entries.Earnings) -> dict[str, Any]:
    return {
        "currency": found.currency,
        "balance": pricing.money(found.balance_micros, found.currency),
        "in_transit": pricing.money(found.in_transit_micros, found.currency),
    }
