"""The catalogue in the operators' admin. What a file published can be put right, until the file itself changes it."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from catalogue import browsing
from catalogue.models import GpuModel, Region, Zone

FRACTIONS = ("0.125", "0.25", "0.5")  # of the eight units of a device: one, two, four


class GpuModelForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = GpuModel
        exclude = ["raw"]

    def clean_fractions(self) -> list[str]:
        fractions: Any = self.cleaned_data["fractions"]
        if not isinstance(fractions, list) or not set(map(str, fractions)) <= set(FRACTIONS):
            raise forms.ValidationError(f"A list of {', '.join(FRACTIONS)}, each in quotation marks, would be right.")
        return sorted(map(str, fractions))

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        for field in ("aliases", "mig_profiles", "driver_names", "pci_ids"):
            texts: Any = cleaned.get(field, [])
            if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
                self.add_error(field, "A list of texts would be right.")
        if not self.errors:
            names = {"slug": cleaned.get("slug", self.instance.slug), "aliases": cleaned["aliases"]}
            for clash in browsing.clashes(model_id=self.instance.pk, **names):
                self.add_error("aliases", clash)
        return cleaned


@admin.register(GpuModel)
class GpuModelAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = GpuModelForm
    list_display = ["slug", "vendor", "name", "memory_gib", "segment", "compute_capability", "confidence", "sold"]
    list_filter = ["sold", "vendor", "segment", "confidence", "memory_gib"]
    list_editable = ["sold"]
    search_fields = ["slug", "name", "aliases", "driver_names", "pci_ids"]
    ordering = ["slug"]
    list_per_page = 100

    def get_readonly_fields(self, request: HttpRequest, obj: GpuModel | None = None) -> list[str]:
        # Requests, prices and devices name a model by its slug.
        return ["slug"] if obj else []

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        return forms.ModelForm  # the list edits `sold` alone


class ZonesOfRegion(admin.TabularInline):  # type: ignore[type-arg]
    model = Zone
    extra = 0
    fields = ["slug", "name"]
    show_change_link = True


@admin.register(Region)
class RegionAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["slug", "name", "currency", "simulated"]
    list_filter = ["simulated", "currency"]
    search_fields = ["slug", "name"]
    inlines = [ZonesOfRegion]

    def get_readonly_fields(self, request: HttpRequest, obj: Region | None = None) -> list[str]:
        # Prices and leases were made in this currency.
        return ["slug", "currency", "simulated"] if obj else []


@admin.register(Zone)
class ZoneAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["slug", "name", "region"]
    list_filter = ["region"]
    search_fields = ["slug", "name", "region__slug"]
    autocomplete_fields = ["region"]

    def get_readonly_fields(self, request: HttpRequest, obj: Zone | None = None) -> list[str]:
        return ["slug", "region"] if obj else []
