"""Hosts, devices, events and enrolments as the API shows them. Simulated ones say so."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from agents import challenges, port_check
from agents import score as scoring
from agents.models import Device, Enrolment, Host, HostEvent, Maintenance, ScoreEntry, SelfTest
from apikit.instants import instant, instant_or_none
from apikit.money import Money
from audit import ids

ACTIONS = ("cordon", "uncordon", "drain", "retire", "verify")


def actions(host: Host) -> list[str]:
    """Return what may be asked of the host now."""
    if host.state == Host.State.RETIRED:
        return []
    here = {
        Host.Scheduling.OPEN: ["cordon", "drain"],
        Host.Scheduling.CORDONED: ["uncordon", "drain"],
        Host.Scheduling.DRAINING: ["uncordon", "drain"],
    }[Host.Scheduling(host.scheduling)]
    return [*here, "verify", "retire"]


def host(row: Host) -> dict[str, Any]:
    """Return one host; `zone__region` and `devices__model` should be there already."""
    currency = row.zone.region.currency
    devices = [d for d in row.devices.all() if d.present]
    models: dict[str, int] = {}
    for one in devices:
        slug = one.model.slug if one.model else "unlisted"
        models[slug] = models.get(slug, 0) + 1
    return {
        "id": row.public_id,
        "version": row.version,
        "actions": actions(row),
        "created_at": instant(row.created_at),
        "name": row.name,
        "simulated": row.simulated,
        "state": row.state,
        "state_reason": row.state_reason,
        "state_since": instant_or_none(row.state_since),
        "scheduling": row.scheduling,
        "scheduling_reason": row.scheduling_reason,
        "drain_deadline": instant_or_none(row.drain_deadline),
        "tier": row.tier,
        "verified_at": instant_or_none(row.verified_at),
        "verification": {
            "level": row.level or None,
            "shown_at": instant_or_none(row.level_at),
            "holds_until": instant_or_none(row.level_at + challenges.HOLDS) if row.level_at else None,
            "simulated": row.simulated,
        },
        "access": row.access,
        "bare_metal": row.bare_metal,
        "price_floor": Money(row.price_floor_micros, currency).to_json() | {"per": "gpu_hour"},
        "hours": row.hours,
        "hours_time_zone": row.hours_time_zone,
        "region": row.zone.region.slug,
        "zone": row.zone.slug,
        "fabric": row.fabric or None,
        "last_heard_at": instant_or_none(row.last_heard_at),
        "conditions": row.conditions,
        "declared": row.declared or None,
        "detected": {
            "gpus": models,
            "cpu_cores": row.cpu_milli // 1000 or None,
            "ram_mib": row.ram_mib or None,
            "disk_mib": row.disk_mib or None,
            "driver_version": row.driver_version or None,
            "cuda_version": row.cuda_version or None,
            "engine": row.engine or None,
            "agent_version": row.agent_version or None,
        },
        "ports": ports(row),
        "reliability_bp": row.reliability_bp,
    }


def ports(row: Host) -> dict[str, Any] | None:
    """Return the range of ports that the owner gave, and whether tenants reach them; None: he gave none."""
    given = port_check.range_of(row)
    if given is None:
        return None
    check = getattr(row, "port_check", None)
    current = check if check and (check.address, check.first, check.end) == (row.address, *given) else None
    return {
        "first": given[0],
        "last": given[1] - 1,
        "reachable": current.reachable if current else None,
        "checked_at": instant_or_none(current.checked_at) if current else None,
        "detail": port_check.sentence(current) or None,
    }


def device(row: Device, *, in_use: bool) -> dict[str, Any]:
    """Return one device; what the driver does not give is null."""
    return {
        "id": row.public_id,
        "uuid": row.uuid,
        "index": row.index,
        "model": row.model.slug if row.model else None,
        "reported_name": row.reported_name or None,
        "memory_mib": row.memory_mib,
        "simulated": row.host.simulated,
        "present": row.present,
        "health": row.health,
        "health_reason": row.health_reason,
        "health_since": instant_or_none(row.health_since),
        "cordoned": row.cordoned,
        "in_use": in_use,
        "nvlink_clique": row.nvlink_clique,
        "readings": row.readings,
        "readings_at": instant_or_none(row.readings_at),
    }


def event(row: HostEvent) -> dict[str, Any]:
    return {
        "id": row.pk,
        "at": instant(row.at),
        "kind": row.kind,
        "detail": row.detail,
        "by": row.by or None,
        "device": row.device.uuid if row.device else None,
        "facts": row.facts,
    }


def score(row: Host, entries: list[ScoreEntry], *, at: datetime) -> dict[str, Any]:
    """Return the score with its formula, its ledger and what would change it; all in hundredths of a percent."""
    mishaps = [scoring.Mishap(entry.at, entry.points) for entry in entries]
    return {
        "host": row.public_id,
        "score_bp": scoring.score_bp(mishaps, at=at),
        "formula": {"full_bp": scoring.FULL_BP, "window_s": scoring.WINDOW_S, "points_bp": scoring.POINTS},
        "entries": [
            {
                "at": instant(entry.at),
                "kind": entry.event.kind,
                "detail": entry.event.detail,
                "points_bp": entry.points,
                "weighs_bp": scoring.weight(mishap, at=at),
            }
            for entry, mishap in zip(entries, mishaps, strict=True)
        ],
        "what_if": asdict(scoring.what_if(mishaps, at=at)),
    }


def maintenance(row: Maintenance) -> dict[str, Any]:
    over = "withdrawn" if row.withdrawn_at else "over" if row.over_at else None
    return {
        "id": row.public_id,
        "host": row.host.public_id,
        "version": 1,
        "actions": [],
        "state": over or ("draining" if row.drained_at else "announced"),
        "starts_at": instant(row.starts_at),
        "ends_at": instant(row.ends_at),
        "lead_s": row.lead_s,
        "message": row.message,
        "created_at": instant(row.announced_at),
    }


def self_test(row: SelfTest) -> dict[str, Any]:
    return {
        "id": ids.encode("test", row.pk),
        "level": row.level,
        "asked_level": row.asked_level,
        "round": row.round,
        "cause": row.cause,
        "simulated": row.simulated,
        "asked_at": instant(row.asked_at),
        "answer_by": instant(row.answer_by),
        "answered_at": instant_or_none(row.answered_at),
        "passed": row.passed,
        "checks": row.checks,
        "figures": row.figures,
    }


def enrolment(row: Enrolment, *, at: datetime) -> dict[str, Any]:
    """Return an enrolment without its token, which only the answer to its POST shows."""
    if row.used_at is not None:
        state = "used"
    elif row.revoked_at is not None:
        state = "revoked"
    else:
        state = "expired" if row.expires_at <= at else "open"
    return {
        "id": row.public_id,
        "version": 1 if row.used_at is None and row.revoked_at is None else 2,
        "actions": [],
        "created_at": instant(row.created_at),
        "expires_at": instant(row.expires_at),
        "state": state,
        "name": row.name,
        "zone": row.zone.slug,
        "access": row.access,
        "declared": row.declared or None,
        "simulated": row.zone.region.simulated,
        "host": row.host.public_id if row.host else None,
    }
