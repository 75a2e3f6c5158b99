"""Accounts and the one way money moves between them: a journal with its transfers, posted once per key.

Lock order: balances by account id, before the journal's key. A caller that needs a balance to decide what to post
locks it with `lock` first.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Sum

from apikit.errors import DomainError
from billing import currencies, shards
from billing.models import Account, AccountBalance, Journal, Transfer
from billing.models.accounts import AccountKind

LIMITED = frozenset(
    {
        AccountKind.WALLET,
        AccountKind.PROMO_GRANT,
        AccountKind.PREPAID_TERM,
        AccountKind.REFUNDABLE,
        AccountKind.PAYOUT_TRANSIT,
    }
)

CLAIMED = ("key", "kind", "request_hash", "effective_at", "posted_at", "reverses_id", "corrects_id", "memo", "by")
# Migration 0009: key, transfers and balances in one call, one round trip where no transaction is open. It does all of
# it, or nothing: null where the key has posted before, OVERDRAWN where an account would pass its floor.
POST = "SELECT billing_post(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
OVERDRAWN = 0


class PostingKeyReused(DomainError):
    slug = "posting-key-reused"
    title = "This key has posted something else"


class Overdrawn(DomainError):
    slug = "overdrawn"
    title = "The account does not hold that much"
    status = 402


@dataclass(frozen=True)
class Leg:
    """Move `amount_micros` (> 0) from the account `debit` to the account `credit`."""

    debit: Account
    credit: Account
    amount_micros: int


def flow(debit: Account, credit: Account, amount_micros: int) -> list[Leg]:
    """Return the leg that moves an amount of either sign: none for 0, the other way round below it."""
    if amount_micros == 0:
        return []
    return [Leg(debit, credit, amount_micros) if amount_micros > 0 else Leg(credit, debit, -amount_micros)]


def account(*, kind: AccountKind, currency: str, at: datetime, owner: UUID | None = None, part: str = "") -> Account:
    """Return the one account of this purpose, making it when it is not there. Raises ValueError for no currency."""
    currencies.get(currency)
    purpose = {"kind": kind, "owner": owner, "currency": currency, "part": part}
    found = Account.objects.filter(**purpose).first()
    return found or _make_account(purpose, at=at)


@transaction.atomic
def _make_account(purpose: dict[str, Any], *, at: datetime) -> Account:
    shard = shards.of_owner(purpose["owner"])
    if purpose["kind"] == AccountKind.WALLET:
        # A wallet that appears while its shard is being closed would not be locked by the close.
        shards.lock_shared(shard)
    Account.objects.bulk_create([Account(**purpose, created_at=at)], ignore_conflicts=True)
    made = Account.objects.get(**purpose)
    if purpose["kind"] in LIMITED:
        AccountBalance.objects.bulk_create([AccountBalance(account=made, shard=shard)], ignore_conflicts=True)
    return made


def lock(accounts: Iterable[int]) -> dict[int, AccountBalance]:
    """Lock the stored balances of these accounts in id order and return them; call inside a transaction."""
    rows = AccountBalance.objects.select_for_update(no_key=True).filter(account_id__in=set(accounts))
    return {row.account_id: row for row in rows.order_by("account_id")}


def balance_micros(of: Account) -> int:
    """Return the sum of all transfers of an account: for the kinds that store no balance."""
    credits = Transfer.objects.filter(credit=of).aggregate(n=Sum("amount_micros", default=0))["n"]
    debits = Transfer.objects.filter(debit=of).aggregate(n=Sum("amount_micros", default=0))["n"]
    return int(credits - debits)


def post(
    *,
    key: str,
    kind: str,
    legs: Sequence[Leg],
    effective_at: datetime,
    at: datetime,
    request: Mapping[str, object] | None = None,
    reverses: Journal | None = None,
    corrects: Journal | None = None,
    memo: str = "",
    by: str = "",
) -> Journal:
    """Post a journal and its transfers, or return the one that this key posted before.

    request: what was asked for, compared on a second posting; by default the legs themselves.
    Raises PostingKeyReused if the key posted something else, Overdrawn if a limited account would pass its floor.
    """
    journal = Journal(
        key=key,
        kind=kind,
        request_hash=_request_hash(request if request is not None else _as_request(legs)),
        effective_at=effective_at,
        posted_at=at,
        reverses=reverses,
        corrects=corrects,
        memo=memo,
        by=by,
    )
    return _post_once(journal, legs)


def _post_once(journal: Journal, legs: Sequence[Leg]) -> Journal:
    deltas = _deltas(legs)
    sides: list[Any] = [
        [leg.debit.pk for leg in legs],
        [leg.credit.pk for leg in legs],
        [leg.amount_micros for leg in legs],
    ]
    moved = [*sides, [leg.debit.currency for leg in legs], list(deltas), list(deltas.values())]
    with connection.cursor() as cursor:
        cursor.execute(POST, [*(getattr(journal, field) for field in CLAIMED), *moved])
        (posted,) = cursor.fetchone()
    if posted is None:
        return _replayed(Journal.objects.get(key=journal.key), journal.request_hash)
    if posted == OVERDRAWN:
        raise Overdrawn("The account does not hold that much.", key=journal.key)
    journal.pk = posted
    journal._state.adding = False
    return journal


def add(journal: Journal, legs: Sequence[Leg]) -> None:
    """Write the transfers of a journal that is being posted, and what they do to stored balances."""
    Transfer.objects.bulk_create(
        Transfer(
            journal=journal,
            debit=leg.debit,
            credit=leg.credit,
            amount_micros=leg.amount_micros,
            currency=leg.debit.currency,
        )
        for leg in legs
    )
    _add_to_balances(legs)


def _replayed(stored: Journal, request_hash: str) -> Journal:
    if stored.request_hash != request_hash:
        raise PostingKeyReused(f"The key {stored.key} has posted something else.", key=stored.key)
    return stored


def _deltas(legs: Sequence[Leg]) -> dict[int, int]:
    """Return what legs add to each account that stores its balance."""
    deltas: dict[int, int] = defaultdict(int)
    for leg in legs:
        for side, amount in ((leg.debit, -leg.amount_micros), (leg.credit, leg.amount_micros)):
            if side.kind in LIMITED:
                deltas[side.pk] += amount
    return deltas


def _add_to_balances(legs: Sequence[Leg]) -> None:
    deltas = _deltas(legs)
    # Added in the database: a balance that was read, added to and written back loses what others wrote in between.
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE billing_accountbalance b SET balance_micros = balance_micros + d.amount"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS d(account_id, amount) WHERE b.account_id = d.account_id",
            [list(deltas), list(deltas.values())],
        )


def _as_request(legs: Sequence[Leg]) -> dict[str, object]:
    return {"legs": [[leg.debit.pk, leg.credit.pk, leg.amount_micros] for leg in legs]}


def _request_hash(request: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()
