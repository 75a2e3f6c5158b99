"""The doors of `tenants` where config puts them."""

from django.urls import include, path

urlpatterns = [path("api/v1/", include("tenants.urls"))]
