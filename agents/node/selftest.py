"""The answer to the server's challenge: each device that answers proves it with the product of a seed.

The product is in exact integers and is made by the CPU here: the core loads no GPU library, and simulated devices have
nothing else. Figures stay empty until they are measured on the device; nothing is made up.
"""

from typing import Any

from agents.node.drivers import Driver
from agents.node.engines import Engine, EngineError
from agents.protocol import selftest_proof

DEVICES_MAX = 64


def answer(wish: dict[str, Any], *, driver: Driver, engine: Engine) -> dict[str, Any]:
    """Return the facts of a `selftest` event. A device that is not well gives no proof."""
    seed = str(wish.get("seed", ""))
    asked = wish.get("devices") if isinstance(wish.get("devices"), list) else []
    states = {row["uuid"]: str(row.get("state", "")) for row in driver.sample()}
    well = [uuid for uuid in (asked or [])[:DEVICES_MAX] if states.get(uuid) == "ok"]
    sick = [f"{uuid}: {states.get(uuid, 'not there')}" for uuid in asked or [] if uuid not in well]
    return {
        "id": wish.get("id"),
        "seed": seed,
        "simulated": driver.simulated,
        "checks": [
            _check("driver", driver.state() in ("ok", "simulated"), driver.state()),
            _check("devices", not sick, "; ".join(sick)),
            _engine(engine),
        ],
        "devices": [{"uuid": uuid, "proof": selftest_proof(seed=seed, device=uuid), "figures": {}} for uuid in well],
    }


def _engine(engine: Engine) -> dict[str, Any]:
    try:
        version = engine.version()
    except EngineError as fault:
        return _check("engine", False, str(fault))
    return _check("engine", True, f"{engine.name} {version}")


def _check(check: str, passed: bool, detail: str) -> dict[str, Any]:
    return {"check": check, "passed": passed, "detail": detail[:200]}
