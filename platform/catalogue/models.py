"""What there is to lease: kinds of accelerators, and where machines stand."""

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q

from audit import ids

_place_slug = RegexValidator(r"\A[a-z0-9]+(-[a-z0-9]+)*\Z", "Lower case letters, digits and single hyphens.")
_model_slug = RegexValidator(r"\A[A-Z0-9]+(_[A-Z0-9]+)*\Z", "Upper case letters, digits and single underscores.")


class Region(models.Model):
    """A province or city, and the currency in which its GPUs are sold."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    slug = models.CharField(max_length=40, unique=True, validators=[_place_slug])
    name = models.CharField(max_length=80)
    currency = models.CharField(max_length=3, default="CNY")  # ISO 4217; XTS, the test code, where simulated
    simulated = models.BooleanField(default=False)

    class Meta:
        ordering = ["slug"]
        constraints = [
            # Play money must never buy a real GPU, nor real money a simulated one.
            models.CheckConstraint(
                condition=Q(simulated=True, currency="XTS") | (Q(simulated=False) & ~Q(currency="XTS")),
                name="region_is_simulated_iff_its_currency_is_xts",
            )
        ]

    def __str__(self) -> str:
        return f"{self.slug} (simulated)" if self.simulated else self.slug

    @property
    def public_id(self) -> str:
        return ids.encode("region", self.id)


class Zone(models.Model):
    """A site within a region; its hosts share a fast network."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    region = models.ForeignKey(Region, models.PROTECT, related_name="zones")
    slug = models.CharField(max_length=40, unique=True, validators=[_place_slug])
    name = models.CharField(max_length=80)

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug

    @property
    def public_id(self) -> str:
        return ids.encode("zone", self.id)


class GpuModel(models.Model):
    """A kind of accelerator. Figures are published peaks; None is unknown, never zero.

    Figures and `memory_gib` are those of `devices_per_board` devices where `figures_are_per` is "board", as on the
    MI250; `catalogue.figures` gives those of one device, without the ones that are not to be trusted.
    """

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    slug = models.CharField(max_length=40, unique=True, validators=[_model_slug])
    aliases = models.JSONField(default=list, blank=True)
    vendor = models.CharField(max_length=20)
    name = models.CharField(max_length=80)
    segment = models.CharField(max_length=20, blank=True)  # datacenter, workstation, consumer, integrated
    architecture = models.CharField(max_length=60, blank=True)
    compute_capability = models.CharField(max_length=20, blank=True)  # of CUDA; for AMD the gfx target
    memory_gib = models.PositiveIntegerField(null=True, blank=True)  # nominal
    memory_bandwidth_gb_s = models.FloatField(null=True, blank=True)
    fp16_tensor_dense_tflops = models.FloatField(null=True, blank=True)
    interconnect = models.CharField(max_length=60, blank=True)
    interconnect_gb_s = models.FloatField(null=True, blank=True)  # both directions together
    tdp_w = models.PositiveIntegerField(null=True, blank=True)
    pcie_gen = models.PositiveSmallIntegerField(null=True, blank=True)
    devices_per_board = models.PositiveSmallIntegerField(null=True, blank=True)
    figures_are_per = models.CharField(max_length=10, default="device")  # device or board
    mig_profiles = models.JSONField(default=list, blank=True)
    fractions = models.JSONField(default=list, blank=True)  # parts of a shared card that are sold: "0.5"
    driver_names = models.JSONField(default=list, blank=True)
    pci_ids = models.JSONField(default=list, blank=True)  # "vendor:device", lower-case hexadecimal
    confidence = models.CharField(max_length=10, default="low")  # high, medium, low
    field_confidence = models.JSONField(default=dict, blank=True)  # of single fields, over `confidence`
    sold = models.BooleanField(default=True)
    raw = models.JSONField(default=dict, blank=True)  # the entry as the catalogue's file has it

    class Meta:
        ordering = ["slug"]
        verbose_name = "GPU model"
        constraints = [
            models.CheckConstraint(
                condition=Q(figures_are_per="device") | Q(figures_are_per="board", devices_per_board__isnull=False),
                name="gpu_model_figures_per_board_need_its_devices",
            ),
            *(
                models.CheckConstraint(
                    condition=Q(**{f"{field}__isnull": True}) | Q(**{f"{field}__gt": 0}),
                    name=f"gpu_model_{field}_is_unknown_or_positive",
                )
                for field in (
                    "memory_gib",
                    "memory_bandwidth_gb_s",
                    "fp16_tensor_dense_tflops",
                    "interconnect_gb_s",
                    "tdp_w",
                    "pcie_gen",
                    "devices_per_board",
                )
            ),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def public_id(self) -> str:
        return ids.encode("gpu", self.id)
