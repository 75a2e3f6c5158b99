"""Verify a usage receipt without us: recompute the charge from its events, and check who signed it. Pure.

`python -m billing.receipt_check FILE [PUBLIC_KEY_HEX]`; `gpuyard receipt verify` calls `verify`.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from billing import pricing, timeline

VERSION = 1
KEY_BYTES = 32  # of an Ed25519 public key


def canonical(receipt: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: everything but the signature, keys sorted, no spaces, UTF-8."""
    signed = {key: value for key, value in receipt.items() if key != "signature"}
    return json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def verify(receipt: Mapping[str, Any], *, public_key_hex: str | None = None) -> list[str]:
    """Return what is wrong with a receipt: nothing when its sums follow from its events (and its signature fits).

    public_key_hex: the platform's published Ed25519 key; None leaves the signature unchecked.
    """
    if receipt.get("version") != VERSION:
        return [f"version {receipt.get('version')!r} is not {VERSION}"]
    faults = [] if public_key_hex is None else _signature_faults(receipt, public_key_hex)
    try:
        return [*faults, *_sum_faults(receipt)]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return [*faults, f"it cannot be recomputed: {error!r}"]


def _sum_faults(receipt: Mapping[str, Any]) -> list[str]:
    charged, seconds = recompute(receipt)
    faults = []
    if charged != receipt["charged_micros"]:
        faults.append(f"charged {receipt['charged_micros']}, its events give {charged}")
    if seconds != receipt["seconds"]:
        faults.append(f"{receipt['seconds']} s, its events give {seconds} s")
    return faults


def recompute(receipt: Mapping[str, Any]) -> tuple[int, int]:
    """Return (micro-units, usable seconds) that follow from the events of a receipt."""
    until_s = _second(receipt["until"])
    facts = dict(enumerate(receipt["facts"], start=1))
    numerators: dict[int, int] = defaultdict(int)
    last: dict[int, tuple[int, int, int]] = {}
    active_s: dict[int, int] = defaultdict(int)
    for member, lane in sorted({(f["member"], f["lane"]) for f in facts.values() if f["begins"]}):
        for span in _spans(facts, member, lane):
            fact = facts[span.begins]
            for start_s, end_s, rate in _pieces(span, fact, until_s):
                usable_s = end_s - start_s - _voided_s(receipt, member, span.use, start_s, end_s)
                numerators[fact["meter"]] += rate * usable_s
                if span.use == "active":
                    active_s[member] += usable_s
                    last[member] = max(last.get(member, (0, 0, 0)), (start_s, fact["meter"], rate))
    seconds = max(active_s.values(), default=0)
    missing_s = receipt["minimum_s"] - seconds if receipt["ended_by"] == "tenant" and seconds else 0
    for _, meter, rate in last.values():
        numerators[meter] += rate * max(0, missing_s)
    for meter, num in receipt.get("minimum_not_charged", ()):  # the wallet did not have it
        numerators[meter] -= num
    waived = set(receipt["waived_meters"])
    return sum(pricing.charge(num) for meter, num in numerators.items() if meter not in waived), seconds


def _spans(facts: Mapping[int, Mapping[str, Any]], member: int, lane: str) -> tuple[timeline.Span, ...]:
    own = [
        timeline.Fact(f["seq"], _second(f["at"]), f["use"], number if f["begins"] else None)
        for number, f in facts.items()
        if f["member"] in (member, None) and f["lane"] in (lane, "")
    ]
    return timeline.fold(own).spans


def _pieces(span: timeline.Span, fact: Mapping[str, Any], until_s: int) -> list[tuple[int, int, int]]:
    """Return (start, end, rate) of a span: one piece, or one per published price where the lease follows the market."""
    prices = [(_second(start), micros) for start, micros in fact["prices"]]
    found = []
    for start_s, end_s in timeline.cut(span, [start for start, _ in prices[1:]]):
        current = [micros for from_s, micros in prices if from_s <= start_s] or [prices[0][1]]
        ends_s = until_s if end_s is None else min(end_s, until_s)
        found.append((start_s, max(start_s, ends_s), current[-1] * fact["quantity"]))
    return found


def _voided_s(receipt: Mapping[str, Any], member: int, use: str, start_s: int, end_s: int) -> int:
    voids = [(_second(a), _second(b)) for m, a, b in receipt["voids"] if m == member and use == "active"]
    return sum(max(0, min(end_s, b) - max(start_s, a)) for a, b in voids)


def _second(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def _signature_faults(receipt: Mapping[str, Any], public_key_hex: str) -> list[str]:
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    try:
        VerifyKey(bytes.fromhex(public_key_hex)).verify(canonical(receipt), bytes.fromhex(receipt["signature"]))
    except (BadSignatureError, ValueError, TypeError, KeyError):
        return ["the signature is not the platform's"]
    return []


if __name__ == "__main__":
    found = verify(json.loads(Path(sys.argv[1]).read_text()), public_key_hex=sys.argv[2] if sys.argv[2:] else None)
    print("\n".join(found) or "The receipt is right.")
    sys.exit(1 if found else 0)
