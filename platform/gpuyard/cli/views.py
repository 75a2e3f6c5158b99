"""How each kind of object looks: the columns of its lists, and its details."""

from collections.abc import Iterator
from typing import Any

from gpuyard.cli.tables import Column
from gpuyard.cli.values import Row, ago, badge, ended_by, eta, gib, member, money, plain, price, readable, until
from gpuyard.durations import show


def _waiting(row: Row) -> str:
    if row.get("end_reason"):
        return ended_by(row["end_reason"])
    waiting = row.get("why_waiting") or {}
    place = f"place {row['queue_place']}: " if row.get("queue_place") else ""
    return place + str(waiting.get("text") or "") if waiting else ""


def _cost(row: Row) -> str:
    cost = row.get("cost") or {}
    return money(cost.get("charged")) + (" running" if cost.get("running") else "")


def _where(row: Row) -> str:
    members = row.get("members") or []
    return " ".join(dict.fromkeys(str(m.get("host") or m.get("region") or "") for m in members if isinstance(m, dict)))


LEASES = (
    Column("ID", member("id")),
    Column("STATE", member("state")),
    Column("REQUEST", lambda row: plain(row.get("request")) + badge(row)),
    Column("SINCE", lambda row: ago(row.get("state_since") or row.get("created_at")), rank=1),
    Column("COST", _cost, rank=2, right=True),
    Column("IMAGE", member("image"), rank=3, flexible=True),
    Column("WHY", _waiting, rank=4, flexible=True),
    Column("NAME", member("name"), rank=5, flexible=True),
    Column("PRICE", price, rank=6, wide=True, right=True),
    Column("WHERE", _where, rank=7, wide=True, flexible=True),
)
EVENTS = (
    Column("SEQ", member("seq"), right=True),
    Column("AT", member("at")),
    Column("FROM", member("from_state"), rank=2),
    Column("TO", member("to_state")),
    Column("REASON", member("reason")),
    Column("DETAIL", member("detail"), rank=1, flexible=True),
)
MEMBERS_OF_A_LEASE = (
    Column("RANK", member("rank"), right=True),
    Column("STATE", member("state")),
    Column("GPUS", lambda row: plain(row.get("gpu_count")) + badge(row), right=True),
    Column("HOST", lambda row: plain(row.get("host_name") or row.get("host")), rank=1),
    Column("ZONE", member("zone"), rank=3),
    Column("PORTS", lambda row: _endpoints(row), rank=2, flexible=True),
    Column("DETAIL", member("detail"), rank=4, flexible=True),
)
CHARGES = (
    Column("MEMBER", member("member"), right=True),
    Column("USE", member("use")),
    Column("FROM", member("from"), rank=1),
    Column("TO", lambda row: plain(row.get("to")) or "running", rank=1),
    Column("SECONDS", member("seconds"), right=True),
    Column("PRICE", price, right=True),
    Column("CHARGED", lambda row: money(row.get("charged")), right=True),
)
OFFERS = (
    Column("REQUEST", lambda row: plain(row.get("request") or row.get("gpu_model") or row.get("model")) + badge(row)),
    Column("PRICE", price, right=True),
    Column("FREE", lambda row: plain(row.get("available", row.get("count"))), rank=1, right=True),
    Column("REGION", member("region"), rank=2),
    Column("TIER", member("tier"), rank=3),
    Column("MEMORY", gib, rank=4, right=True),
    Column("IN ONE", member("most_in_one_machine"), rank=5, right=True),
    Column("VENDOR", member("vendor"), rank=6, wide=True),
)
QUOTES = (
    Column("ID", member("id")),
    Column("REQUEST", lambda row: plain(row.get("request")) + badge(row)),
    Column("PRICE", price, right=True),
    Column("EXPIRES", lambda row: ago(row.get("expires_at")), rank=1),
    Column("STATE", member("state"), rank=2),
)
SECRETS = (
    Column("NAME", member("name")),
    Column("KEPT", lambda row: ago(row.get("created_at")), rank=2),
    Column("REPLACED", lambda row: ago(row.get("replaced_at")), rank=1),
    Column("ID", member("id"), rank=3),
)
VOLUMES = (
    Column("NAME", member("name")),
    Column("STATE", member("state")),
    Column("SIZE", lambda row: f"{plain(row.get('size_gib'))} GiB" + badge(row), right=True),
    Column("USED", lambda row: "" if row.get("used_gib") is None else f"{row['used_gib']} GiB", rank=4, right=True),
    Column("PRICE", lambda row: money(row.get("price")), rank=3, right=True),
    Column("REGION", member("region"), rank=5),
    Column("LEASE", member("lease"), rank=2),
    Column("DESTROYED", lambda row: ago(row.get("destroy_at")), rank=1),
    Column("ID", member("id"), rank=6),
)
IMAGES = (
    Column("SLUG", lambda row: plain(row.get("slug") or row.get("id"))),
    Column("OWN", lambda row: "yes" if row.get("own") else "", rank=4),
    Column("NAME", member("name"), rank=2, flexible=True),
    Column("REFERENCE", member("reference"), rank=1, flexible=True),
    Column("CUDA", lambda row: plain(row.get("min_cuda")), rank=3),
)
GPU_MODELS = (
    Column("SLUG", lambda row: plain(row.get("slug")) + badge(row)),
    Column("VENDOR", member("vendor"), rank=1),
    Column("MEMORY", gib, right=True),
    Column("NAME", member("name"), rank=2, flexible=True),
    Column("ALIASES", member("aliases"), rank=3, flexible=True),
    Column(
        "SLICES", lambda row: plain((row.get("mig_profiles") or []) + (row.get("fractions") or [])), wide=True, rank=4
    ),
)
REGIONS = (
    Column("SLUG", lambda row: plain(row.get("slug")) + badge(row)),
    Column("NAME", member("name"), rank=1, flexible=True),
    Column("CURRENCY", member("currency")),
    Column("ZONES", member("zones"), rank=2, flexible=True),
)
HOSTS = (
    Column("ID", member("id")),
    Column("NAME", lambda row: plain(row.get("name")) + badge(row), flexible=True),
    Column("STATE", member("state")),
    Column("GPUS", lambda row: _gpus(row), rank=1, flexible=True),
    Column("TAKES LEASES", member("scheduling"), rank=2),
    Column("REGION", member("region"), rank=3),
    Column("TIER", member("tier"), rank=4),
    Column("HEARD", lambda row: ago(row.get("last_heard_at")), rank=5),
    Column("ACCESS", member("access"), rank=6, wide=True),
)
HOST_EVENTS = (
    Column("AT", member("at")),
    Column("WHAT", member("kind")),
    Column("DETAIL", member("detail"), rank=1, flexible=True),
    Column("BY", member("by"), rank=2, flexible=True),
)
DEVICES = (
    Column("INDEX", member("index"), right=True),
    Column("MODEL", lambda row: plain(row.get("model") or row.get("reported_name")) + badge(row)),
    Column("HEALTH", member("health")),
    Column("IN USE", member("in_use")),
    Column("WHY", member("health_reason"), rank=2, flexible=True),
    Column("UUID", member("uuid"), rank=1),
)
KEYS = (
    Column("ID", member("id")),
    Column("NAME", member("name"), flexible=True),
    Column("PREFIX", lambda row: plain(row.get("prefix") or row.get("public")), rank=2),
    Column("SCOPES", lambda row: " ".join(row.get("scopes") or []), rank=3, flexible=True),
    Column("LAST USED", lambda row: ago(row.get("last_used_at")), rank=4),
    Column("EXPIRES", lambda row: ago(row.get("expires_at")), rank=1),
)
RECEIPT_KEYS = (
    Column("PUBLIC KEY", member("public_key_hex")),
    Column("STATE", member("state")),
    Column("ALGORITHM", member("algorithm"), rank=1),
)
MEMBERS = (
    Column("ID", member("id")),
    Column("WHO", lambda row: plain(row.get("email") or row.get("name") or row.get("user")), flexible=True),
    Column("ROLE", member("role")),
    Column("SINCE", lambda row: ago(row.get("created_at")), rank=1),
)
BALANCES = (
    Column("CURRENCY", member("currency")),
    Column("AVAILABLE", lambda row: money(row.get("available")), right=True),
    Column("BALANCE", lambda row: money(row.get("balance")), rank=2, right=True),
    Column("HELD", lambda row: money(row.get("held")), rank=3, right=True),
    Column("RUNNING", lambda row: money(row.get("accrued")), rank=4, right=True),
    Column("LASTS", lambda row: until(row.get("exhausts_at")), rank=1),
)
ENTRIES = (
    Column("AT", member("effective_at")),
    Column("WHAT", member("kind")),
    Column("ACCOUNT", member("account"), rank=2),
    Column("AMOUNT", lambda row: money(row.get("amount")), right=True),
    Column("MEMO", member("memo"), rank=1, flexible=True),
)
INVOICES = (
    Column("ID", member("id")),
    Column("NUMBER", member("number"), rank=1),
    Column("STATE", member("state"), rank=2),
    Column("FROM", member("from"), rank=4),
    Column("TO", member("to"), rank=3),
    Column("DUE", lambda row: money(row.get("due")), right=True),
)
PRICES = (
    Column("GPU", lambda row: plain(row.get("sku") or row.get("gpu_model") or row.get("model")) + badge(row)),
    Column("REGION", member("region")),
    Column("TERM", member("term"), rank=2),
    Column("PRICE", price, right=True),
    Column("TIER", member("tier"), rank=3),
    Column("FROM", member("from"), rank=4),
)
WEBHOOKS = (
    Column("ID", member("id")),
    Column("URL", member("url"), flexible=True),
    Column("EVENTS", lambda row: " ".join(row.get("events") or []), rank=1, flexible=True),
    Column("STATE", lambda row: "on" if row.get("enabled") else plain(row.get("disabled_reason")) or "off", rank=2),
)


