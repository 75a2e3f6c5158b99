"""Quotes: an offer made binding. Named devices are held and the price is frozen; redeeming twice is one lease."""

import logging
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from agents import host_events
from agents.models import Device, Host
from apikit.errors import DomainError
from audit import ids
from leasing import assigning, calendar, gpu_quota, quote_allowance, quoted_terms, requesting
from leasing.assigning import Assignment
from leasing.calendar import Seat
from leasing.models import Lease, Quote
from leasing.requesting import Wanted
from outbox import messages
from tenants import organizations
from tenants.models import Organization

log = logging.getLogger(__name__)

MAX_TTL_S = 900
ALIVE = (Host.State.ONLINE, Host.State.SUSPECT)
FAULTY = (Device.Health.LOST, Device.Health.FAILED, Device.Health.REMEDY)
MOST_AT_ONCE = 500
STUCK = "quote_stuck"


class QuoteExpired(DomainError):
    slug = "quote-expired"
    title = "The quote is over"
    status = 410


@transaction.atomic
def make(*, organization_id: UUID, wanted: Wanted, assignment: Assignment, ttl_s: int, at: datetime) -> Quote:
    """Hold the devices of a decision for `ttl_s` seconds. Raises DevicesTaken, gpu_quota.QuotaExceeded or
    quote_allowance.QuoteAllowanceUsedUp.
    """
    organization = Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
    organizations.refuse_banned(organization)
    gpu_quota.check(organization=organization, gpus=len(assignment.seats))
    quote_allowance.check(organization=organization, gpus=len(assignment.seats), ttl_s=ttl_s, at=at)
    quote = Quote.objects.create(
        organization=organization,
        request=str(wanted.request),
        terms=quoted_terms.to_terms(wanted, option_index=assignment.option_index),
        placement=_to_json(assignment),
        option_index=assignment.option_index,
        gpu_count=len(assignment.seats),
        currency=wanted.currency,
        simulated=wanted.currency == settings.SIMULATED_CURRENCY,
        sku=assignment.sku,
        price_micros_per_hour=assignment.micros_per_hour,
        created_at=at,
        expires_at=at + timedelta(seconds=ttl_s),
    )
    start = max(wanted.term.start_at or at, at)
    during = calendar.range_until(start=start, end_at=wanted.term.end_at, stop_grace_s=settings.WORKLOAD_STOP_GRACE_S)
    calendar.bind(seats=assignment.seats, organization_id=organization.pk, during=during, quote=quote)
    return quote


@transaction.atomic
def redeem(*, organization_id: UUID, quote_id: UUID, wanted: Wanted, at: datetime, created_by: str = "") -> Lease:
    """Make the quoted lease on the held devices, at the frozen price; a second time returns the first lease.

    Where a machine of it has died or a GPU has failed since, the lease waits for others, at the same price.
    Raises QuoteExpired, or what request_lease raises for money.
    """
    Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
    quote = Quote.objects.select_for_update(no_key=True).get(pk=quote_id, organization_id=organization_id)
    if quote.lease_id is not None:
        return Lease.objects.get(pk=quote.lease_id)
    if quote.state != Quote.State.OPEN or quote.expires_at <= at:
        raise QuoteExpired(f"It was good until {quote.expires_at:%Y-%m-%dT%H:%M:%SZ}.")
    if wanted.term.end_at and wanted.term.end_at <= at:
        raise QuoteExpired(f"What it offered ended at {wanted.term.end_at:%Y-%m-%dT%H:%M:%SZ}.")
    lease = requesting.request_lease(
        organization_id=organization_id, wanted=wanted, at=at, created_by=created_by, redeems=quote
    )
    calendar.release(at=at, of=Q(quote=quote))
    act = _from_json(quote)
    if _is_well(act):
        lease = assigning.assign(lease_id=lease.pk, assignment=act, at=at)
    quote.state, quote.lease, quote.version = Quote.State.REDEEMED, lease, quote.version + 1
    quote.save(update_fields=["state", "lease", "version"])
    return lease


@transaction.atomic
def cancel(*, quote_id: UUID, at: datetime) -> Quote:
    """Give the held devices back; a quote that is over stays as it is."""
    return _close(quote_id, Quote.State.CANCELLED, at)


def expire_due(*, at: datetime) -> int:
    """Close every quote whose time is over, longest over first; return how many. One that fails stops no other."""
    due = Quote.objects.filter(state=Quote.State.OPEN, expires_at__lte=at).order_by("expires_at", "pk")
    closed = 0
    for quote_id in due.values_list("pk", flat=True)[:MOST_AT_ONCE]:
        try:
            with transaction.atomic():
                _close(quote_id, Quote.State.EXPIRED, at)
            closed += 1
            host_events.settle_alarm(kind=STUCK, subject=ids.encode("quote", quote_id), at=at)
        except Exception as fault:
            # Its devices stay held until somebody looks: the next tick tries again, and a person is told.
            log.exception("quote could not be closed", extra={"quote": ids.encode("quote", quote_id)})
            host_events.raise_alarm(
                kind=STUCK, subject=ids.encode("quote", quote_id), at=at,
                detail=f"An expired quote cannot be closed; its devices stay held: {type(fault).__name__}: {fault}",
            )  # fmt: skip
    return closed


def _close(quote_id: UUID, state: Quote.State, at: datetime) -> Quote:
    quote = Quote.objects.select_for_update(no_key=True).get(pk=quote_id)
    if quote.state != Quote.State.OPEN:
        return quote
    calendar.release(at=at, of=Q(quote=quote))
    quote.state, quote.version = state, quote.version + 1
    quote.save(update_fields=["state", "version"])
    if state == Quote.State.EXPIRED:
        messages.post(
            topic="quote.expired",
            key=f"{quote.public_id}:{quote.version}",
            payload={"id": quote.public_id, "version": quote.version},
            organization_id=quote.organization_id,
            at=at,
        )
    return quote


def _is_well(act: Assignment) -> bool:
    """Tell whether every machine and GPU of an assignment can still be used."""
    devices = {seat.device_id for seat in act.seats}
    well = Device.objects.filter(pk__in=devices, present=True, host__state__in=ALIVE).exclude(health__in=FAULTY)
    return well.count() == len(devices)


def _to_json(assignment: Assignment) -> dict[str, Any]:
    return {
        "prices": {str(rank): list(price) for rank, price in assignment.prices.items()},
        "facts": assignment.facts,
        "seats": [
            {
                "rank": seat.rank,
                "host": str(seat.host_id),
                "device": str(seat.device_id),
                "units": list(seat.units),
                "mode": str(seat.mode),
            }
            for seat in assignment.seats
        ],
    }


def _from_json(quote: Quote) -> Assignment:
    held = quote.placement
    return Assignment(
        option_index=0,  # the lease asks for the one alternative that was quoted
        seats=tuple(
            Seat(
                seat["rank"],
                UUID(seat["host"]),
                UUID(seat["device"]),
                (seat["units"][0], seat["units"][1]),
                seat["mode"],
            )
            for seat in held["seats"]
        ),
        sku=quote.sku,
        prices={int(rank): (price[0], price[1]) for rank, price in held["prices"].items()},
        facts={**held["facts"], "quote": quote.public_id},
    )
