"""Reserves: so many days of storage are held, so that data outlives an empty wallet and never drives it below zero.

While the wallet pays, a reserve is a plain hold. Once the wallet is used up the reserve is drawn on: second by second
it gives back what its reference uses, just in time for what is posted, and nobody else can take it. It lasts until
`ends_at`; whoever asked for it must have stopped the use by then. Money that comes in stops the drawing, and fills the
reserve up again where it suffices for that. Callers hold a lock of their own on what the reference means.
"""

from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F

from billing import exhaustion, holds, ledger, pricing, wallets
from billing.models import AccountBalance, Reserve
from billing.models.accounts import AccountKind

FOR_GOOD = timedelta(days=100 * 366)


@transaction.atomic
def keep(
    *, reference: str, owner: UUID, currency: str, rate_micros_per_hour: int, for_s: int, at: datetime
) -> Reserve | None:
    """Hold what `for_s` seconds at this rate cost; None where that is nothing. The same again changes nothing.

    Raises holds.InsufficientFunds.
    """
    full = -(-rate_micros_per_hour * for_s // pricing.SECONDS_PER_HOUR)
    if full == 0:
        return None
    wallet = wallets.account_of(owner=owner, currency=currency, at=at)
    ledger.lock([wallet.pk])
    found = Reserve.objects.filter(reference=reference).first()
    if found is not None and found.held_micros:
        return found
    reserve = found or Reserve(reference=reference, account=wallet)
    reserve.rate_micros_per_hour, reserve.full_micros = rate_micros_per_hour, full
    _place(reserve, full, at=at)
    return reserve


@transaction.atomic
def lower(*, reference: str, rate_micros_per_hour: int, at: datetime) -> None:
    """Keep as many seconds at a lower rate; a higher one changes nothing: what was promised is not asked for anew."""
    reserve = _locked(reference)
    if reserve is None or rate_micros_per_hour >= reserve.rate_micros_per_hour:
        return
    full = -(-reserve.full_micros * rate_micros_per_hour // reserve.rate_micros_per_hour)
    if rate_micros_per_hour == 0:
        _give_up(reserve, at=at)
        return
    reserve.rate_micros_per_hour, reserve.full_micros = rate_micros_per_hour, full
    _shrink(reserve, min(reserve.held_micros, full), at=at)


@transaction.atomic
def hand_over(*, reference: str, to: str, rate_micros_per_hour: int, for_s: int, at: datetime) -> None:
    """Let what is held for one reference be held for another, which uses so much. It is not asked for anew.

    What is more than `for_s` seconds of it is given back; where it is less, it lasts for less.
    """
    before = _locked(reference)
    if before is None or not before.held_micros:
        return
    full = -(-rate_micros_per_hour * for_s // pricing.SECONDS_PER_HOUR)
    amount = min(before.held_micros, full)
    after = Reserve(reference=to, account=before.account, rate_micros_per_hour=rate_micros_per_hour)
    after.full_micros, after.held_micros, after.n = full, amount, 1
    holds.lower(reference=_name(before), to=_name(after), amount_micros=amount, at=at)
    after.save(force_insert=True)
    before.full_micros, before.held_micros, before.drawn_from = 0, 0, None
    before.save()


@transaction.atomic
def release(*, reference: str, at: datetime) -> None:
    """Give it all back; nothing happens where there is none."""
    reserve = _locked(reference)
    if reserve is not None:
        _give_up(reserve, at=at)


@transaction.atomic
def begin_drawing(*, reference: str, since: datetime, at: datetime) -> None:
    """The wallet is used up since that second: from then on the reserve pays. Idempotent."""
    reserve = _locked(reference)
    if reserve is not None and reserve.drawn_from is None:
        reserve.drawn_from, reserve.base_micros = since, reserve.held_micros
        _draw(reserve, at=at)


@transaction.atomic
def stop_drawing(*, reference: str, at: datetime) -> None:
    """Another pays from now on; what is left stays held. Idempotent."""
    reserve = _locked(reference)
    if reserve is not None and reserve.drawn_from is not None:
        _draw(reserve, at=at)
        reserve.drawn_from = None
        reserve.save(update_fields=["drawn_from"])


@transaction.atomic
def draw(*, reference: str, at: datetime) -> None:
    """Free what was used until now: before something of its reference is posted by itself."""
    reserve = _locked(reference)
    if reserve is not None and reserve.drawn_from is not None:
        _draw(reserve, at=at)


def draw_all(*, shard: int, at: datetime) -> None:
    """Free what was used until now of all wallets of a shard, whose rows the caller (the close) holds."""
    rows = Reserve.objects.filter(drawn_from__isnull=False, account__limited__shard=shard)
    for reserve in rows.select_related("account").order_by("account", "pk"):
        _draw(reserve, at=at)


@transaction.atomic
def fill_up(*, reference: str, at: datetime) -> bool:
    """Hold again all that is to be held, if the wallet has it; return whether all of it is held."""
    reserve = _locked(reference)
    if reserve is None or reserve.drawn_from is not None:
        return reserve is None
    if reserve.held_micros >= reserve.full_micros:
        return True
    try:
        with transaction.atomic():
            if reserve.held_micros:
                holds.release(reference=_name(reserve), at=at, cause="filled up")
            _place(reserve, reserve.full_micros, at=at)
    except holds.InsufficientFunds:
        return False
    return True


def ends_at(reserve: Reserve) -> datetime | None:
    """Return until when it lasts while it is drawn on, else None."""
    if reserve.drawn_from is None:
        return None
    return reserve.drawn_from + timedelta(
        seconds=reserve.base_micros * pricing.SECONDS_PER_HOUR // reserve.rate_micros_per_hour
    )


def short() -> list[str]:
    """Return the references of whose reserve not all is held, and that nobody draws on."""
    rows = Reserve.objects.filter(held_micros__lt=F("full_micros"), drawn_from=None)
    return list(rows.order_by("reference").values_list("reference", flat=True))


def of(reference: str) -> Reserve | None:
    return Reserve.objects.filter(reference=reference).first()


def used_up(*, at: datetime, within_s: int = 0) -> dict[tuple[UUID, str], datetime]:
    """Return the wallets whose money is out by `within_s` after `at`, at what runs: owner and currency, and when."""
    exhaustion.refresh_passed(at=at)
    until = at + timedelta(seconds=within_s)
    rows = AccountBalance.objects.filter(exhaust_at__lte=until, account__kind=AccountKind.WALLET)
    found = rows.values_list("account__owner", "account__currency", "exhaust_at")
    return {(owner, currency): dry for owner, currency, dry in found if owner is not None and dry is not None}


def _locked(reference: str) -> Reserve | None:
    """Return the reserve as it is under the lock of its wallet."""
    wallet_id = Reserve.objects.filter(reference=reference).values_list("account", flat=True).first()
    if wallet_id is None:
        return None
    ledger.lock([wallet_id])
    return Reserve.objects.select_related("account").get(reference=reference)


def _name(reserve: Reserve) -> str:
    return f"{reserve.reference}:{reserve.n}"


def _place(reserve: Reserve, amount_micros: int, *, at: datetime) -> None:
    before = reserve.n, reserve.held_micros
    reserve.n += 1
    assert reserve.account.owner is not None
    try:
        holds.place(
            owner=reserve.account.owner, currency=reserve.account.currency, amount_micros=amount_micros,
            reference=_name(reserve), expires_at=at + FOR_GOOD, at=at,
        )  # fmt: skip
    except holds.InsufficientFunds:
        reserve.n, reserve.held_micros = before
        raise
    reserve.held_micros, reserve.drawn_from = amount_micros, None
    reserve.save()


def _draw(reserve: Reserve, *, at: datetime) -> None:
    assert reserve.drawn_from is not None
    elapsed_s = max(0, int(at.timestamp()) - int(reserve.drawn_from.timestamp()))
    # Rounded up: what is posted of the reference for these seconds is never more.
    used = -(-reserve.rate_micros_per_hour * elapsed_s // pricing.SECONDS_PER_HOUR)
    _shrink(reserve, min(reserve.held_micros, max(0, reserve.base_micros - used)), at=at)


def _shrink(reserve: Reserve, amount_micros: int, *, at: datetime) -> None:
    if amount_micros < reserve.held_micros:
        before = _name(reserve)
        reserve.n += 1
        holds.lower(reference=before, to=_name(reserve), amount_micros=amount_micros, at=at)
        reserve.held_micros = amount_micros
    reserve.save()


def _give_up(reserve: Reserve, *, at: datetime) -> None:
    if reserve.held_micros:
        holds.release(reference=_name(reserve), at=at, cause="given up")
    # The row stays for its number: no hold is named twice.
    reserve.full_micros, reserve.held_micros, reserve.drawn_from = 0, 0, None
    reserve.save()
