"""How long an organization may hold GPUs by quotes that it does not redeem: they cost it nothing, others their turn.

Decision 0012: in any 24 hours, half an hour of its whole GPU quota. What was redeemed counts nothing. A quote counts
for all of its time, also one that is cancelled early: who cancels and asks anew would hold the devices for ever.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings

from apikit.errors import DomainError
from leasing.models import Quote
from tenants.models import Organization

WINDOW = timedelta(days=1)


class QuoteAllowanceUsedUp(DomainError):
    slug = "quote-allowance-used-up"
    title = "Too much was held by quotes that were not redeemed"


def check(*, organization: Organization, gpus: int, ttl_s: int, at: datetime) -> None:
    """Raise QuoteAllowanceUsedUp if `gpus` for `ttl_s` are too much. The caller holds the organization's lock."""
    allowed = organization.gpu_quota * settings.QUOTE_HOLD_S_A_DAY
    unredeemed = Quote.objects.filter(organization=organization, created_at__gt=at - WINDOW).exclude(
        state=Quote.State.REDEEMED
    )
    held = [
        (created_at, count * int((expires_at - created_at).total_seconds()))
        for created_at, expires_at, count in unredeemed.order_by("created_at").values_list(
            "created_at", "expires_at", "gpu_count"
        )
    ]
    used, asked = sum(gpu_s for _, gpu_s in held), gpus * ttl_s
    if used + asked <= allowed:
        return
    refusal = QuoteAllowanceUsedUp(
        f"Quotes that were not redeemed have held {used} GPU-seconds within 24 hours, and {asked} more were asked for;"
        f" {allowed} are allowed. Redeem one, ask for a shorter time, or lease at once.",
        allowed_gpu_s=allowed,
        used_gpu_s=used,
        asked_gpu_s=asked,
    )
    refusal.retry_after_s = _free_in_s(held, needed=used + asked - allowed, at=at)
    raise refusal


def _free_in_s(held: Iterable[tuple[datetime, int]], *, needed: int, at: datetime) -> int | None:
    """Return after how many seconds so much has left the window; None if that never suffices."""
    for created_at, gpu_s in held:
        needed -= gpu_s
        if needed <= 0:
            return max(1, int((created_at + WINDOW - at).total_seconds()) + 1)
    return None
