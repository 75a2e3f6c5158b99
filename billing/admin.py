"""The books in the operators' admin: everything to look at, nothing to edit. Acts go through the domain."""

from typing import Any
from uuid import uuid4

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from apikit import clock
from apikit.errors import DomainError
from billing import currencies, models, operator_acts, price_list, pricing
from tenants import organizations


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Every field shown, none changed: what is written in the books stays."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


class CreditForm(forms.Form):
    organization = forms.ModelChoiceField(queryset=organizations.by_name())
    currency = forms.ChoiceField(choices=[(code, code) for code in sorted(currencies.CURRENCIES)])
    amount = forms.CharField(max_length=20, help_text="As a bank writes it: 12.34")
    reason = forms.CharField(max_length=200)
    key = forms.CharField(widget=forms.HiddenInput, max_length=64)  # one form credits once, however often it is sent

    def clean(self) -> dict[str, Any]:
        asked: dict[str, Any] = super().clean() or self.cleaned_data
        if "amount" in asked and "currency" in asked:
            exponent = currencies.get(asked["currency"]).minor_exponent
            try:
                asked["amount_micros"] = pricing.parse_amount(asked["amount"], minor_exponent=exponent)
            except ValueError as error:
                raise forms.ValidationError(str(error)) from error
            if asked["amount_micros"] == 0:
                raise forms.ValidationError("Nothing would be credited.")
        return asked


@admin.register(models.Account)
class AccountAdmin(ReadOnly):
    list_display = ["id", "kind", "owner", "currency", "part", "balance", "held", "exhausts_at"]
    list_filter = ["kind", "currency"]
    search_fields = ["=owner", "part"]
    list_select_related = ["limited"]

    @admin.display(description="balance")
    def balance(self, account: models.Account) -> str:
        return pricing.show(account.limited.balance_micros) if hasattr(account, "limited") else "see transfers"

    @admin.display(description="held")
    def held(self, account: models.Account) -> str:
        return pricing.show(account.limited.held_micros) if hasattr(account, "limited") else ""

    @admin.display(description="runs dry at")
    def exhausts_at(self, account: models.Account) -> str:
        return str(account.limited.exhaust_at or "") if hasattr(account, "limited") else ""

    def get_urls(self) -> list[URLPattern]:
        credit = path("credit/", self.admin_site.admin_view(self.credit_view), name="billing_account_credit")
        return [credit, *super().get_urls()]

    def credit_view(self, request: HttpRequest) -> HttpResponse:
        """Credit a tenant with a reason; the books and the audit log keep both."""
        if not request.user.has_perm("billing.add_journal"):
            raise PermissionDenied
        form = CreditForm(request.POST if request.method == "POST" else None, initial={"key": uuid4().hex})
        if form.is_valid():
            asked = form.cleaned_data
            operator_acts.credit(
                owner=asked["organization"].pk,
                currency=asked["currency"],
                amount_micros=asked["amount_micros"],
                key=asked["key"],
                operator=f"operator:{request.user.pk}",
                reason=asked["reason"],
                at=clock.now(),
            )
            messages.success(request, f"{asked['amount']} {asked['currency']} credited to {asked['organization']}.")
            return HttpResponseRedirect(reverse("admin:billing_account_changelist"))
        context = {
            **self.admin_site.each_context(request),
            "form": form,
            "title": "Credit a tenant",
            "explanation": "Money that came in outside of the platform, or a goodwill credit. It is posted at once.",
        }
        return TemplateResponse(request, "admin/billing/credit.html", context)


@admin.register(models.PriceSeries)
class PriceSeriesAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["sku", "region", "tier", "term", "use", "currency", "notice_s"]
    list_filter = ["region", "tier", "term", "use", "currency"]
    search_fields = ["sku"]

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


class PublishForm(forms.ModelForm):  # type: ignore[type-arg]
    """A new version of a price; editing one is not offered."""

    starts_at = forms.SplitDateTimeField(widget=AdminSplitDateTime)

    class Meta:
        model = models.PriceVersion
        fields = ["series", "price_micros_per_hour", "minimum_s", "free_if_interrupted_s", "unit", "cause"]

    def clean(self) -> dict[str, Any]:
        asked: dict[str, Any] = super().clean() or self.cleaned_data
        if asked.get("starts_at") is not None and asked["starts_at"] < clock.whole_second(clock.now()):
            raise forms.ValidationError("A price begins now or later.")
        return asked


