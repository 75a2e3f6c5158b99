"""A refusal as the API shows it: a sentence, counts per constraint, what would help, and when it can start."""

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from apikit.money import Money
from scheduler.placement import Ask, Refusal, Relaxation
from scheduler.placement.reasons import money_text
from scheduler.pool import Kept, Pool

GOOD_FOR_S = 20
FAR_S = 253_370_764_800  # the year 9999, in place of for ever
MOST_A_PASS = 16
MOST_KEPT = 2000
CAP = {
    "en": " It starts by itself once the price is {cap} or lower; it is {now} now.",
    "zh": "价格降至 {cap} 或以下时自动开始；当前为 {now}。",
}


def explained(refusal: Refusal, *, currency: str) -> dict[str, Any]:
    """Return a refusal as data, and as a sentence. price: there if its cap is among what keeps it waiting."""
    earliest = refusal.earliest_s
    dearer = next((reason for reason in refusal.reasons if reason.code == "price"), None)
    prices = {"cap": int(dearer.need), "now": int(dearer.have)} if dearer else {}
    said = {name: f"{money_text(micros)} {currency}" for name, micros in prices.items()}
    return {
        "text": refusal.text("en") + (CAP["en"].format(**said) if said else ""),
        # kept, since the same facts are not; the doors show one of the two
        "text_zh": refusal.text("zh") + (CAP["zh"].format(**said) if said else ""),
        "code": "no_capacity",
        "hosts_with_model": refusal.hosts_with_model,
        "counts": [
            {"code": reason.code, "hosts": reason.hosts, "need": reason.need, "have": reason.have}
            for reason in refusal.reasons
        ],
        "would_help": [
            {"constraint": help_.constraint, "value": help_.value, "request": help_.what}
            for help_ in refusal.relaxations
        ],
        "earliest": instant(earliest) if earliest else None,
        "price": {name: Money(micros, currency).to_json() for name, micros in prices.items()} or None,
    }


def certain(promise: Kept | None) -> dict[str, Any] | None:
    """Return the ETA of a lease that has seats from a known second on, None without."""
    return None if promise is None else {"at": instant(promise.start_s), "certainty": "certain"}


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(min(second, FAR_S), UTC)


def instant(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Helps:
    """What would help, by kind of ask: found out for a few in each pass, and good for some seconds."""

    known: dict[Ask, tuple[float, Refusal, tuple[Relaxation, ...]]] = field(default_factory=dict)
    left: int = 0
    complete: bool = True  # nothing in this pass was left out

    def begin(self) -> None:
        self.left, self.complete = MOST_A_PASS, True
        if len(self.known) > MOST_KEPT:
            self.known.clear()

    def add(self, ask: Ask, refusal: Refusal, pool: Pool) -> Refusal:
        """Return the refusal with what would help, where that is known or there is time to find it out."""
        kind = replace(pool.general(ask), now_s=0, start_s=0, until_s=None)
        found = self.known.get(kind)
        if found and found[1] == refusal and time.monotonic() - found[0] < GOOD_FOR_S:
            return replace(refusal, relaxations=found[2])
        if self.left == 0:
            self.complete = False
            return replace(refusal, relaxations=found[2]) if found else refusal
        self.left -= 1
        full = pool.explained(ask, refusal)
        self.known[kind] = (time.monotonic(), refusal, full.relaxations)
        return full
