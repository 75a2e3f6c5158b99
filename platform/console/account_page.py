"""The first page of a signed-in person: for which organizations he may act, and how he is known to us."""

from typing import cast

from allauth.mfa.adapter import get_adapter
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounts.models import User
from tenants.models import Membership


@require_safe
@never_cache
@login_required
def account(request: HttpRequest) -> HttpResponse:
    person = cast(User, request.user)
    memberships = Membership.objects.filter(user=person).select_related("organization").order_by("pk")
    shown = {
        "memberships": memberships,
        "has_second_factor": get_adapter().is_mfa_enabled(person),
        "must_have_second_factor": settings.STAFF_SECOND_FACTOR and person.is_staff,
    }
    return render(request, "console/account.html", shown)
