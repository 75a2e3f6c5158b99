"""A request as a quote keeps it, as JSON, and read again when it is redeemed."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from leasing import catalogue_view, images
from leasing.grammar import Request
from leasing.requesting import CONTAINER, MANNERS, Wanted, chosen
from leasing.terms import Term


def to_terms(wanted: Wanted, *, option_index: int) -> dict[str, Any]:
    """Return the request as JSON, with the one alternative that was chosen: what a quote keeps."""
    return {
        "request": Request(options=(wanted.request.options[option_index],)).to_json(),
        "image": asdict(wanted.image),
        "term": wanted.term.to_json(),
        "currency": wanted.currency,
        "regions": list(wanted.regions),
        "constraints": dict(wanted.constraints),
        "container": dict(wanted.container),
        "manners": dict(wanted.manners),
    }


def from_terms(kept: Mapping[str, Any], *, image: images.Resolved | None, said: Mapping[str, Any]) -> Wanted:
    """Return what `to_terms` kept. image: in place of the quoted one; said: container and manners that may be added."""
    fields = {**kept["term"], "period": kept["term"]["period"] or ""}
    for name in ("start_at", "end_at"):
        fields[name] = datetime.fromisoformat(fields[name]) if fields[name] else None
    return Wanted(
        request=Request.from_json(kept["request"], catalogue_view.current().catalogue),
        image=image or images.Resolved(**kept["image"]),
        term=Term(**fields),
        currency=kept["currency"],
        regions=tuple(kept["regions"]),
        constraints=kept["constraints"],
        container={**kept["container"], **chosen(said, CONTAINER)},
        manners={**kept["manners"], **chosen(said, MANNERS)},
    )