DELIVERIES = (
    Column("ID", member("id")),
    Column("TYPE", member("type")),
    Column("STATE", member("state")),
    Column("TRIES", member("attempts"), rank=2, right=True),
    Column("ANSWER", lambda row: plain(row.get("last_status")) or plain(row.get("last_error")), rank=1, flexible=True),
    Column("WHEN", lambda row: ago(row.get("delivered_at") or row.get("next_try_at")), rank=3),
)
AUDIT = (
    Column("AT", member("at")),
    Column("WHO", member("actor"), flexible=True),
    Column("WHAT", member("action")),
    Column("ON", member("target"), rank=1, flexible=True),
    Column("WHY", member("why"), rank=2, flexible=True),
)


def lease(row: Row) -> Iterator[tuple[str, str]]:
    yield "lease", f"{row.get('id')}{badge(row)}"
    yield "state", f"{plain(row.get('state'))} since {ago(row.get('state_since') or row.get('created_at'))}"
    yield "request", plain(row.get("request"))
    yield "image", plain(row.get("image"))
    yield "term", _term(row.get("term"))
    yield "name", plain(row.get("name"))
    yield "labels", plain(row.get("labels"))
    yield "waits", _waiting(row) if row.get("state") != "ended" else ""
    yield "starts", eta(row)
    yield "price", price(row)
    cost = row.get("cost") or {}
    used = f" for {cost['billable_seconds']} s" if cost.get("billable_seconds") is not None else ""
    yield "cost", f"{_cost(row)}{used}" if cost else ""
    yield "ended", ended_by(row.get("end_reason"))
    for part in row.get("members") or []:
        gpus = part.get("gpus")
        count = len(gpus) if isinstance(gpus, list) else gpus
        where = " ".join(str(part[name]) for name in ("host", "region", "zone") if part.get(name))
        state = ", ".join(str(part[name]) for name in ("state", "detail") if part.get(name))
        yield f"member {part.get('rank')}", f"{state or 'unknown'}: {count} GPU on {where}"
    for told in row.get("notices") or []:
        yield "notice", " ".join(filter(None, (plain(told.get("detail")), until(told.get("ends_at")))))
    yield "can", " ".join(row.get("actions") or [])


