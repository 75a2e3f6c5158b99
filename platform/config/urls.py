"""Every door of the control plane."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

import accounts.urls
import agents.urls
import billing.urls
import catalogue.urls
import console.urls
import leasing.urls
import outbox.urls
import scheduler.urls
import tenants.urls

api_v1: list[URLPattern | URLResolver] = [
    *agents.urls.urlpatterns,
    *billing.urls.urlpatterns,
    *catalogue.urls.urlpatterns,
    *console.urls.urlpatterns,
    *leasing.urls.urlpatterns,
    *outbox.urls.urlpatterns,
    *scheduler.urls.urlpatterns,
    *tenants.urls.urlpatterns,
]

urlpatterns: list[URLPattern | URLResolver] = [
    *console.urls.probes,
    *console.urls.pages,
    path("accounts/", include(accounts.urls)),
    path("admin/", admin.site.urls),
    path("api/v1/", include(api_v1)),
    path("agent/v1/", include(agents.urls.agent_urlpatterns)),
    path("payments/", include(billing.urls.payment_urlpatterns)),
]
