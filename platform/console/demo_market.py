"""What a fresh one-machine installation needs to be tried: play-money prices, two tenants, an owner, a first key.

Everything here is simulated: region `sim`, currency XTS. Prices are invented by a formula, to have something to pay.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from typing import Any

from django.conf import settings
from django.db import transaction

from accounts.models import User
from agents import enrolment
from agents.models import Host
from billing import price_list, wallets
from billing.price_list import FirstPrice
from catalogue import loading
from catalogue.models import GpuModel, Region, Zone
from leasing import images
from leasing.models import Image
from tenants import keys, organizations, roles
from tenants.models import ApiKey, Organization

REGION = "sim"
MICROS_PER_GIB_HOUR = 25_000  # of a GPU's memory
STORAGE_MICROS_PER_GIB_HOUR = 200  # of disk
TERMS = {"on_demand": 100, "reserved:P1W": 90, "reserved:P1M": 75, "reserved:P1Y": 55}  # percent
SPOT_BY_NOTICE_S = {0: 40, 120: 45, 600: 50}  # percent; who must be told longer ahead pays more
FIRST_MONEY_MICROS = 10_000 * 1_000_000
HOLD_PERCENT = 50
# What a reserved lease pays at least if its tenant ends it early (docs/decisions/0004).
COMMITTED_S = {"reserved:P1W": 7 * 86_400, "reserved:P1M": 28 * 86_400, "reserved:P1Y": 365 * 86_400}
KEY_NAME = "embedded"
# Made of this machine's own shell, so that a real container engine runs it without a registry (embedded.demo_image).
DEMO_IMAGE = {
    "slug": "gpuyard_demo",
    "name": "Demonstration (no registry needed)",
    "reference": "localhost/gpuyard/demo:1",
    "description": "Lists the GPUs it sees and beats once a second. Simulated hosts only.",
    "vendor": "",
}


@dataclass(frozen=True)
class Party:
    slug: str
    name: str
    email: str


TENANT = Party("demo-tenant", "Demo tenant (simulated)", "tenant@demo.invalid")
RIVAL = Party("demo-rival", "Demo rival (simulated)", "rival@demo.invalid")
OWNER = Party("demo-owner", "Demo host owner (simulated)", "owner@demo.invalid")


def publish_prices(*, at: datetime) -> int:
    """Publish a price for each model of the catalogue in the simulated region; return how many were missing."""
    region = Region.objects.get(slug=REGION)
    prices = [price for model in GpuModel.objects.exclude(memory_gib=None) for price in _prices_of(model, region)]
    storage = price_list.Series("storage", region.slug, "verified", "on_demand", "storage", region.currency)
    prices.append(FirstPrice(storage, STORAGE_MICROS_PER_GIB_HOUR, unit="gib_hour"))
    return price_list.publish_first(prices, starts_at=at, cause="simulated market", at=at)


def _prices_of(model: GpuModel, region: Region) -> Iterator[FirstPrice]:
    per_hour = (model.memory_gib or 0) * MICROS_PER_GIB_HOUR
    kinds = [(term, 0, percent) for term, percent in TERMS.items()]
    kinds += [("spot", notice_s, percent) for notice_s, percent in SPOT_BY_NOTICE_S.items()]
    for term, notice_s, percent in kinds:
        for part in ("", *model.fractions):
            micros = int(per_hour * Fraction(part or 1)) * percent // 100
            sku = f"{model.slug}/{part}" if part else model.slug
            series = price_list.Series(
                sku=sku, region=region.slug, tier="verified", term=term, use="active", currency=region.currency,
                notice_s=notice_s,
            )  # fmt: skip
            yield FirstPrice(series, micros, COMMITTED_S.get(term, 0))
            yield FirstPrice(replace(series, use="hold"), micros * HOLD_PERCENT // 100)


@transaction.atomic
def found(party: Party, *, at: datetime, money: bool) -> Organization:
    """Return the organization, founded with play money in its wallet if it was not there."""
    organization = Organization.objects.filter(slug=party.slug).first()
    if organization is None:
        user, _ = User.objects.get_or_create(email=party.email, defaults={"username": party.slug})
        organization = organizations.found(
            name=party.name, slug=party.slug, owner=user, currency=settings.SIMULATED_CURRENCY, at=at
        )
    if money:
        wallets.top_up(
            owner=organization.pk, currency=settings.SIMULATED_CURRENCY, amount_micros=FIRST_MONEY_MICROS,
            key=f"topup:demo:{party.slug}", by="system:demo", reason="play money", at=at,
        )  # fmt: skip
    return organization


@transaction.atomic
def fresh_key(organization: Organization, *, at: datetime) -> str:
    """Return the text of a new key with every scope, and revoke the one that the last start of the stack made."""
    for old in ApiKey.objects.filter(organization=organization, name=KEY_NAME, revoked_at=None):
        keys.revoke(key=old, at=at, actor="system:embedded")
    _, text = keys.create(
        organization=organization, name=KEY_NAME, scopes=roles.SCOPES, expires_at=None, created_by=None, at=at
    )
    return text


@transaction.atomic
def invite(names: list[str], *, owner: Organization, at: datetime) -> dict[str, str]:
    """Return an enrolment token for each host that is not enrolled yet."""
    there = set(Host.objects.filter(owner=owner).exclude(state=Host.State.RETIRED).values_list("name", flat=True))
    zones = list(Zone.objects.filter(region__slug=REGION).order_by("slug"))
    tokens = {}
    for index, name in enumerate(names):
        if name not in there:
            _, tokens[name] = enrolment.invite(
                organization=owner, zone=zones[index % len(zones)].slug, name=name, access="public",
                created_by="system:embedded", at=at,
            )  # fmt: skip
    return tokens


def set_up(*, hosts: list[str], admin_password: str | None, at: datetime) -> dict[str, Any]:
    """Make everything that is missing; return keys and tokens, which are shown this once."""
    loading.load()
    images.load_catalogue()
    Image.objects.get_or_create(organization=None, slug=DEMO_IMAGE["slug"], defaults=DEMO_IMAGE)
    publish_prices(at=at)
    tenant, rival = found(TENANT, at=at, money=True), found(RIVAL, at=at, money=True)
    owner = found(OWNER, at=at, money=False)
    if admin_password is not None:
        admin, _ = User.objects.get_or_create(username="admin", defaults={"email": "admin@demo.invalid"})
        admin.is_staff = admin.is_superuser = True
        admin.set_password(admin_password)
        admin.save()
    return {
        "tenant": {"organization": tenant.public_id, "api_key": fresh_key(tenant, at=at)},
        "rival": {"organization": rival.public_id, "api_key": fresh_key(rival, at=at)},
        "owner": {"organization": owner.public_id, "api_key": fresh_key(owner, at=at)},
        "enrolment_tokens": invite(hosts, owner=owner, at=at),
        "currency": settings.SIMULATED_CURRENCY,
        "simulated": True,
    }
