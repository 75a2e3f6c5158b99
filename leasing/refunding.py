"""An operator takes the charge of a lease back: with commission and earnings, second by second, once."""

from datetime import datetime
from uuid import UUID

from django.db import transaction

from audit import log
from billing import downtime, pricing
from leasing.moves import WrongState, locked
from leasing.states import State


@transaction.atomic
def refund(*, lease_id: UUID, reason: str, by: str, at: datetime) -> int:
    """Take back all that an ended lease is charged for: use, commitment, holding. Return the micro-units; again 0.

    Raises WrongState for a lease that has not ended or was never active.
    """
    lease = locked(lease_id)
    if lease.state != State.ENDED or lease.ended_at is None:
        raise WrongState("Only what has ended is refunded; end it first.", lease=lease)
    if lease.first_active_at is None:
        raise WrongState("It has never been active, so nothing was metered.", lease=lease)
    back = downtime.void_all(reference=lease.public_id, reason=reason, at=at)
    if back:
        log.record(
            actor=by,
            organization=lease.organization_id,
            action="lease.refunded",
            target=lease.public_id,
            after={"refunded": pricing.money(back, lease.currency)},
            why=reason,
            at=at,
        )
    return back
