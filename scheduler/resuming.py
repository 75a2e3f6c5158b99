"""What a lease would get that gave its GPUs up and resumes: decided as if it came last, and nothing is written."""

from datetime import datetime
from typing import Any

from django.conf import settings

from leasing import means, parking
from leasing.models import Lease
from scheduler import asks, explaining, planning, second_opinion, waiting_line
from scheduler.placement import Placement
from scheduler.planning import Decision


def plan(*, lease: Lease, at: datetime) -> dict[str, Any]:
    """Return where it would start now and at which price, or why it would wait. Raises NothingForSale."""
    decision = _consider(lease, at=at)
    draft = decision.draft
    common = {
        "request": draft.request,
        "currency": draft.currency,
        "first_hold_micros": means.dearest_micros(draft) * settings.REQUEST_HOLD_MINUTES // 60,
    }
    if not isinstance(decision.answer, Placement):
        why = explaining.explained(decision.answer, currency=draft.currency)
        start = planning.start_of(decision, why)
        return {**common, "placement": None, "start": start, "why_waiting": why, "queue_place": decision.queue_place}
    act = asks.assignment(draft, decision.answer, decision.pool, at=at)
    return {
        **common,
        "placement": [planning.member(decision, rank) for rank in range(len(decision.answer.members))],
        "start": {"at": at, "certainty": "certain"},
        "price_micros_per_hour": act.micros_per_hour,
        "why_waiting": None,
        "queue_place": None,
    }


def _consider(lease: Lease, *, at: datetime) -> Decision:
    draft = Lease(**{field.attname: getattr(lease, field.attname) for field in Lease._meta.concrete_fields})
    draft.priced_at = parking.priced_at_when_resumed(lease, at=at)
    pool, waiting = planning.after_queue(term=draft.price_term, currency=draft.currency, at=at)
    ask = asks.ask_for(draft, pool, at=at, grace_s=int(settings.WORKLOAD_STOP_GRACE_S))
    answer = pool.decide(ask)
    if isinstance(answer, Placement):
        second_opinion.check(pool, ask, answer)
    place = waiting_line.ordered([*waiting, draft], at=at).index(draft) + 1
    return Decision(draft, answer, pool, place, waiting, at)
