"""People in the operators' admin, and what they show beside a password."""

import allauth.account.admin
import allauth.mfa.admin  # noqa: F401 -- both register what is taken off again below
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts.models import User
from apikit import clock
from audit import log

admin.site.unregister(EmailAddress)  # a person's address is the one that his organization named him by
admin.site.unregister(Authenticator)


@admin.register(User)
class PersonAdmin(UserAdmin):  # type: ignore[type-arg]
    list_display = ["email", "first_name", "last_name", "is_staff", "is_active", "last_login", "public_id"]
    list_filter = ["is_staff", "is_superuser", "is_active", "date_joined"]
    search_fields = ["email", "username", "first_name", "last_name", "=id"]
    ordering = ["email"]
    add_fieldsets = (
        (None, {"classes": ("wide",), "fields": ("username", "email", "usable_password", "password1", "password2")}),
    )


@admin.register(Authenticator)
class AuthenticatorAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Who has lost his telephone is let in again by deleting what was on it; nobody adds one for another."""

    list_display = ["user", "type", "created_at", "last_used_at"]
    list_filter = ["type", "created_at"]
    search_fields = ["user__email", "user__username"]
    list_select_related = ["user"]
    fields = ["user", "type", "created_at", "last_used_at"]
    readonly_fields = [*fields]  # type: ignore[list-item]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def delete_model(self, request: HttpRequest, obj: Authenticator) -> None:
        self._record(request, obj)
        super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Authenticator]) -> None:
        for row in queryset.select_related("user"):
            self._record(request, row)
        super().delete_queryset(request, queryset)

    def _record(self, request: HttpRequest, row: Authenticator) -> None:
        log.record(
            actor=f"operator:{request.user.pk}", organization=None, action="person.second_factor_removed",
            target=row.user.public_id, before={"type": row.type}, at=clock.now(),
        )  # fmt: skip
