"""A tenant's request: understood, priced, paid for in advance, and written down as a pending lease."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings

from apikit import statements, transactions
from apikit.errors import InvalidInput
from apikit.statements import Statement, columns_of
from audit import ids
from billing import budgets, holds
from leasing import (
    catalogue_view,
    gpu_quota,
    image_services,
    images,
    moves,
    promised_price,
    secrets_at_start,
    terms,
    volume_wishes,
    volumes,
)  # fmt: skip
from leasing.grammar import GrammarError, Option, Request, from_fields, parse
from leasing.models import Lease, Quote
from leasing.states import OnInterrupt
from leasing.terms import Term, TermError
from tenants import organizations
from tenants.models import Organization

FOUR_FIELDS = ("gpu_model", "node_count", "gpu_count")
CONTAINER = ("command", "env", "ports", "ssh_keys", "secrets", "registry_secret", "jupyter", "health", "read_only")
# While it waits the money stays held: a lease must not start that cannot be paid. Ending it gives the hold back.
KEEP_HOLD = timedelta(days=366)
MANNERS = ("name", "labels", "on_interrupt", "on_exit", "notice_s", "may_move")


@dataclass(frozen=True)
class Wanted:
    """A request that was understood: what to place, what to start, for how long, and in which money."""

    request: Request
    image: images.Resolved
    term: Term
    currency: str
    regions: tuple[str, ...]  # where it may stand: those of its currency and its residency wishes
    constraints: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)  # those named in CONTAINER
    manners: Mapping[str, Any] = field(default_factory=dict)  # name, labels, on_interrupt, on_exit, notice_s
    volumes: tuple[volume_wishes.VolumeWish, ...] = ()
    read_against: catalogue_view.View | None = field(default=None, compare=False, repr=False)

    @property
    def price_term(self) -> str:
        if self.term.kind == "spot":
            return f"spot:{self.manners.get('notice_s', promised_price.DEFAULT_NOTICE_S)}"
        return f"reserved:{self.term.period}" if self.term.kind == "reserved" else self.term.kind


def understand(*, organization: Organization, asked: Mapping[str, Any], at: datetime) -> Wanted:
    """Translate the fields of POST /leases (already of the right types) into a Wanted.

    Raises InvalidInput with a pointer for each fault of meaning: grammar, image, term, regions, currency.
    """
    named = [] if asked.get("bare") else _named_image(asked)
    names, *found = statements.run(catalogue_view.NAMES, *(images.question(text, organization.pk) for _, text in named))
    view = catalogue_view.named(names)
    request = _request(asked, view)
    bare = bool(asked.get("bare"))
    image = images.NONE_YET
    for (pointer, text), rows in zip(named, found, strict=True):
        image = images.answered(rows, text=text, organization_id=organization.pk, pointer=pointer)
    secrets_at_start.check(organization=organization, asked=asked)
    image_services.check(image=image, asked=asked)
    term = _term(asked, at)
    constraints = dict(asked.get("constraints") or {})
    if bare:
        _check_bare(request, asked)
        constraints |= {"bare": True, "whole_machine": True}
    currency, regions = _places(organization, request, constraints, view)
    wishes: tuple[volume_wishes.VolumeWish, ...] = ()
    if asked.get("volumes"):
        wishes, regions = volume_wishes.understand(
            organization_id=organization.pk, asked=asked["volumes"], request=request, currency=currency,
            regions=regions, at=at,
        )  # fmt: skip
    cap = constraints.pop("max_price", None)
    if cap is not None:
        if cap["currency"] != currency:
            raise _invalid("/constraints/max_price/currency", "bad_value", f"These GPUs are sold in {currency}.")
        constraints["max_price_micros"] = cap["amount_micros"]
    return Wanted(
        request, image, term, currency, regions, constraints, chosen(asked, CONTAINER),
        chosen(asked, MANNERS) | ({"on_interrupt": asked.get("on_interrupt") or OnInterrupt.END} if bare else {}),
        wishes, view,
    )  # fmt: skip


def _check_bare(request: Request, asked: Mapping[str, Any]) -> None:
    """A whole machine has no image and no container, and cannot be moved: what was done to it by hand stays on it."""
    for name in ("image", "image_id", "volumes", *(name for name in CONTAINER if name != "ssh_keys")):
        if asked.get(name):
            raise _invalid(f"/{name}", "exactly_one_of", "A whole machine starts no image: leave this out.")
    if any(option.slice for option in request.options):
        raise _invalid("/request", "bad_value", "A whole machine has whole GPUs.")
    if asked.get("on_interrupt") == OnInterrupt.RESTART_ELSEWHERE:
        raise _invalid("/on_interrupt", "bad_value", "A whole machine is not moved: end or wait_for_host.")
    if asked.get("may_move"):
        raise _invalid("/may_move", "bad_value", "A whole machine is not moved.")
    if asked.get("on_exit") == "restart":
        raise _invalid("/on_exit", "bad_value", "A whole machine has no command that could exit.")


def named_image(*, organization: Organization, asked: Mapping[str, Any]) -> images.Resolved | None:
    """Return the image that `image` or `image_id` names, or None if neither is there. Raises InvalidInput."""
    for pointer, text in _named_image(asked):
        return images.resolve(text=text, organization_id=organization.pk, pointer=pointer)
    return None


def _named_image(asked: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pointer and the text of what names an image, if any does."""
    return [(f"/{name}", asked[name]) for name in ("image", "image_id") if asked.get(name) is not None][:1]


