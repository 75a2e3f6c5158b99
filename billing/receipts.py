"""Usage receipts: every fact about a reference, what it cost, and our signature, so that anybody can recompute it."""

from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from nacl.signing import SigningKey

from apikit.errors import NotFound
from apikit.instants import instant
from billing import costs, endings, segments
from billing.models import Meter, MeterFact, Void
from billing.receipt_check import VERSION, canonical


def export(*, reference: str, at: datetime) -> dict[str, Any]:
    """Return the signed receipt of a reference until `at`. Raises NotFound if nothing was ever metered of it."""
    meters = list(Meter.objects.filter(reference=reference).select_related("payer").order_by("pk"))
    if not meters:
        raise NotFound("Nothing of this has been metered.")
    cost = costs.of_reference(reference=reference, at=at)
    number = {meter.pk: place for place, meter in enumerate(meters)}
    ended_by = meters[0].ended_by
    receipt: dict[str, Any] = {
        "version": VERSION,
        "reference": reference,
        "currency": cost.currency,
        "simulated": any(meter.simulated for meter in meters),
        "until": instant(at),
        "ended_by": ended_by,
        "facts": [_fact(fact, number) for fact in _facts(reference)],
        "voids": _voids(meters),
        "minimum_s": _minimum_s(reference) if ended_by == endings.TENANT else 0,
        "minimum_not_charged": _not_charged(meters, number),
        "waived_meters": [number[meter.pk] for meter in meters if meter.waived],
        "seconds": cost.seconds,
        "charged_micros": cost.charged_micros,
    }
    receipt["signature"] = _key().sign(canonical(receipt)).signature.hex()
    return receipt


def public_key_hex() -> str:
    """Return the key by which receipts are verified."""
    return bytes(_key().verify_key).hex()


def _key() -> SigningKey:
    return SigningKey(bytes.fromhex(settings.CONTROL_SIGNING_KEY))


def _facts(reference: str) -> list[MeterFact]:
    return list(MeterFact.objects.filter(reference=reference).select_related("price_version").order_by("seq", "pk"))


def _fact(fact: MeterFact, number: dict[int, int]) -> dict[str, Any]:
    return {
        "seq": fact.seq,
        "member": fact.member,
        "lane": fact.lane,
        "begins": fact.begins,
        "use": fact.use or None,
        "at": _instant(fact.at_s),
        "quantity": fact.quantity,
        "meter": None if fact.meter_id is None else number[fact.meter_id],
        "prices": _prices(fact),
    }


def _prices(fact: MeterFact) -> list[tuple[str, int]]:
    """Return [(from, micro-units per unit and hour)]: the frozen price, or every version that the market has had."""
    version = fact.price_version
    if version is None:
        return []
    versions = sorted(version.series.versions.all(), key=lambda v: v.during.lower) if fact.follows else [version]
    return [(instant(v.during.lower), v.price_micros_per_hour) for v in versions]


def _voids(meters: list[Meter]) -> list[tuple[int, str, str]]:
    voids = Void.objects.filter(meter__in=meters).select_related("meter").order_by("start_s", "pk")
    found = {(void.meter.member, _instant(void.start_s), _instant(void.end_s)) for void in voids}
    return sorted(found)


def _not_charged(meters: list[Meter], number: dict[int, int]) -> list[tuple[int, int]]:
    """Return (meter, numerator) of what is missing of a minimum, because the wallet did not have it."""
    due = endings.least_nums(segments.read(meters).values())
    found = [(number[meter.pk], due.get(meter.pk, 0) - meter.minimum_num) for meter in meters]
    return [(place, num) for place, num in found if num > 0]


def _minimum_s(reference: str) -> int:
    last = MeterFact.objects.filter(reference=reference, begins=True, use="active").order_by("-seq").first()
    return 0 if last is None or last.price_version is None else last.price_version.minimum_s


def _instant(second: int) -> str:
    return instant(datetime.fromtimestamp(second, UTC))
