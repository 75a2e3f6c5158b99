"""Organizations, members and API keys in the operators' admin."""

from typing import Any

from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest

from apikit import clock
from audit import log
from tenants import keys
from tenants.group_models import Group, GroupMember
from tenants.models import ApiKey, Membership, Organization, Secret


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Membership
    extra = 0
    fields = ["user", "role", "created_at"]
    readonly_fields = ["created_at"]
    autocomplete_fields = ["user"]


class OrganizationAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Pages of organizations; registered by the scheduler, whose acts they offer."""

    list_display = [
        "name", "slug", "currency", "gpu_quota", "queue_weight", "member_count", "live_keys", "banned_at",
        "created_at", "public_id",
    ]  # fmt: skip
    list_filter = [("banned_at", admin.EmptyFieldListFilter), "currency", "created_at"]
    search_fields = ["name", "slug", "=id", "memberships__user__email"]
    readonly_fields = ["public_id", "banned_at", "banned_reason", "version", "created_at"]
    inlines = [MembershipInline]
    date_hierarchy = "created_at"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        live = Q(api_keys__revoked_at__isnull=True)
        rows: QuerySet[Organization] = super().get_queryset(request)
        return rows.annotate(
            members=Count("memberships", distinct=True), keys=Count("api_keys", filter=live, distinct=True)
        )

    @admin.display(description="members", ordering="members")
    def member_count(self, organization: Any) -> int:
        return int(organization.members)

    @admin.display(description="live keys", ordering="keys")
    def live_keys(self, organization: Any) -> int:
        return int(organization.keys)

    def save_model(self, request: HttpRequest, obj: Organization, form: Any, change: bool) -> None:
        """Save and record what an operator changed."""
        before = {name: _plain(form.initial.get(name)) for name in form.changed_data}
        after = {name: _plain(form.cleaned_data[name]) for name in form.changed_data}
        obj.version += 1 if change else 0
        super().save_model(request, obj, form, change)
        log.record(
            actor=f"operator:{request.user.pk}",
            organization=obj.pk,
            action="organization.changed" if change else "organization.founded",
            target=obj.public_id,
            before=before if change else None,
            after=after,
            at=clock.now(),
        )

    def has_delete_permission(self, request: HttpRequest, obj: Organization | None = None) -> bool:
        return False


@admin.register(Membership)
class MembershipAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["user", "organization", "role", "created_at", "public_id"]
    list_filter = ["role", "organization"]
    search_fields = ["user__email", "organization__name", "=id"]
    autocomplete_fields = ["user", "organization"]
    readonly_fields = ["version", "created_at"]
    list_select_related = ["user", "organization"]


class GroupMemberInline(admin.TabularInline):  # type: ignore[type-arg]
    model = GroupMember
    extra = 0
    fields = ["membership", "created_at"]
    readonly_fields = [*fields]  # type: ignore[list-item]

    def has_add_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return False


@admin.register(Group)
class GroupAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Organizations look after their groups themselves."""

    list_display = ["name", "role", "organization", "created_at", "public_id"]
    list_filter = ["role", "organization"]
    search_fields = ["name", "organization__name", "=id"]
    list_select_related = ["organization"]
    fields = ["public_id", "organization", "name", "role", "version", "created_at"]
    readonly_fields = [*fields]  # type: ignore[list-item]
    inlines = [GroupMemberInline]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return False


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Keys are made and rotated by their owners; an operator can only see and revoke them."""

    list_display = ["public", "name", "organization", "created_by", "expires_at", "revoked_at", "last_used_at"]
    list_filter = ["revoked_at", "expires_at", "organization"]
    search_fields = ["=public", "name", "organization__name", "created_by__email", "=id"]
    list_select_related = ["organization", "created_by"]
    fields = [
        "public_id", "organization", "name", "public", "scopes", "created_by", "created_at", "expires_at",
        "revoked_at", "last_used_at", "replaced_by",
    ]  # fmt: skip
    readonly_fields = [*fields]  # type: ignore[list-item]
    actions = ["revoke_keys"]
    date_hierarchy = "created_at"

    @admin.action(description="Revoke the selected keys now", permissions=["change"])
    def revoke_keys(self, request: HttpRequest, chosen: QuerySet[ApiKey]) -> None:
        at = clock.now()
        for key in chosen.order_by("pk"):
            keys.revoke(key=key, at=at, actor=f"operator:{request.user.pk}")
        self.message_user(request, f"{chosen.count()} keys are revoked.")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return False


@admin.register(Secret)
class SecretAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Names only: an operator has no business with a value."""

    list_display = ["name", "organization", "version", "created_at", "replaced_at"]
    list_filter = ["organization"]
    search_fields = ["name", "organization__name"]
    list_select_related = ["organization"]
    fields = ["public_id", "organization", "name", "version", "created_at", "replaced_at"]
    readonly_fields = [*fields]  # type: ignore[list-item]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Secret | None = None) -> bool:
        return False


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
