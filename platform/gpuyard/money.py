"""The wallet and the books of an organization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuyard.calls import Call
from gpuyard.json_object import Object
from gpuyard.methods import Resource, listing, operation
from gpuyard.objects import Balance, Invoice, LedgerEntry, Wallet


class Wallets[M](Resource[M]):
    @operation("wallet_get", "GET", "/wallet")
    def get(self) -> Call[Wallet]:
        """Return a balance per currency: what is there, held, running up, and when it would be used up."""
        return Call(Wallet)

    @listing("wallet_top_up_list", "/wallet/top-ups")
    def top_ups(self, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, query={"limit": limit})

    @operation("wallet_top_up_create", "POST", "/wallet/top-ups")
    def top_up(self, *, amount: Mapping[str, str], provider: str | None = None) -> Call[Object]:
        """Begin a payment of {"amount", "currency"}; the wallet has it once the provider says so."""
        return Call(Object, body={"amount": amount, "provider": provider})

    @operation("wallet_top_up_get", "GET", "/wallet/top-ups/{id}")
    def top_up_status(self, top_up_id: str, /) -> Call[Object]:
        return Call(Object, (top_up_id,))

    @operation("wallet_voucher_create", "POST", "/wallet/vouchers")
    def redeem_voucher(self, *, code: str) -> Call[Balance]:
        return Call(Balance, body={"code": code})


class LedgerEntries[M](Resource[M]):
    @listing("ledger_entry_list", "/ledger-entries")
    def list(self, /, *, limit: int | None = None, **filters: Any) -> Call[LedgerEntry]:
        return Call(LedgerEntry, query={"limit": limit, **filters})


class Statements[M](Resource[M]):
    @listing("statement_list", "/statements")
    def list(self, *, year: int | None = None, month: int | None = None) -> Call[Object]:
        """Iterate over the statements of a month (this one if none is named), one per currency, lease by lease."""
        return Call(Object, query={"year": year, "month": month})


class Invoices[M](Resource[M]):
    @listing("invoice_list", "/invoices")
    def list(self, *, limit: int | None = None) -> Call[Invoice]:
        return Call(Invoice, query={"limit": limit})

    @operation("invoice_get", "GET", "/invoices/{id}")
    def get(self, invoice_id: str, /) -> Call[Invoice]:
        return Call(Invoice, (invoice_id,))

    @operation("invoice_html", "GET", "/invoices/{id}.html")
    def html(self, invoice_id: str, /) -> Call[str]:
        return Call(str, (invoice_id,), headers={"Accept": "text/html"})

    @operation("invoice_csv", "GET", "/invoices/{id}.csv")
    def csv(self, invoice_id: str, /) -> Call[str]:
        return Call(str, (invoice_id,), headers={"Accept": "text/csv"})

    @operation("invoice_pdf", "GET", "/invoices/{id}.pdf")
    def pdf(self, invoice_id: str, /) -> Call[bytes]:
        """Return the printed invoice, where the server has the `pdf` extra (406 where not)."""
        return Call(bytes, (invoice_id,), headers={"Accept": "application/pdf"})


class Budgets[M](Resource[M]):
    @listing("budget_list", "/budgets")
    def list(self, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, query={"limit": limit})

    @operation("budget_create", "POST", "/budgets")
    def create(self, /, **fields: Any) -> Call[Object]:
        return Call(Object, body=fields)

    @operation("budget_get", "GET", "/budgets/{id}")
    def get(self, budget_id: str, /) -> Call[Object]:
        return Call(Object, (budget_id,))

    @operation("budget_update", "PATCH", "/budgets/{id}")
    def update(self, budget_id: str, /, *, if_match: str, **changes: Any) -> Call[Object]:
        return Call(Object, (budget_id,), body=changes, headers={"If-Match": if_match})

    @operation("budget_delete", "DELETE", "/budgets/{id}")
    def delete(self, budget_id: str, /) -> Call[Object]:
        return Call(Object, (budget_id,))


class Earnings[M](Resource[M]):
    @listing("earning_list", "/earnings")
    def list(self, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, query={"limit": limit})


class Payouts[M](Resource[M]):
    @listing("payout_list", "/payouts")
    def list(self, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, query={"limit": limit})

    @operation("payout_create", "POST", "/payouts")
    def create(self, /, *, amount: Mapping[str, str], **fields: Any) -> Call[Object]:
        return Call(Object, body={"amount": amount, **fields})
