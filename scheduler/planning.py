"""What could be had: offers, plans (dry run), quotes, and "now or not at all". The same engine over the same pool as
placement, less what leases of the queue will take, so that what is shown can be had and nobody overtakes the queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from apikit.errors import DomainError, InvalidInput
from apikit.language import Said
from leasing import assigning, image_services, quoted_terms, quotes, requesting, secrets_at_start
from leasing.calendar import DevicesTaken
from leasing.models import Lease, Quote
from leasing.requesting import Wanted
from scheduler import asks, backfill, explaining, promises, second_opinion, waiting_line
from scheduler import pool as pools
from scheduler.estimating import Estimates
from scheduler.maintenance_ahead import Ahead
from scheduler.overlay import Overlay
from scheduler.placement import Ask, HostView, Option, Placement, Refusal, Want, decide
from scheduler.pool import Pool
from tenants.models import Organization

RACES = 2  # a lost race is decided once more before it is a refusal


class NoCapacity(DomainError):
    """Not to be had now; the facts say why, when, and what would work."""

    slug = "no-capacity"
    title = "There is no room for this now"


class ImageNotRunnable(DomainError):
    slug = "image-not-runnable"
    title = "The image cannot run there"
    status = 422


@dataclass(frozen=True)
class Decision:
    """A draft of the lease with the answer of the engine, and the pool it was decided on."""

    draft: Lease
    answer: Placement | Refusal
    pool: Pool
    queue_place: int  # by the order of service, if it waited
    waiting: list[Lease]  # whom it would come after as far as devices go
    at: datetime


def _grace_s() -> int:
    return int(settings.WORKLOAD_STOP_GRACE_S)


def after_queue(*, term: str, currency: str, at: datetime) -> tuple[Pool, list[Lease]]:
    """Return the pool less what the waiting leases will take, and who waits, in order."""
    overlay = Overlay(at)
    pool = overlay.pool(term, currency)
    waiting = [lease for lease in waiting_line.queue(at=at) if lease.currency == currency]
    for _ in backfill.walk(waiting, overlay, promises.of(waiting), at=at, grace_s=_grace_s()):
        pass  # each takes its part of the overlay
    return pool, waiting


def consider(
    *, organization: Organization, wanted: Wanted, at: datetime, priced_at: datetime | None = None
) -> Decision:
    """Decide for a request as if it came last in the queue; nothing is written."""
    draft = requesting.draft(organization=organization, wanted=wanted, at=at, priced_at=priced_at)
    pool, waiting = after_queue(term=wanted.price_term, currency=wanted.currency, at=at)
    ask = asks.ask_for(draft, pool, at=at, grace_s=_grace_s())
    answer = Ahead(at).decide(ask, pool, pool.decide)
    if isinstance(answer, Placement):
        second_opinion.check(pool, ask, answer)
    return Decision(draft, answer, pool, waiting_line.ordered([*waiting, draft], at=at).index(draft) + 1, waiting, at)


def start_of(decision: Decision, why: Mapping[str, Any]) -> dict[str, Any]:
    """Return when it could start if it waited, last in the queue: certain by known ends, else estimated or unknown."""
    assert isinstance(decision.answer, Refusal)
    if why["earliest"]:
        return {"at": why["earliest"], "certainty": "certain"}
    estimates = Estimates(decision.at)
    for lease in decision.waiting:
        estimates.count(lease)
    return estimates.eta(decision.draft, option_index=decision.answer.option_index)


def refusal(decision: Decision) -> NoCapacity:
    assert isinstance(decision.answer, Refusal)
    why = explaining.explained(decision.answer, currency=decision.draft.currency)
    return NoCapacity(
        Said(why["text"], zh=why["text_zh"]),
        reasons=why["counts"],
        would_help=why["would_help"],
        eta=start_of(decision, why),
    )


@transaction.atomic
def request_now(*, organization: Organization, wanted: Wanted, at: datetime, created_by: str) -> Lease:
    """Lease it at once or raise NoCapacity, and then nothing is written (`if_no_capacity: refuse`)."""
    for _ in range(RACES):
        decision = consider(organization=organization, wanted=wanted, at=at)
        if isinstance(decision.answer, Refusal):
            raise refusal(decision)
        try:
            with transaction.atomic():
                lease = requesting.request_lease(
                    organization_id=organization.pk, wanted=wanted, at=at, created_by=created_by
                )
                act = asks.assignment(lease, decision.answer, decision.pool, at=at)
                return assigning.assign(lease_id=lease.pk, assignment=act, at=at)
        except DevicesTaken:
            continue
    raise NoCapacity("Somebody else took the devices in the same moment.", reasons=[], would_help=[])


@transaction.atomic
def quote(*, organization: Organization, wanted: Wanted, ttl_s: int, at: datetime) -> Quote:
    """Hold what the engine would give, for `ttl_s` seconds. Raises NoCapacity or QuotaExceeded."""
    for _ in range(RACES):
        decision = consider(organization=organization, wanted=wanted, at=at)
        if isinstance(decision.answer, Refusal):
            raise refusal(decision)
        act = asks.assignment(decision.draft, decision.answer, decision.pool, at=at)
        try:
            return quotes.make(organization_id=organization.pk, wanted=wanted, assignment=act, ttl_s=ttl_s, at=at)
        except DevicesTaken:
            continue
    raise NoCapacity("Somebody else took the devices in the same moment.", reasons=[], would_help=[])


@transaction.atomic
def redeem(
    *, organization: Organization, quote: Quote, said: Mapping[str, Any], at: datetime, created_by: str
) -> Lease:
    """Make the quoted lease. said: the fields that may be added now (image if none was quoted, command, name, ...)."""
    image = requesting.named_image(organization=organization, asked=said)
    if image is None and not quote.terms["image"]["reference"] and not quote.terms["constraints"].get("bare"):
        fault = {"pointer": "/image", "code": "required", "detail": "The quote names no image; say which to start."}
        raise InvalidInput("Say which image to start.", errors=[fault])
    secrets_at_start.check(organization=organization, asked=said)
    wanted = quoted_terms.from_terms(quote.terms, image=image, said=said)
    image_services.check(image=wanted.image, asked=said)
    if image is not None and quote.state == Quote.State.OPEN:
        _check_image(organization, quote, wanted, at)
    return quotes.redeem(
        organization_id=organization.pk, quote_id=quote.pk, wanted=wanted, at=at, created_by=created_by
    )


def _check_image(organization: Organization, quote: Quote, wanted: Wanted, at: datetime) -> None:
    """Raise ImageNotRunnable if the held hosts cannot run the image, whatever is free or in service there now."""
    held = {seat["host"] for seat in quote.placement["seats"]}
    pool = pools.load(term=wanted.price_term, currency=wanted.currency, at=at)
    emptied = [
        replace(
            view,
            out_of_service="",
            devices=tuple(replace(device, busy=(), out_of_service="") for device in view.devices),
        )
        for key, view in pool.hosts.items()
        if key.split("/")[0] in held
    ]
    draft = requesting.draft(organization=organization, wanted=wanted, at=at)
    answer = decide(emptied, asks.ask_for(draft, pool, at=at, grace_s=_grace_s()), explain=False)
    if isinstance(answer, Refusal):
        said = Said(answer.text("en"), zh=answer.text("zh"))
        raise ImageNotRunnable(said, reasons=explaining.explained(answer, currency=wanted.currency)["counts"])


def plan(*, organization: Organization, wanted: Wanted, at: datetime) -> dict[str, Any]:
    """Return what would happen to this request: placement, price, first hold, start; and write nothing."""
    decision = consider(organization=organization, wanted=wanted, at=at)
    hold = requesting.first_hold_micros(wanted=wanted, at=at)
    common = {"request": str(wanted.request), "currency": wanted.currency, "first_hold_micros": hold}
    if isinstance(decision.answer, Refusal):
        why = explaining.explained(decision.answer, currency=decision.draft.currency)
        start = start_of(decision, why)
        return {**common, "placement": None, "start": start, "why_waiting": why, "queue_place": decision.queue_place}
    act = asks.assignment(decision.draft, decision.answer, decision.pool, at=at)
    seconds = _length_s(decision.draft, at)
    total = act.micros_per_hour * seconds // 3600 if seconds is not None else None
    return {
        **common,
        "placement": [member(decision, rank) for rank in range(len(decision.answer.members))],
        "start": {"at": (decision.draft.start_at or at), "certainty": "certain"},
        "price_micros_per_hour": act.micros_per_hour,
        "estimated_total_micros": total,
        "why_waiting": None,
        "queue_place": None,
    }


def _length_s(lease: Lease, at: datetime) -> int | None:
    if lease.duration_s is not None:
        return lease.duration_s
    return int((lease.end_at - (lease.start_at or at)).total_seconds()) if lease.end_at else None


def member(decision: Decision, rank: int) -> dict[str, Any]:
    """Return one machine of a decision that found room, as plans show it."""
    assert isinstance(decision.answer, Placement)
    placed = decision.answer.members[rank]
    view = decision.pool.hosts[str(placed.host)]
    host = decision.pool.capacity[UUID(str(placed.host).split("/")[0])]
    return {
        "rank": rank,
        "host": host.public_id,
        "region": view.region,
        "zone": view.zone,
        "gpu_model": view.model,
        "gpus": len(placed.seats),
        "tier": view.tier,
        "price_micros_per_hour": placed.price_micros,
        "driver_version": view.driver_version or None,
        "cuda_version": view.cuda_version or None,
        "simulated": view.simulated,
    }


def offers(
    *, organization: Organization, currency: str, term: str, region: str | None, request: str | None, at: datetime
) -> list[dict[str, Any]]:
    """Return what can be leased now, by model, region and tier: the most in one machine, and in all, at which price.

    Each line was tried on the engine: `most_in_one_machine` GPUs of it can be had at once. With a request in the
    grammar, only kinds that can satisfy one of its alternatives now. Raises InvalidInput for a request it cannot read.
    """
    options = requesting.options(request) if request else None
    pool, _ = after_queue(term=term, currency=currency, at=at)
    kinds = sorted({(v.model, v.region, v.tier) for v in pool.hosts.values() if region in {None, v.region}})
    lines = []
    for model, place, tier in kinds:
        views = [v for v in pool.hosts.values() if (v.model, v.region, v.tier) == (model, place, tier)]
        most = _most_in_one_machine(views, model=model, region=place, organization=organization, at=at)
        if not most or (options is not None and not _satisfies(views, options, organization, at)):
            continue
        answer = decide(views, _ask(model, place, most, organization, at), explain=False)
        assert isinstance(answer, Placement)
        lines.append(
            {
                "request": str(_option_text(model, most, place)),
                "gpu_model": model,
                "region": place,
                "tier": tier,
                "vendor": views[0].vendor,
                "memory_gib": views[0].memory_gib,
                "most_in_one_machine": most,
                "available": _available(views, model=model, region=place, organization=organization, at=at),
                "price_micros_per_hour": answer.members[0].price_micros,
                "currency": currency,
                "simulated": any(view.simulated for view in views),
            }
        )
    return lines


def _satisfies(views: list[HostView], options: Sequence[Option], organization: Organization, at: datetime) -> bool:
    now = pools.seconds(at)
    ask = Ask(options=tuple(options), organization=str(organization.pk), now_s=now, start_s=now)
    return isinstance(decide(views, ask, explain=False), Placement)


def _ask(model: str, region: str, count: int, organization: Organization, at: datetime) -> Ask:
    now = pools.seconds(at)
    return Ask(
        options=(Want(model=model, count=count, region=region),),
        organization=str(organization.pk),
        now_s=now,
        start_s=now,
    )


def _most_in_one_machine(
    views: list[HostView], *, model: str, region: str, organization: Organization, at: datetime
) -> int:
    low, high = 0, max((len(view.devices) for view in views), default=0)
    while low < high:  # feasibility falls with the count, so halving finds the largest
        middle = (low + high + 1) // 2
        found = decide(views, _ask(model, region, middle, organization, at), explain=False)
        low, high = (middle, high) if isinstance(found, Placement) else (low, middle - 1)
    return low


def _available(views: list[HostView], *, model: str, region: str, organization: Organization, at: datetime) -> int:
    return sum(
        _most_in_one_machine([view], model=model, region=region, organization=organization, at=at) for view in views
    )


def _option_text(model: str, count: int, region: str) -> str:
    return f"{model}{f' x{count}' if count > 1 else ''} @{region}"