def _request(asked: Mapping[str, Any], view: catalogue_view.View) -> Request:
    text = asked.get("request")
    try:
        if isinstance(text, str):
            return parse(text, view.catalogue)
        if text is not None:
            return Request.from_json(text, view.catalogue)
        fields = {name: asked[name] for name in FOUR_FIELDS if asked.get(name) is not None}
        return from_fields(fields, view.catalogue)
    except GrammarError as fault:
        pointer = f"/request/{fault.field}" if fault.field and text is not None else "/request"
        pointer = pointer if text is not None else f"/{fault.field or 'gpu_model'}"
        raise InvalidInput(
            fault.detail,
            errors=[
                {
                    "pointer": pointer,
                    "code": fault.kind,
                    "detail": fault.detail,
                    "position": fault.position,
                    "nearest": list(fault.nearest),
                }
            ],
        ) from None


def read_request(asked: Any) -> Request:
    """Return the request that the field `request` says, a line or a structure. Raises InvalidInput."""
    return _request({"request": asked}, catalogue_view.current())


def check_places(request: Request, *, currency: str, regions: Collection[str]) -> None:
    """Raise InvalidInput if an alternative names a region where this money or these residency wishes do not reach."""
    known = catalogue_view.current().currency_of_region
    for option in request.options:
        if option.region and (known[option.region] != currency or option.region not in regions):
            raise _invalid("/request", "bad_value", f"This lease may stand in {', '.join(regions)}.")


def options(text: str) -> tuple[Option, ...]:
    """Return the alternatives of a request line that came as a query parameter. Raises InvalidInput."""
    try:
        return parse(text, catalogue_view.current().catalogue).options
    except GrammarError as fault:
        error = {"parameter": "request", "code": fault.kind, "detail": fault.detail, "position": fault.position}
        raise InvalidInput(fault.detail, errors=[{**error, "nearest": list(fault.nearest)}]) from None


def _term(asked: Mapping[str, Any], at: datetime) -> Term:
    name = "lease_term" if asked.get("lease_term") is not None else "term"
    given = asked.get(name)
    try:
        if given is None:
            return Term()
        return terms.checked(terms.from_text(given) if isinstance(given, str) else Term(**given), at=at)
    except TermError as fault:
        # Of a text, the fault is in the text: it has no members that could be pointed at.
        pointer = f"/{name}" if isinstance(given, str) else f"/{name}{fault.pointer}"
        raise _invalid(pointer, fault.code, fault.detail) from None


def _places(
    organization: Organization, request: Request, constraints: Mapping[str, Any], view: catalogue_view.View
) -> tuple[str, tuple[str, ...]]:
    """Return the money and the regions. Regions that are named decide the currency, else it is the organization's."""
    known = view.currency_of_region
    residency = constraints.get("regions") or []
    for index, region in enumerate(residency):
        if region not in known:
            raise _invalid(
                f"/constraints/regions/{index}", "bad_value", f"No such region; there are {', '.join(known)}."
            )
    named = {option.region for option in request.options if option.region} or set(residency)
    currencies = {known[region] for region in named} or {organization.currency}
    if len(currencies) > 1:
        raise _invalid(
            "/request", "bad_value", f"Its regions sell in different currencies: {', '.join(sorted(currencies))}."
        )
    (currency,) = currencies
    regions = tuple(
        region for region, money in known.items() if money == currency and (not residency or region in residency)
    )
    return currency, regions


def _invalid(pointer: str, code: str, detail: str) -> InvalidInput:
    return InvalidInput(detail, errors=[{"pointer": pointer, "code": code, "detail": detail}])


