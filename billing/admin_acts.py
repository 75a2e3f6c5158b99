"""Forms by which operators move money: each act has a reason, is done once per form, and stands in the audit log."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from apikit import clock
from apikit.errors import DomainError
from audit import ids
from billing import currencies, operator_acts, pricing
from billing.models import Payment
from tenants import organizations


class AmountForm(forms.Form):
    currency = forms.ChoiceField(choices=[(code, code) for code in sorted(currencies.CURRENCIES)])
    amount = forms.CharField(max_length=20, help_text="As a bank writes it: 12.34")
    reason = forms.CharField(max_length=200)
    key = forms.CharField(widget=forms.HiddenInput, max_length=64)  # one form acts once, however often it is sent
    least_micros = 1

    def clean(self) -> dict[str, Any]:
        asked: dict[str, Any] = super().clean() or self.cleaned_data
        if "amount" in asked and "currency" in asked:
            exponent = currencies.get(asked["currency"]).minor_exponent
            try:
                asked["amount_micros"] = pricing.parse_amount(asked["amount"], minor_exponent=exponent)
            except ValueError as error:
                raise forms.ValidationError(str(error)) from error
            if not self.least_micros <= asked["amount_micros"] <= pricing.INT64_MAX:
                raise forms.ValidationError("This is no amount that an account can hold.")
        return asked


class CreditForm(AmountForm):
    organization = forms.ModelChoiceField(queryset=organizations.by_name())
    field_order = ("organization",)


class CreditLineForm(CreditForm):
    least_micros = 0


class GrantForm(CreditForm):
    valid_days = forms.IntegerField(min_value=1, max_value=3650, required=False, help_text="Empty: without an end.")


class VoucherForm(AmountForm):
    valid_days = forms.IntegerField(min_value=1, max_value=3650, required=False, help_text="To redeem it within.")


class RefundForm(AmountForm):
    payment = forms.CharField(max_length=60, help_text="Its id: payment_...")
    field_order = ("payment",)

    def clean(self) -> dict[str, Any]:
        asked = super().clean()
        payment_id: UUID | None = ids.decode("payment", asked.get("payment", ""))
        asked["found"] = Payment.objects.filter(pk=payment_id).select_related("wallet").first() if payment_id else None
        if asked["found"] is None or asked["found"].wallet.currency != asked.get("currency"):
            raise forms.ValidationError("There is no such payment in this currency.")
        return asked


def _refund(asked: dict[str, Any], operator: str, at: datetime) -> str:
    paid: Payment = asked["found"]
    operator_acts.refund(
        payment=paid.pk, amount_minor=asked["amount_micros"] // currencies.get(asked["currency"]).micros_per_minor,
        key=asked["key"], operator=operator, reason=asked["reason"], at=at,
    )  # fmt: skip
    return f"{asked['amount']} {asked['currency']} go back through {paid.provider}."


def _credit(asked: dict[str, Any], operator: str, at: datetime) -> str:
    operator_acts.credit(
        owner=asked["organization"].pk, currency=asked["currency"], amount_micros=asked["amount_micros"],
        key=asked["key"], operator=operator, reason=asked["reason"], at=at,
    )  # fmt: skip
    return f"{asked['amount']} {asked['currency']} credited to {asked['organization']}."


def _grant(asked: dict[str, Any], operator: str, at: datetime) -> str:
    operator_acts.give_credit(
        owner=asked["organization"].pk, currency=asked["currency"], amount_micros=asked["amount_micros"],
        key=asked["key"], expires_at=_until(asked, at), operator=operator, reason=asked["reason"], at=at,
    )  # fmt: skip
    return f"{asked['amount']} {asked['currency']} of credit given to {asked['organization']}."


def _credit_line(asked: dict[str, Any], operator: str, at: datetime) -> str:
    operator_acts.set_credit_line(
        owner=asked["organization"].pk, currency=asked["currency"], credit_micros=asked["amount_micros"],
        operator=operator, reason=asked["reason"], at=at,
    )  # fmt: skip
    return f"{asked['organization']} may go down to -{asked['amount']} {asked['currency']}."


def _voucher(asked: dict[str, Any], operator: str, at: datetime) -> str:
    code = operator_acts.issue_voucher(
        currency=asked["currency"], amount_micros=asked["amount_micros"], valid_until=_until(asked, at),
        operator=operator, reason=asked["reason"], at=at,
    )  # fmt: skip
    return f"The code, shown this once: {code}"


def _until(asked: dict[str, Any], at: datetime) -> datetime | None:
    return at + timedelta(days=asked["valid_days"]) if asked.get("valid_days") else None


@dataclass(frozen=True)
class Act:
    title: str
    explanation: str
    form: type[AmountForm]
    do: Callable[[dict[str, Any], str, datetime], str]


ACTS = {
    "credit": Act(
        "Credit a tenant", "Money that came in outside of the platform, or a goodwill credit. It is posted at once.",
        CreditForm, _credit,
    ),
    "grant": Act(
        "Give promotional credit", "It is drawn before the wallet, and lapses. The platform carries it.",
        GrantForm, _grant,
    ),
    "credit_line": Act(
        "Set a credit line", "How far below zero a wallet may go. It is not cut under what is in use.",
        CreditLineForm, _credit_line,
    ),
    "refund": Act(
        "Refund a payment", "Out of the wallet, back the way it came: never more than was paid, or than is left.",
        RefundForm, _refund,
    ),
    "voucher": Act("Issue a voucher", "A code that becomes promotional credit, once.", VoucherForm, _voucher),
}  # fmt: skip


def urls(site: AdminSite) -> list[URLPattern]:
    """Return one page per act, below the accounts of the admin."""
    return [path(f"{name}/", site.admin_view(_page(site, act)), name=f"billing_account_{name}")
            for name, act in ACTS.items()]  # fmt: skip


def _page(site: AdminSite, act: Act) -> Callable[[HttpRequest], HttpResponse]:
    def page(request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm("billing.add_journal"):
            raise PermissionDenied
        form = act.form(request.POST if request.method == "POST" else None, initial={"key": uuid4().hex})
        if form.is_valid():
            try:
                messages.success(request, act.do(form.cleaned_data, f"operator:{request.user.pk}", clock.now()))
                return HttpResponseRedirect(reverse("admin:billing_account_changelist"))
            except DomainError as refusal:
                form.add_error(None, refusal.detail)
        context = {
            **site.each_context(request), "form": form, "title": act.title, "explanation": act.explanation
        }  # fmt: skip
        return TemplateResponse(request, "admin/billing/credit.html", context)

    return page
