"""Doors of tenants to their money: wallet, top-ups, vouchers, entries, statements, invoices, budgets, earnings."""

from datetime import timedelta
from hashlib import sha256
from typing import ClassVar

from django.conf import settings
from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from apikit import pagination, strict_query
from apikit.errors import DomainError, InvalidInput
from apikit.money import Money
from apikit.strict_fields import Choice, Integer, ListOf, MoneyField, Name, StrictSerializer, Text, fault
from billing import (
    budgets,
    currencies,
    documents,
    entries,
    payment_providers,
    payments,
    payouts,
    rendering,
    statements,
    vouchers,
    wallets,
)  # fmt: skip
from billing.models import Budget, Invoice, Payment, Payout
from billing.models.terms import BudgetAction
from tenants.access import OrganizationView


class NoPaymentProvider(DomainError):
    slug = "no-payment-provider"
    title = "This installation takes payments by transfer only"


class TopUpBody(StrictSerializer):
    amount = MoneyField()
    provider = Text(max_length=20, required=False)


class VoucherBody(StrictSerializer):
    code = Text(max_length=64)


class BudgetBody(StrictSerializer):
    name = Name()
    amount = MoneyField()
    label = Text(max_length=130, required=False)  # type: ignore[assignment]
    thresholds_bp = ListOf(child=Integer(min_value=1, max_value=20_000), min_length=1, max_length=10, required=False)
    action = Choice(choices=BudgetAction.values, required=False)


class BudgetChange(StrictSerializer):
    name = Name(required=False)
    amount = MoneyField(required=False)
    thresholds_bp = ListOf(child=Integer(min_value=1, max_value=20_000), min_length=1, max_length=10, required=False)
    action = Choice(choices=BudgetAction.values, required=False)


class PayoutBody(StrictSerializer):
    amount = MoneyField()


class Wallet(OrganizationView):
    """The organization's money, one balance per currency."""

    policy: ClassVar = {"get": "billing:read"}

    def get(self, request: Request) -> Response:
        owner = self.organization.pk
        codes = sorted({self.organization.currency, *entries.currencies_of(owner=owner)} & set(currencies.CURRENCIES))
        found = [wallets.balance(owner=owner, currency=code, at=self.at) for code in codes]
        return Response({"balances": [rendering.wallet(balance) for balance in found]})


class TopUpCollection(OrganizationView):
    policy: ClassVar = {"get": "billing:read", "post": "billing:write"}
    query: ClassVar = {"get": pagination.PARAMETERS}
    shows_secret: ClassVar = True
    client_secret: str | None = None

    def get(self, request: Request) -> Response:
        rows = self.mine(Payment, owner="wallet__owner").select_related("wallet")
        return self.page(rows, rendering.payment)

    def check_outside(self) -> None:
        """Store what is asked for, then open it with the provider: before, and not within, the answer's transaction."""
        if self.request.method != "POST" or self.dry_run:
            return
        payment = self._begin()
        adapter = payment_providers.configured().get(payment.provider)
        if adapter is not None:
            self.client_secret = payments.open_at(payment=payment, provider=adapter, at=self.at).client_secret

    def post(self, request: Request) -> Response:
        """Begin a payment. Its payer confirms it with `client_secret`; the provider's word credits the wallet."""
        payment = self._begin()
        shown = {**rendering.payment(payment), "client_secret": self.client_secret}
        return self.created(shown, version=1, location=f"/wallet/top-ups/{payment.public_id}")

    def _begin(self) -> Payment:
        asked = self.read(TopUpBody)
        money = asked["amount"]
        offered = settings.PAYMENT_PROVIDERS
        provider = asked.get("provider", offered[0] if offered else "")
        if provider not in offered:
            raise NoPaymentProvider("An operator credits what you transfer.", providers=list(offered))
        sent = self.request.headers.get("Idempotency-Key", "")  # of up to 255 characters, each of which counts
        return payments.begin(
            owner=self.organization.pk,
            currency=money.currency,
            amount_minor=_whole_minor(money),
            provider=provider,
            key=f"{self.organization.pk}:{sha256(sent.encode()).hexdigest()[:60]}",
            at=self.at,
        )


class TopUpItem(OrganizationView):
    policy: ClassVar = {"get": "billing:read"}

    def get(self, request: Request, id: str) -> Response:
        rows = self.mine(Payment, owner="wallet__owner").select_related("wallet")
        return Response(rendering.payment(self.found(rows, "payment", id)))


class VoucherCollection(OrganizationView):
    policy: ClassVar = {"post": "billing:write"}

    def post(self, request: Request) -> Response:
        """Redeem a code; the answer is the balance that it is in."""
        code = self.read(VoucherBody)["code"]
        grant = vouchers.redeem(code=code, owner=self.organization.pk, by=self.principal.actor, at=self.at)
        found = wallets.balance(owner=self.organization.pk, currency=grant.account.currency, at=self.at)
        return Response(rendering.wallet(found), status=200 if self.dry_run else 201)