def ending(row: Row) -> Iterator[tuple[str, str]]:
    """What is worth saying of a lease that was told to end."""
    yield from ((title, text) for title, text in lease(row) if title in ("lease", "state", "cost"))


def _endpoints(row: Row) -> str:
    found = row.get("endpoints") or []
    return " ".join(f"{each.get('port')}->{each.get('address')}:{each.get('host_port')}" for each in found)


def _term(term: Any) -> str:
    if not isinstance(term, dict):
        return plain(term)
    parts = [str(term.get("kind")), str(term.get("period") or "")]
    parts += [f"for {show(term['duration_s'])}"] if term.get("duration_s") else []
    parts += [f"from {term['start_at']}"] if term.get("start_at") else []
    parts += [f"until {term['end_at']}"] if term.get("end_at") else []
    return " ".join(filter(None, parts))


def _gpus(row: Row) -> str:
    counts = (row.get("detected") or {}).get("gpus") or {}
    return ", ".join(f"{count} x {model}" for model, count in counts.items())


def _machine(seen: Row) -> str:
    """Return what was detected beside the GPUs, as people say it."""
    parts = [
        f"{seen['cpu_cores']} cores" if seen.get("cpu_cores") else "",
        f"{seen['ram_mib'] // 1024} GiB RAM" if seen.get("ram_mib") else "",
        f"{seen['disk_mib'] // 1024} GiB disk" if seen.get("disk_mib") else "",
        f"driver {seen['driver_version']}" if seen.get("driver_version") else "",
        f"CUDA {seen['cuda_version']}" if seen.get("cuda_version") else "",
        str(seen.get("engine") or ""),
        f"agent {seen['agent_version']}" if seen.get("agent_version") else "",
    ]
    return ", ".join(filter(None, parts))


def host(row: Row) -> Iterator[tuple[str, str]]:
    yield "host", f"{row.get('id')}{badge(row)}"
    yield "name", plain(row.get("name"))
    yield "state", " ".join(filter(None, (plain(row.get("state")), plain(row.get("state_reason")))))
    yield "leases", " ".join(filter(None, (plain(row.get("scheduling")), plain(row.get("scheduling_reason")))))
    yield "drained by", until(row.get("drain_deadline"))
    yield "gpus", _gpus(row)
    yield "heard", ago(row.get("last_heard_at"))
    yield "machine", _machine(row.get("detected") or {})
    for name in ("zone", "region", "tier", "access", "conditions", "price_floor", "hours"):
        yield name.replace("_", " "), plain(row.get(name))
    yield "can", " ".join(row.get("actions") or [])


def anything(row: Row) -> Iterator[tuple[str, str]]:
    """Details of an object that has no view of its own: its members in order, those without a value left out."""
    for name, value in row.items():
        if name not in ("version", "simulated", "actions"):
            yield name.replace("_", " "), readable(name, value, row) + (badge(row) if name == "id" else "")
