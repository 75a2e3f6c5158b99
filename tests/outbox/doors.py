"""The doors of the outbox where config puts them."""

from django.urls import include, path

urlpatterns = [path("api/v1/", include("outbox.urls"))]
