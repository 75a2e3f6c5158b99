"""What the core last told: read again whenever the file is another one; of another boot, it is none."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.node import clocks


@dataclass(frozen=True)
class Order:
    """Of one container. deadline_s: seconds since boot."""

    name: str
    deadline_s: float
    grace_s: int
    peers: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Orders:
    host: str = ""
    workloads: tuple[Order, ...] = field(default=())


def read(path: Path) -> Orders:
    """Return what stands in the file; nothing while there is none, where it cannot be read, or of an earlier boot."""
    try:
        data = json.loads(path.read_text())
        if data["boot_id"] != clocks.boot_id():
            return Orders()
        return Orders(host=str(data["host"]), workloads=tuple(_order(row) for row in data["workloads"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # the agent's user alone can have written nonsense
        return Orders()


def _order(row: dict[str, Any]) -> Order:
    return Order(
        name=str(row["name"]),
        deadline_s=float(row["deadline_s"]),
        grace_s=int(row["grace_s"]),
        peers=tuple((str(address), int(first), int(last)) for address, first, last in row["peers"]),
    )
