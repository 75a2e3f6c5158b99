"""The contract in the operators' admin: everything can be looked at; what is written is written by lifecycle."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from billing import pricing, reserves
from leasing import moves
from leasing.models import Allocation, Image, Lease, LeaseEvent, LeaseMember, Quote
from leasing.volume_models import Volume


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that only the domain writes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class Part(admin.TabularInline):  # type: ignore[type-arg]
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class Members(Part):
    model = LeaseMember


class Events(Part):
    model = LeaseEvent
    fields = ["seq", "at", "from_state", "to_state", "reason", "detail"]


class Allocations(Part):
    model = Allocation
    fields = ["device", "rank", "epoch", "mode", "units", "during", "released_at"]


class Stuck(admin.SimpleListFilter):
    """Leases that the converger could not move, time after time; their alarm is open."""

    title = "stuck"
    parameter_name = "stuck"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", f"failed {moves.STUCK_AFTER} looks or more")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(attempts__gte=moves.STUCK_AFTER) if self.value() == "yes" else queryset


class LeaseAdmin(ReadOnly):
    """Pages of leases; registered by the scheduler, whose acts they offer."""

    list_display = [
        "public_id", "organization", "request", "state", "state_since", "term_kind", "hosts", "price", "why",
        "attempts", "simulated",
    ]  # fmt: skip
    list_filter = [
        Stuck,
        "state",
        "term_kind",
        "on_interrupt",
        "ending_reason",
        "currency",
        "simulated",
        "organization",
    ]
    search_fields = ["id", "request", "name", "image", "organization__name"]
    date_hierarchy = "requested_at"
    list_select_related = ["organization"]
    inlines = [Members, Allocations, Events]

    @admin.display(description="price an hour", ordering="price_micros_per_hour")
    def price(self, lease: Lease) -> str:
        micros = lease.price_micros_per_hour
        return "" if micros is None else f"{pricing.show(micros)} {lease.currency}"

    @admin.display(description="hosts")
    def hosts(self, lease: Lease) -> str:
        return ", ".join(member.host.name for member in lease.members.all() if member.epoch == lease.epoch)

    @admin.display(description="why it waits")
    def why(self, lease: Lease) -> str:
        text = str((lease.why_waiting or {}).get("text", ""))
        return text if len(text) <= 60 else text[:59] + "…"  # all of it is on the lease's page

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related("members__host")


@admin.register(LeaseEvent)
class LeaseEventAdmin(ReadOnly):
    list_display = ["at", "lease", "from_state", "to_state", "reason", "detail"]
    list_filter = ["to_state", "reason"]
    search_fields = ["lease__id", "detail"]
    date_hierarchy = "at"
    list_select_related = ["lease"]


@admin.register(LeaseMember)
class LeaseMemberAdmin(ReadOnly):
    list_display = ["lease", "epoch", "rank", "host", "gpu_count", "price_micros_per_hour"]
    search_fields = ["lease__id", "host__name"]
    list_select_related = ["lease", "host"]


@admin.register(Allocation)
class AllocationAdmin(ReadOnly):
    list_display = ["device", "host", "lease", "quote", "rank", "epoch", "mode", "units", "during", "released_at"]
    list_filter = ["mode", ("released_at", admin.EmptyFieldListFilter)]
    search_fields = ["device__uuid", "device__host__name", "lease__id"]
    list_select_related = ["device__host", "lease", "quote"]

    @admin.display(description="host")
    def host(self, allocation: Allocation) -> str:
        return allocation.device.host.name


@admin.register(Volume)
class VolumeAdmin(ReadOnly):
    list_display = [
        "public_id", "name", "organization", "size_gib", "state", "state_since", "host", "lease", "price", "held",
        "destroy_at", "kept_from", "simulated",
    ]  # fmt: skip
    list_filter = ["state", "currency", "region", "simulated", ("kept_from", admin.EmptyFieldListFilter)]
    search_fields = ["id", "name", "organization__name", "host__name", "place"]
    list_select_related = ["organization", "host", "lease"]
    date_hierarchy = "created_at"

    @admin.display(description="price of a GiB and hour", ordering="price_micros_per_hour")
    def price(self, volume: Volume) -> str:
        return f"{pricing.show(volume.price_micros_per_hour)} {volume.currency}"

    @admin.display(description="held for it")
    def held(self, volume: Volume) -> str:
        reserve = reserves.of(volume.public_id)
        return "" if reserve is None else pricing.show(reserve.held_micros)


@admin.register(Quote)
class QuoteAdmin(ReadOnly):
    list_display = ["public_id", "organization", "request", "state", "expires_at", "lease", "price_micros_per_hour"]
    list_filter = ["state", "currency", "simulated"]
    search_fields = ["id", "request", "organization__name"]
    list_select_related = ["organization", "lease"]


@admin.register(Image)
class ImageAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["slug", "name", "reference", "min_cuda", "vendor", "organization", "enabled"]
    list_filter = ["enabled", "vendor", ("organization", admin.EmptyFieldListFilter)]
    search_fields = ["slug", "name", "reference"]
    actions = ["enable", "disable"]

    @admin.action(description="Offer the selected images")
    def enable(self, request: HttpRequest, images: QuerySet[Image]) -> None:
        messages.success(request, f"{images.update(enabled=True)} offered.")

    @admin.action(description="Withdraw the selected images (what runs goes on)")
    def disable(self, request: HttpRequest, images: QuerySet[Image]) -> None:
        messages.success(request, f"{images.update(enabled=False)} withdrawn.")
