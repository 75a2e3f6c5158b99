"""The volumes that a request names: understood, and checked against what its organization has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from apikit.errors import DomainError, InvalidInput
from apikit.nearest import nearest
from billing.models import PriceVersion
from leasing.grammar import Request
from leasing.volume_models import Volume

# Where a volume would hide what the container or the platform needs there.
NOT_BELOW = frozenset({"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "scratch", "sys"})
NOT_AT = frozenset({"/usr", "/var", "/var/run", "/usr/bin", "/usr/lib", "/usr/local/bin"})
SKU, TIER, TERM = "storage", "verified", "on_demand"


class VolumeInUse(DomainError):
    slug = "volume-in-use"
    title = "A lease has this volume"


def refuse_if_in_use(row: Volume) -> None:
    if row.lease is not None:
        detail = f"{row.name} is with {row.lease.public_id}, which is {row.lease.state}."
        raise VolumeInUse(detail, lease=row.lease.public_id, volume=row.public_id)


@dataclass(frozen=True)
class VolumeWish:
    """One volume of a request; `volume_id` None: it is to be made, of `size_gib`."""

    name: str
    path: str
    size_gib: int
    volume_id: UUID | None = None


def understand(
    *, organization_id: UUID, asked: Sequence[Mapping[str, Any]], request: Request, currency: str,
    regions: tuple[str, ...], at: datetime,
) -> tuple[tuple[VolumeWish, ...], tuple[str, ...]]:  # fmt: skip
    """Return the wishes, and where a lease with them may stand.

    Raises InvalidInput with a pointer for each fault, VolumeInUse.
    """
    faults = _faults(asked, request)
    if faults:
        raise InvalidInput.of(faults)
    rows = Volume.objects.filter(organization=organization_id, state__in=Volume.LIVE).select_related(
        "host__zone__region", "lease"
    )
    known = {row.name: row for row in rows}
    wishes = []
    for index, each in enumerate(asked):
        row = known.get(each["name"])
        faults += _against(index, each, row, known, currency)
        if row is not None:
            wishes.append(VolumeWish(row.name, each["path"], row.size_gib, row.pk))
            regions = tuple(region for region in regions if region in (region_of(row) or region))
        elif "size_gib" in each:
            wishes.append(VolumeWish(each["name"], each["path"], each["size_gib"]))
    if not faults and not regions:
        faults = [_fault("/volumes", "bad_value", "These volumes are not where this lease may stand.")]
    sold = prices(currency=currency, at=at)
    regions = tuple(region for region in regions if region in sold or not _needs_a_price(wishes, known))
    if not faults and not regions:
        faults = [_fault("/volumes", "bad_value", f"No storage is sold in {currency} where this lease may stand.")]
    named = [option.region for option in request.options if option.region]
    if not faults and any(region not in regions for region in named):
        faults = [_fault("/request", "bad_value", f"With these volumes it may stand in {', '.join(regions)}.")]
    if faults:
        raise InvalidInput.of(faults)
    for wish in wishes:
        if wish.volume_id is not None:
            refuse_if_in_use(known[wish.name])
    return tuple(wishes), regions


def prices(*, currency: str, at: datetime) -> dict[str, PriceVersion]:
    """Return the price of storage by region, for those that sell it in this money."""
    found = PriceVersion.objects.filter(
        series__sku=SKU, series__use="storage", series__term=TERM, series__tier=TIER, series__currency=currency,
        series__notice_s=0, during__contains=at,
    ).select_related("series")  # fmt: skip
    return {version.series.region: version for version in found}


def region_of(row: Volume) -> str:
    """Return where a volume must live: where its host is, or the region that it was made for; "" if it is free."""
    return row.host.zone.region.slug if row.host is not None and row.made_at is not None else row.region


def _needs_a_price(wishes: Sequence[VolumeWish], known: Mapping[str, Volume]) -> bool:
    return any(wish.volume_id is None or known[wish.name].made_at is None for wish in wishes)


def _faults(asked: Sequence[Mapping[str, Any]], request: Request) -> list[dict[str, Any]]:
    faults = []
    if any(option.nodes > 1 for option in request.options):
        detail = "A volume lives on one machine, and this request may take several: lease them one by one."
        faults.append(_fault("/volumes", "bad_value", detail))
    for index, each in enumerate(asked):
        if any(other["name"] == each["name"] for other in asked[:index]):
            faults.append(_fault(f"/volumes/{index}/name", "bad_value", "It is named twice."))
        if any(_meet(other["path"], each["path"]) for other in asked[:index]):
            faults.append(_fault(f"/volumes/{index}/path", "bad_value", "Another volume is there."))
        if not may_be_mounted_at(each["path"]):
            detail = "A volume is mounted at a directory of its own, such as /data."
            faults.append(_fault(f"/volumes/{index}/path", "bad_value", detail))
    return faults


def _meet(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def may_be_mounted_at(path: str) -> bool:
    """Return whether a tenant may see a volume there; the path has one slash before each of its parts."""
    parts = path.split("/")[1:]
    return not (set(parts) & {"", ".", ".."} or parts[0] in NOT_BELOW or path in NOT_AT)


def _against(
    index: int, each: Mapping[str, Any], row: Volume | None, known: Mapping[str, Volume], currency: str
) -> list[dict[str, Any]]:
    at = f"/volumes/{index}"
    if row is None:
        if "size_gib" in each:
            return []
        detail = "No volume has this name; say size_gib to have it made."
        return [_fault(f"{at}/size_gib", "required", detail, nearest=nearest(each["name"], list(known)))]
    if each.get("size_gib", row.size_gib) != row.size_gib:
        return [_fault(f"{at}/size_gib", "bad_value", f"It has {row.size_gib} GiB, and keeps its size.")]
    if row.currency != currency:
        return [_fault(f"{at}/name", "bad_value", f"It is paid in {row.currency}, and this lease in {currency}.")]
    return []


def _fault(pointer: str, code: str, detail: str, **facts: Any) -> dict[str, Any]:
    return {"pointer": pointer, "code": code, "detail": detail, **facts}
