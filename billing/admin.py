"""The books in the operators' admin: everything to look at, nothing to edit. Acts go through the domain."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminSplitDateTime
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern

from apikit import clock
from apikit.errors import DomainError
from billing import admin_acts, models, operator_acts, price_list, pricing


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Every field shown, none changed: what is written in the books stays."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


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
        return [*admin_acts.urls(self.admin_site), *super().get_urls()]


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
_register(
    models.Dispute,
    ["ref", "payment", "amount_minor", "taken_micros", "owed_micros", "state", "reason", "opened_at", "closed_at"],
    filters=("state", "reason"), search=("ref", "payment__provider_ref", "=payment__wallet__owner"),
    related=["payment"],
)  # fmt: skip


@admin.register(models.Payout)
class PayoutAdmin(ReadOnly):
    """Payouts by transfer: an operator makes it, and writes down what became of it."""

    list_display = ["key", "payee", "period", "amount_minor", "state", "created_at"]
    list_filter = ["state", "provider"]
    search_fields = ["key", "provider_ref"]
    list_select_related = ["payee"]
    ordering = ["-pk"]
    actions = ["mark_paid", "mark_refused"]

    @admin.action(description="The transfer was made", permissions=["record"])
    def mark_paid(self, request: HttpRequest, rows: QuerySet[models.Payout]) -> None:
        self._record(request, rows, paid=True)

    @admin.action(description="The transfer could not be made: free the money", permissions=["record"])
    def mark_refused(self, request: HttpRequest, rows: QuerySet[models.Payout]) -> None:
        self._record(request, rows, paid=False)

    def has_record_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("billing.add_journal"))

    def _record(self, request: HttpRequest, rows: QuerySet[models.Payout], *, paid: bool) -> None:
        for pk in rows.values_list("pk", flat=True):
            done = operator_acts.record_payout(
                payout_id=pk, paid=paid, reference="transfer", operator=f"operator:{request.user.pk}", at=clock.now()
            )
            messages.info(request, f"{done.key} is {done.state}.")


_register(models.Invoice, ["full_number", "owner", "currency", "period", "state", "due_minor", "issued_at"],
          filters=("state", "currency"), search=("=owner", "=number"))  # fmt: skip
_register(models.CreditNote, ["id", "invoice", "n", "net_minor", "tax_minor", "reason", "at"])
_register(models.Contract, ["reference", "payer", "payee", "price_micros", "anchor", "renews", "ended_at"],
          search=("reference",))  # fmt: skip
_register(models.ContractPeriod, ["contract", "k", "start_s", "end_s", "price_micros", "earned_micros", "closed"])
_register(models.Budget, ["name", "owner", "currency", "amount_micros", "label", "action"], search=("=owner", "name"))
_register(models.CommissionRate, ["payee", "month", "bp", "earned_micros"], search=("=payee__owner",))
_register(models.BudgetAlarm, ["budget", "period", "threshold_bp", "spent_micros", "at"])
_register(models.RunningDryWarning, ["wallet", "lead_s", "exhaust_at", "at"])
_register(models.InboxEvent, ["provider", "event", "kind", "received_at"], search=("event",))
