"""Leases and the engine's words: what is asked for a lease, and what a decision means for it."""

from datetime import datetime
from typing import Any
from uuid import UUID

from leasing import promised_price, volumes
from leasing.assigning import Assignment
from leasing.calendar import CLEANING_MARGIN_S
from leasing.compat import ImageNeeds
from leasing.models import Lease
from scheduler import pool as pools
from scheduler.placement import Ask, Placement, Want
from scheduler.pool import Pool, seconds

LEAST_BESIDE_MIB = 1024  # of disk for the container itself, beside the volumes that are made with it


def options_of(options: dict[str, Any]) -> tuple[Want, ...]:
    return tuple(
        Want(
            model=option.get("model"),
            count=option["count"],
            nodes=option["nodes"],
            slice=option.get("slice"),
            memory_gib=(memory["min"], memory["max"]) if (memory := option.get("memory_gib")) else None,
            region=option.get("region"),
        )
        for option in options["options"]
    )


def ask_for(lease: Lease, pool: Pool, *, at: datetime, grace_s: int) -> Ask:
    """Return what the engine is asked for a lease: from its start (now, or later) until its known end and cleaning."""
    limits = lease.constraints
    start = max(lease.start_at, at) if lease.start_at else at
    volume_hosts, new_mib = volumes.where(lease)
    return Ask(
        options=options_of(lease.request_options),
        organization=str(lease.organization_id),
        now_s=seconds(at),
        start_s=seconds(start),
        until_s=seconds(lease.end_at) + CLEANING_MARGIN_S + grace_s if lease.end_at else None,
        max_price_micros=limits.get("max_price_micros"),
        image=_image(lease.image_needs),
        min_driver=limits.get("min_driver", ""),
        min_cuda=limits.get("min_cuda", ""),
        min_reliability_bp=limits.get("min_reliability_bp", 0),
        regions=frozenset(limits.get("regions", ())),
        exclude_hosts=pool.keys_of({*limits.get("exclude_hosts", ()), *lease.avoid_hosts}),
        exclude_owners=frozenset(limits.get("exclude_owners", ())),
        same_zone=limits.get("same") == "zone",
        same_fabric=limits.get("same") == "fabric",
        nvlink=limits.get("nvlink", "any"),
        whole_machine=limits.get("whole_machine", False),
        bare_metal=limits.get("bare", False),
        publishes=bool(lease.ports),
        min_cpu_milli=limits.get("min_cpu_milli", 0),
        min_ram_mib=limits.get("min_ram_mib", 0),
        min_disk_mib=limits.get("min_disk_mib", LEAST_BESIDE_MIB if new_mib else 0) + new_mib,
        only_hosts=pool.keys_of({str(pk) for pk in volume_hosts}) if volume_hosts else None,
    )


def _image(needs: dict[str, Any]) -> ImageNeeds | None:
    """Return what is known of a lease's image; None for one that is not in the catalogue. No processor is known."""
    if not needs:
        return None
    archs = tuple(needs.get("architectures") or ()) or None
    return ImageNeeds(vendor=needs.get("vendor") or None, cpu="", cuda=needs.get("min_cuda") or None, archs=archs)


def assignment(
    lease: Lease, placement: Placement, pool: Pool, *, at: datetime, book: promised_price.Book | None = None
) -> Assignment:
    """Return the act for a decision: seats of the calendar, and the price promised to this lease for each member."""
    option = options_of(lease.request_options)[placement.option_index]
    prices = {}
    sku = ""
    for rank, member in enumerate(placement.members):
        host = pool.hosts[str(member.host)]
        sku = promised_price.sku(model=host.model, slice_name=option.slice)
        version = promised_price.frozen(
            sku=sku, region=host.region, tier=host.tier, term=lease.price_term, currency=lease.currency,
            priced_at=at if lease.term_kind == Lease.TermKind.SPOT else lease.priced_at,  # spot follows the market
            at=at, cap_micros=lease.constraints.get("max_price_micros"), book=book,
        )  # fmt: skip
        prices[rank] = (version.pk, version.price_micros_per_hour)
    return Assignment(
        option_index=placement.option_index,
        seats=pools.seats(placement),
        sku=sku,
        prices=prices,
        facts={"score": placement.score, "reasons": list(placement.reasons)},
    )


def withheld(act: Assignment, placement: Placement, pool: Pool) -> frozenset[str]:
    """Return the hosts that are not let for what this lease was promised, though today's price would do for them.

    All of one kind at once: a lease is decided again as often as there are kinds, not hosts.
    """
    found: set[str] = set()
    for rank, member in enumerate(placement.members):
        mine, pays = pool.hosts[str(member.host)], act.prices[rank][1]
        if pays < pool.capacity[UUID(str(member.host).split("/")[0])].price_floor_micros:
            found |= {
                key for key, view in pool.hosts.items()
                if (view.model, view.region, view.tier) == (mine.model, mine.region, mine.tier)
                and pays < pool.capacity[UUID(key.split("/")[0])].price_floor_micros
            }  # fmt: skip
    return frozenset(found)


def of_its_kind(placement: Placement, pool: Pool) -> frozenset[str]:
    """Return all hosts that are sold as those of a placement are: of the same model, region and tier."""
    sold = [pool.hosts[str(member.host)] for member in placement.members]
    kinds = {(host.model, host.region, host.tier) for host in sold}
    return frozenset(key for key, view in pool.hosts.items() if (view.model, view.region, view.tier) in kinds)
