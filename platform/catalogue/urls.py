"""Routes of the catalogue, below /api/v1/."""

from django.urls import path

from catalogue import api

urlpatterns = [
    path("gpu-models", api.GpuModelCollection.as_view(), name="gpu_model_list"),
    path("gpu-models/<slug:slug>", api.GpuModelItem.as_view(), name="gpu_model"),
    path("regions", api.RegionCollection.as_view(), name="region_list"),
]