@admin.register(models.PriceVersion)
class PriceVersionAdmin(ReadOnly):
    form = PublishForm
    list_display = ["series", "during", "price_micros_per_hour", "unit", "minimum_s", "cause", "published_at"]
    list_filter = ["series__region", "series__term", "series__use", "series__currency"]
    search_fields = ["series__sku", "cause"]
    list_select_related = ["series"]
    ordering = ["-published_at"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("billing.add_priceversion"))

    def save_model(self, request: HttpRequest, obj: models.PriceVersion, form: Any, change: bool) -> None:
        asked, row = form.cleaned_data, form.cleaned_data["series"]
        fields = ("sku", "region", "tier", "term", "use", "currency", "notice_s")
        published = price_list.publish(
            series=price_list.Series(**{field: getattr(row, field) for field in fields}),
            price_micros_per_hour=asked["price_micros_per_hour"],
            minimum_s=asked["minimum_s"],
            free_if_interrupted_s=asked["free_if_interrupted_s"],
            unit=asked["unit"],
            cause=asked["cause"],
            starts_at=asked["starts_at"],
            at=clock.now(),
        )
        obj.pk, obj.during = published.pk, published.during

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        try:
            return super().add_view(request, form_url, extra_context)
        except DomainError as refusal:
            messages.error(request, refusal.detail)
            return HttpResponseRedirect(request.path)


def _register(
    model: Any, shown: list[str], *, filters: tuple[str, ...] = (), search: tuple[str, ...] = (), related: Any = False
) -> None:
    """Register a table of the books: to look at only."""
    options = {
        "list_display": shown,
        "list_filter": filters,
        "search_fields": search,
        "list_select_related": related,
        "ordering": ["-pk"],
    }
    admin.site.register(model, type(f"{model.__name__}Admin", (ReadOnly,), options))


_register(
    models.Journal, ["key", "kind", "effective_at", "posted_at", "memo", "by"], filters=("kind", "effective_at"),
    search=("key", "memo", "by"),
)  # fmt: skip
_register(
    models.Transfer, ["id", "journal", "debit", "credit", "amount_micros", "currency"],
    filters=("currency", "debit__kind", "credit__kind"), search=("journal__key", "=debit__owner", "=credit__owner"),
    related=["journal", "debit", "credit"],
)  # fmt: skip
_register(
    models.Meter,
    ["id", "reference", "member", "use", "payer", "payee", "commission_bp", "settled_at", "posted_micros", "flagged"],
    filters=("use", "simulated", "flagged", "ended_by"), search=("reference", "=payer__owner", "=payee__owner"),
    related=["payer", "payee"],
)  # fmt: skip
_register(
    models.MeterFact, ["reference", "seq", "member", "lane", "begins", "use", "at_s", "cause", "received_at"],
    filters=("begins", "use"), search=("reference",),
)  # fmt: skip
_register(
    models.Segment, ["id", "meter", "price_version", "quantity", "rate_micros_per_hour", "start_s", "end_s", "settled"],
    filters=("settled",), search=("meter__reference",), related=["meter", "price_version"],
)  # fmt: skip
_register(models.Void, ["id", "meter", "start_s", "end_s", "reason", "applied", "at"], search=("meter__reference",))
_register(models.Adjustment, ["id", "meter", "n", "gross_micros", "cause", "journal"], search=("meter__reference",))
_register(models.BillingRun, ["id", "shard", "during", "gross_micros", "posted_at"], filters=("shard",))
_register(
    models.Hold, ["reference", "account", "amount_micros", "placed_at", "expires_at"], search=("reference",),
    related=["account"],
)  # fmt: skip
_register(models.HoldSettlement, ["hold", "captured_micros", "cause", "at"], filters=("cause",))
_register(models.Grant, ["id", "account", "amount_micros", "priority", "promotional", "effective_at", "expires_at"],
          filters=("promotional",), search=("=account__owner",))  # fmt: skip
_register(models.Voucher, ["id", "currency", "amount_micros", "valid_until", "redeemed_by", "redeemed_at"])
_register(models.Payment, ["id", "wallet", "provider", "amount_minor", "state", "provider_ref", "created_at"],
          filters=("provider", "state"), search=("key", "provider_ref"))  # fmt: skip
_register(models.Refund, ["id", "payment", "n", "amount_minor", "state", "created_at"], filters=("state",))
_register(models.Payout, ["key", "payee", "period", "amount_minor", "state", "created_at"],
          filters=("state", "provider"), search=("key", "provider_ref"))  # fmt: skip
_register(models.Invoice, ["full_number", "owner", "currency", "period", "state", "due_minor", "issued_at"],
          filters=("state", "currency"), search=("=owner", "=number"))  # fmt: skip
_register(models.CreditNote, ["id", "invoice", "n", "net_minor", "tax_minor", "reason", "at"])
_register(models.Contract, ["reference", "payer", "payee", "price_micros", "anchor", "renews", "ended_at"],
          search=("reference",))  # fmt: skip
_register(models.ContractPeriod, ["contract", "k", "start_s", "end_s", "price_micros", "earned_micros", "closed"])
_register(models.Budget, ["name", "owner", "currency", "amount_micros", "label", "action"], search=("=owner", "name"))
_register(models.BudgetAlarm, ["budget", "period", "threshold_bp", "spent_micros", "at"])
_register(models.RunningDryWarning, ["wallet", "lead_s", "exhaust_at", "at"])
_register(models.InboxEvent, ["provider", "event", "kind", "received_at"], search=("event",))
