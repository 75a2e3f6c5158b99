"""Doors of what a lease may start and be given, under /api/v1/."""

from django.urls import path

from leasing import api

urlpatterns = [
    path("images", api.ImageCollection.as_view(), name="image_list"),
    path("images/<str:id>", api.ImageItem.as_view(), name="image"),
    path("volumes", api.VolumeCollection.as_view(), name="volume_list"),
    path("volumes/<str:id>", api.VolumeItem.as_view(), name="volume"),
    path("secrets", api.SecretCollection.as_view(), name="secret_list"),
    path("secrets/<str:id>", api.SecretItem.as_view(), name="secret"),
]
