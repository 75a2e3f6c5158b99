"""Plain functions that make what a test needs, through the real domain where there is one. NOON is when it is made."""

from datetime import UTC, datetime, timedelta
from typing import Any

from agents import reports
from agents.models import Device, Host, Workload
from agents.protocol import WorkloadReport
from audit import ids
from billing import price_list, wallets
from billing.models import PriceVersion
from catalogue.models import GpuModel, Region, Zone
from leasing import requesting
from leasing.models import Image, Lease
from leasing.requesting import Wanted
from leasing.states import EndReason, State
from scheduler import converging, placing, recovery
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


def price(
    sku: str = "A100_80G", *, micros: int = 3_600_000, region: str = "sim", term: str = "on_demand",
    starts_at: datetime = NOON,
) -> PriceVersion:  # fmt: skip
    """Put one GPU of a model on the price list from NOON on, in the region's currency."""
    currency = Region.objects.get(slug=region).currency
    notices_s = (0, 600, 120) if term == "spot" else (0,)  # the last, whose version is returned, is the usual one
    for notice_s in notices_s:
        series = price_list.Series(sku, region, "verified", term, "active", currency, notice_s)
        version = price_list.publish(
            series=series, price_micros_per_hour=micros, starts_at=starts_at, cause="test", at=starts_at
        )
    return version


def storage_price(*, micros: int = 360, region: str = "sim", starts_at: datetime = NOON) -> PriceVersion:
    """Put a GiB of storage on the price list, in the region's currency."""
    make_zone(f"{region}-1")
    currency = Region.objects.get(slug=region).currency
    series = price_list.Series("storage", region, "verified", "on_demand", "storage", currency)
    return price_list.publish(
        series=series, price_micros_per_hour=micros, starts_at=starts_at, cause="test", at=starts_at, unit="gib_hour"
    )


def make_tenant(*, micros: int = 1_000_000_000, currency: str = "XTS", **fields: Any) -> Organization:
    """An organization with money in its wallet."""
    tenant = make_organization(**({"currency": currency, "name": "Tenant"} | fields))
    if micros:
        wallets.top_up(
            owner=tenant.pk, currency=currency, amount_micros=micros, key=f"topup:test:{tenant.pk}", by="test",
            reason="test", at=NOON,
        )  # fmt: skip
    return tenant


def make_image(slug: str = "pytorch_latest", **fields: Any) -> Image:
    values = {"name": slug, "reference": f"docker.io/library/{slug}:latest", "vendor": ""} | fields
    return Image.objects.get_or_create(organization=None, slug=slug, defaults=values)[0]


def wanted(tenant: Organization, request: str = "A100_80G", *, at: datetime = NOON, **asked: Any) -> Wanted:
    """The request as the door hands it on."""
    make_image()
    return requesting.understand(
        organization=tenant, asked={"request": request, "image": "pytorch_latest"} | asked, at=at
    )


def make_lease(
    tenant: Organization | None = None, request: str = "A100_80G", *, at: datetime = NOON, **asked: Any
) -> Lease:
    """A pending lease of a tenant who can pay."""
    tenant = tenant or make_tenant()
    return requesting.request_lease(
        organization_id=tenant.pk, wanted=wanted(tenant, request, at=at, **asked), at=at, created_by="test"
    )


def say(lease: Lease, step: str, *, at: datetime, members: list[int] | None = None, **facts: Any) -> None:
    """Let the hosts of the lease report a step of its containers, as a sync that was received at `at` would."""
    for workload in Workload.objects.filter(reference=lease.public_id, gone_at=None).select_related("host"):
        if members is not None and workload.member not in members:
            continue
        seen = workload.spec["devices"] if step == "ready" else None
        item = WorkloadReport(
            lease=workload.reference, member=workload.member, epoch=workload.epoch, spec_hash=workload.spec_hash,
            step=step, **({"visible_devices": seen} | facts),
        ).to_json()  # fmt: skip
        reports.apply_workloads(
            host=workload.host, items=[item], have_generation=workload.host.generation, engine_up=True,
            known={(workload.reference, workload.member, workload.epoch): workload}, at=at,
        )  # fmt: skip
        Host.objects.filter(pk=workload.host_id).update(last_heard_at=at, state=Host.State.ONLINE)


def place(*, at: datetime) -> None:
    placing.place_pending(at=at, grace_s=30)


def make_active_lease(
    tenant: Organization | None = None, request: str = "A100_80G", *, at: datetime = NOON, **asked: Any
) -> Lease:
    """A lease that was placed at `at` and ready two seconds later."""
    lease = make_lease(tenant, request, at=at, **asked)
    place(at=at)
    say(lease, "ready", at=at + timedelta(seconds=2))
    converging.converge(at=at + timedelta(seconds=2))
    lease.refresh_from_db()
    assert lease.state == State.ACTIVE, (lease.state, lease.why_waiting)
    return lease


def hear(lease: Lease, *, at: datetime) -> None:
    """Let the hosts of the lease have been heard last at `at`."""
    Host.objects.filter(workloads__reference=lease.public_id).update(last_heard_at=at)


def end_and_clean(lease: Lease, *, at: datetime) -> Lease:
    """The tenant ends it while its hosts are heard; they say that nothing is left."""
    hear(lease, at=at)
    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=at)
    say(lease, "gone", at=at)
    converging.converge(at=at + timedelta(seconds=1))
    lease.refresh_from_db()
    return lease