def draft(*, organization: Organization, wanted: Wanted, at: datetime, priced_at: datetime | None = None) -> Lease:
    """Return the lease that this request would be, not saved and not paid for: what plans and quotes are made of."""
    return Lease(
        pk=ids.new(),
        organization=organization,
        state_since=at,
        request=str(wanted.request),
        request_options=wanted.request.to_json(),
        gpu_count=max(option.nodes * option.count for option in wanted.request.options),
        constraints={**wanted.constraints, "regions": list(wanted.regions)},
        image=wanted.image.asked,
        image_reference=wanted.image.reference,
        image_needs=wanted.image.needs,
        command=image_services.command_of(wanted.image, wanted.container),
        env={**wanted.image.env, **wanted.container.get("env", {})},
        ports=image_services.ports_of(wanted.image, wanted.container),
        service_ports=image_services.named_ports(wanted.image, wanted.container),
        jupyter=wanted.container.get("jupyter", False),
        health=wanted.container.get("health", wanted.image.health),
        read_only=wanted.container.get("read_only", False),
        ssh_keys=wanted.container.get("ssh_keys", []),
        secrets=wanted.container.get("secrets", []),
        registry_secret=wanted.container.get("registry_secret", ""),
        volumes=volumes.plan(wanted.volumes),
        **wanted.manners,
        min_runtime_s=settings.RECLAIM_MIN_RUNTIME_S,
        term_kind=wanted.term.kind,
        period=wanted.term.period,
        renew=wanted.term.renew,
        start_at=wanted.term.start_at,
        end_at=wanted.term.end_at,
        duration_s=wanted.term.duration_s,
        currency=wanted.currency,
        simulated=wanted.currency == settings.SIMULATED_CURRENCY,
        priced_at=priced_at or at,
        requested_at=at,
        check_at=at,
    )


def first_hold_micros(*, wanted: Wanted, at: datetime) -> int:
    """Return what is held when the request is accepted: its first minutes at the highest price it could be given."""
    return _first_hold_micros(wanted, statements.run(*_prices(wanted, at)))


def _prices(wanted: Wanted, at: datetime) -> list[Statement]:
    return promised_price.tops(
        options=wanted.request.options, view=wanted.read_against or catalogue_view.current(), regions=wanted.regions,
        currency=wanted.currency, term=wanted.price_term, at=at,
    )  # fmt: skip


def _first_hold_micros(wanted: Wanted, answers: list[list[tuple[Any, ...]]]) -> int:
    per_hour = promised_price.highest(
        options=wanted.request.options, answers=answers, currency=wanted.currency
    )  # fmt: skip
    return per_hour * settings.REQUEST_HOLD_MINUTES // 60


@transactions.joins
def request_lease(
    *, organization_id: UUID, wanted: Wanted, at: datetime, created_by: str = "", redeems: Quote | None = None
) -> Lease:
    """Write a pending lease at today's prices (or the quote's), and hold the money for its first minutes.

    Raises organizations.Banned, gpu_quota.QuotaExceeded, budgets.BudgetExceeded, holds.InsufficientFunds,
    NothingForSale or volumes.VolumeInUse; nothing has been written then.
    """
    if wanted.constraints.get("bare") and not wanted.container.get("ssh_keys"):
        raise _invalid("/ssh_keys", "required", "A whole machine is entered over SSH: give a public key.")
    priced_at = redeems.created_at if redeems else at
    # The lock makes "count, then insert" one step: without it two requests could each see the last GPU of the quota.
    owner, held, capped, *prices = statements.run(
        _lock(organization_id),
        gpu_quota.held(organization_id, but=redeems),
        budgets.capping(owner=organization_id, currency=wanted.currency),
        *_prices(wanted, priced_at),
    )
    organization = columns_of(Organization, "o").read(owner[0])
    assert organization is not None
    organizations.refuse_banned(organization)
    lease = draft(organization=organization, wanted=wanted, at=at, priced_at=priced_at)
    lease.created_by = created_by
    gpu_quota.refuse_if_over(organization, in_use=held[0][0], gpus=lease.gpu_count)
    if capped:
        budgets.refuse_if_exceeded(owner=organization.pk, currency=lease.currency, labels=lease.labels, at=at)
    lease.held_micros = _first_hold_micros(wanted, prices)
    holds.place(
        owner=organization.pk, currency=lease.currency, amount_micros=lease.held_micros, reference=lease.public_id,
        expires_at=at + KEEP_HOLD, at=at,
    )  # fmt: skip
    taken = volumes.take(organization, wanted.volumes, lease=lease, at=at) if wanted.volumes else []
    lease = moves.create(lease, reason="requested", at=at)
    volumes.give(taken, lease=lease)
    return lease


def _lock(organization_id: UUID) -> Statement:
    columns = columns_of(Organization, "o")
    return Statement(
        f"SELECT {columns.sql} FROM tenants_organization o WHERE o.id = %s FOR NO KEY UPDATE",  # noqa: S608 -- names of columns
        [organization_id],
    )


def chosen(said: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: said[name] for name in names if said.get(name) is not None}
