"""Plain functions that make what a test needs, through the real domain where there is one. NOON is when it is made."""

from datetime import UTC, datetime, timedelta
from typing import Any

from agents.models import Device, Host
from audit import ids
from catalogue.models import GpuModel, Region, Zone
from tenants.models import Organization

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def make_organization(name: str = "Acme", **fields: Any) -> Organization:
    return Organization.objects.create(name=name, slug=f"org-{ids.new().hex[-12:]}", **fields)


def make_zone(slug: str = "sim-1", *, simulated: bool = True) -> Zone:
    region, _ = Region.objects.get_or_create(
        slug=slug.rpartition("-")[0],
        defaults={"name": "A place", "currency": "XTS" if simulated else "CNY", "simulated": simulated},
    )
    return Zone.objects.get_or_create(slug=slug, defaults={"region": region, "name": slug})[0]


def make_gpu_model(slug: str = "A100_80G", **fields: Any) -> GpuModel:
    figures = {"vendor": "nvidia", "name": slug, "memory_gib": 80, "pci_ids": [], "driver_names": []}
    return GpuModel.objects.get_or_create(slug=slug, defaults=figures | fields)[0]


def make_host(
    *,
    owner: Organization | None = None,
    gpus: int = 1,
    model: str = "A100_80G",
    state: str = Host.State.ONLINE,
    **fields: Any,
) -> Host:
    """An enrolled, verified, simulated host that was heard at NOON, with healthy devices."""
    name = fields.pop("name", f"host-{ids.new().hex[-8:]}")
    host = Host.objects.create(
        owner=owner or make_organization(), zone=fields.pop("zone", None) or make_zone(), name=name, simulated=True,
        **{"state": state, "state_since": NOON, "tier": Host.Tier.VERIFIED, "last_heard_at": NOON} | fields,
    )  # fmt: skip
    gpu_model = make_gpu_model(model)
    for index in range(gpus):
        Device.objects.create(
            host=host, uuid=f"SIM-{host.pk.hex[-12:]}-{index}", index=index, model=gpu_model,
            memory_mib=(gpu_model.memory_gib or 1) * 1024, health=Device.Health.HEALTHY, health_since=NOON,
        )  # fmt: skip
    return host
