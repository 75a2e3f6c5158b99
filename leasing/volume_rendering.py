"""A volume as the API shows it."""

from typing import Any

from agents.models import HostVolume
from apikit.instants import instant, instant_or_none
from apikit.money import Money
from billing import reserves
from leasing import volumes
from leasing.volume_models import Volume
from leasing.volume_wishes import region_of


def volume(row: Volume) -> dict[str, Any]:
    reserve = reserves.of(row.public_id)
    there = HostVolume.objects.filter(reference=row.public_id, host=row.host).order_by("wanted_at").last()
    used_mib = there.used_mib if there is not None else None
    return {
        "id": row.public_id,
        "version": row.version,
        "actions": [],
        "name": row.name,
        "size_gib": row.size_gib,
        "used_gib": None if used_mib is None else round(used_mib / volumes.MIB_PER_GIB, 2),
        "state": row.state,
        "state_since": instant(row.state_since),
        "region": region_of(row) or None,
        "host": row.host.public_id if row.host and row.made_at else None,
        "host_state": row.host.state if row.host and row.made_at else None,
        "lease": row.lease.public_id if row.lease else None,
        "kept_from": row.kept_from or None,
        "price": Money(row.price_micros_per_hour, row.currency).to_json() | {"per": "gib_hour"},
        "price_per_hour": Money(volumes.rate(row), row.currency).to_json(),
        "reserved": Money(reserve.held_micros if reserve else 0, row.currency).to_json(),
        "charged_since": instant_or_none(row.made_at),
        "destroy_at": instant_or_none(row.destroy_at),
        "created_at": instant(row.created_at),
        "ended_at": instant_or_none(row.ended_at),
        "end_reason": row.ended_reason or None,
        "simulated": row.simulated,
    }