class LedgerEntryCollection(OrganizationView):
    """Every transfer that touched the organization's accounts, newest first; gains above zero.

    since, until: those effective in [since, until).
    """

    policy: ClassVar = {"get": "billing:read"}
    query: ClassVar = {
        "get": {**pagination.PARAMETERS, "since": strict_query.instant, "until": strict_query.instant}
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        owner, since, until = self.organization.pk, self.parameters.get("since"), self.parameters.get("until")
        if since is not None and until is not None and until <= since:
            detail = {"parameter": "until", "code": "out_of_range", "detail": "It lies after `since`."}
            raise InvalidInput("The range is empty.", errors=[detail])
        rows = entries.of_owner(owner=owner, since=since, until=until)
        return self.page(rows, lambda transfer: rendering.entry(transfer, owner=owner))


class StatementCollection(OrganizationView):
    """The statement of one month in the organization's time zone, one per currency."""

    policy: ClassVar = {"get": "billing:read"}
    query: ClassVar = {"get": {"year": strict_query.integer(2000, 9000), "month": strict_query.integer(1, 12)}}

    def get(self, request: Request) -> Response:
        found = statements.month(
            owner=self.organization.pk,
            year=self.parameters.get("year", self.at.year),
            month=self.parameters.get("month", self.at.month),
            time_zone=self.organization.time_zone,
            at=self.at,
        )
        return Response({"items": [rendering.month(statement) for statement in found]})


class InvoiceCollection(OrganizationView):
    policy: ClassVar = {"get": "billing:read"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(entries.issued_invoices(owner=self.organization.pk), rendering.invoice)


class InvoiceItem(OrganizationView):
    """One issued invoice: JSON, or a document to print (`.html`, `.pdf`) or to reckon with (`.csv`)."""

    policy: ClassVar = {"get": "billing:read"}

    def get(self, request: Request, id: str, form: str = "json") -> Response | HttpResponse:
        found: Invoice = self.found(entries.issued_invoices(owner=self.organization.pk), "invoice", id)
        if form == "html":
            return HttpResponse(documents.as_html(found))
        if form == "pdf":
            return HttpResponse(documents.as_pdf(found), content_type="application/pdf")
        if form == "csv":
            name = f'attachment; filename="{found.full_number}.csv"'
            return HttpResponse(documents.as_csv(found), content_type="text/csv", headers={"Content-Disposition": name})
        return Response(rendering.invoice(found))


class BudgetCollection(OrganizationView):
    policy: ClassVar = {"get": "billing:read", "post": "billing:write"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(self.mine(Budget, owner="owner"), rendering.budget)

    def post(self, request: Request) -> Response:
        asked = self.read(BudgetBody)
        budget = budgets.create(
            owner=self.organization.pk,
            currency=asked["amount"].currency,
            amount_micros=asked["amount"].amount_micros,
            name=asked["name"],
            label=asked.get("label", ""),
            thresholds_bp=asked.get("thresholds_bp", budgets.THRESHOLDS_BP),
            action=BudgetAction(asked.get("action", BudgetAction.NOTIFY)),
            time_zone=self.organization.time_zone,
            at=self.at,
        )
        return self.created(rendering.budget(budget), version=1, location=f"/budgets/{budget.public_id}")


class BudgetItem(OrganizationView):
    policy: ClassVar = {"get": "billing:read", "patch": "billing:write", "delete": "billing:write"}

    def get(self, request: Request, id: str) -> Response:
        found = self.found(self.mine(Budget, owner="owner"), "budget", id)
        spent = budgets.spent_micros(budget=found, at=self.at)
        rung = [rendering.alarm(alarm, currency=found.currency) for alarm in budgets.rung(budget=found, at=self.at)]
        return self.one({**rendering.budget(found), "spent_micros": spent, "alarms": rung}, version=found.version)

    def patch(self, request: Request, id: str) -> Response:
        asked = self.read(BudgetChange)
        found = self.found(self.mine(Budget, owner="owner").select_for_update(no_key=True), "budget", id)
        self.check_version(found.version, required=True)
        money = asked.get("amount")
        changed = budgets.change(
            budget=found,
            name=asked.get("name"),
            amount=None if money is None else (money.amount_micros, money.currency),
            thresholds_bp=asked.get("thresholds_bp"),
            action=BudgetAction(asked["action"]) if "action" in asked else None,
        )
        return self.one(rendering.budget(changed), version=changed.version)

    def delete(self, request: Request, id: str) -> Response:
        budgets.remove(budget=self.found(self.mine(Budget, owner="owner"), "budget", id))
        return Response(status=204)


class EarningsCollection(OrganizationView):
    """What the organization's hosts have earned and not been paid out, one figure per currency."""

    policy: ClassVar = {"get": "billing:read"}

    def get(self, request: Request) -> Response:
        found = entries.earnings(owner=self.organization.pk, at=self.at)
        return Response({"items": [rendering.earnings(one) for one in found]})


class PayoutCollection(OrganizationView):
    policy: ClassVar = {"get": "billing:read", "post": "billing:write"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(self.mine(Payout, owner="payee__owner").select_related("payee"), rendering.payout)

    def post(self, request: Request) -> Response:
        """Ask for earnings to be paid out; one payout is on its way at a time, whatever became of it."""
        money = self.read(PayoutBody)["amount"]
        payout = payouts.request(
            owner=self.organization.pk,
            currency=money.currency,
            period=f"{self.at:%Y-%m}",
            provider=settings.PAYOUT_PROVIDER,
            amount_minor=_whole_minor(money),
            minimum_micros=settings.PAYOUT_MINIMUM_MICROS,
            earned_before=self.at - timedelta(seconds=settings.PAYOUT_HOLD_S),
            at=self.at,
        )
        return self.created(rendering.payout(payout), version=1, location="/payouts")


def _whole_minor(money: Money) -> int:
    """Return an amount in the smallest units of its currency. Raises InvalidInput for a finer one, or none."""
    if money.currency not in currencies.CURRENCIES:
        raise fault("bad_value", "No account may have this currency.", pointer="/amount/currency")
    minor, finer = divmod(money.amount_micros, currencies.get(money.currency).micros_per_minor)
    if finer or minor < 1:
        raise fault("bad_decimal", "An amount in whole smallest units is expected.", pointer="/amount/amount")
    return minor
