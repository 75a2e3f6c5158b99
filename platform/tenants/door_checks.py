"""Start-up checks: a door without a policy does not start, nor does one outside of the base view.

They read the resolver: every route under /api, /agent and /payments leads to an OrganizationView whose every method has
a policy entry with a known permission, or stands in `settings.DOORS_WITHOUT_POLICY`.
"""

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.urls import URLPattern, URLResolver, get_resolver

from tenants import roles
from tenants.access import OrganizationView

GUARDED = ("api/", "agent/", "payments/")
_METHODS = ("get", "post", "put", "patch", "delete")


@register("doors")
def check_doors(**_: Any) -> list[CheckMessage]:
    return [
        Error(f"/{route}: {fault}", id="tenants.E001")
        for route, callback in doors(get_resolver().url_patterns)
        for fault in faults_of(route, callback)
    ]


def doors(patterns: list[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (route, view function) for every leaf of the resolver below the guarded paths."""
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from doors(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern) and route.lstrip("^/").startswith(GUARDED):
            yield route, pattern.callback


def methods_of(view: type[Any]) -> list[str]:
    return [method for method in _METHODS if method in view.http_method_names and hasattr(view, method)]


def faults_of(route: str, callback: Any) -> Iterator[str]:
    if route in settings.DOORS_WITHOUT_POLICY:
        return
    view = getattr(callback, "view_class", None) or getattr(callback, "cls", None)
    if view is None or not issubclass(view, OrganizationView):
        yield "is no OrganizationView and does not stand in DOORS_WITHOUT_POLICY"
        return
    methods = methods_of(view)
    for method in methods:
        if method not in view.policy:
            yield f"{view.__name__}.{method} has no policy entry"
    for method, permission in view.policy.items():
        if method not in methods:
            yield f"{view.__name__} has a policy for {method}, which it does not offer"
        if permission not in roles.ROLES:
            yield f"{view.__name__}: there is no permission {permission}"
    if hasattr(view, "queryset"):
        yield f"{view.__name__} has a class queryset: start from self.mine(...)"
