"""Death at every statement of what moves money, and real kills: nothing half done stays, a rerun does it once."""

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from books import NOON, after, killed_at, make_owner, make_price, run
from django.db import connection
from provider import PaperProvider

from billing import close, downtime, holds, metering, payments, payouts, reconcile, wallets
from billing.models import Adjustment, BillingRun, Journal, Meter, Transfer

HOUR = after(3600)


def _world() -> tuple[UUID, UUID, str]:
    payer, payee = make_owner(50_000_000), uuid4()
    lease = run(payer=payer, payee=payee, price=make_price(3_600_001), commission_bp=1250)
    return payer, payee, lease


def _top_up() -> Callable[[], Any]:
    payer, _, _ = _world()
    return lambda: wallets.top_up(
        owner=payer, currency="USD", amount_micros=5_000_000, key="k", by="t", reason="r", at=HOUR
    )


def _close() -> Callable[[], Any]:
    _world()
    return lambda: close.close(shard=0, to=HOUR, at=HOUR)


def _finish() -> Callable[[], Any]:
    _, _, lease = _world()
    close.close(shard=0, to=after(1800), at=after(1800))
    return lambda: metering.finish(reference=lease, at=HOUR, ended_by="tenant")


def _late_stop() -> Callable[[], Any]:
    _, _, lease = _world()
    close.close(shard=0, to=HOUR, at=HOUR)
    return lambda: metering.stop(reference=lease, seq=2, at=after(900), cause="late", received_at=HOUR)


def _void() -> Callable[[], Any]:
    _, _, lease = _world()
    close.close(shard=0, to=HOUR, at=HOUR)
    return lambda: downtime.void(reference=lease, member=0, start=NOON, end=after(100), reason="gpu", at=HOUR)


def _start() -> Callable[[], Any]:
    payer, payee, price = make_owner(50_000_000), uuid4(), make_price(3_600_001)
    holds.place(owner=payer, currency="USD", amount_micros=1, reference="r", expires_at=HOUR, at=NOON)
    return lambda: run(payer=payer, payee=payee, price=price, reference="r")


def _payment() -> payments.Payment:
    payment = payments.begin(owner=make_owner(), currency="USD", amount_minor=500, provider="paper", key="k", at=NOON)
    return payments.attempt(payment_id=payment.pk, provider=PaperProvider(), at=NOON)


def _refund() -> Callable[[], Any]:
    payment = _payment()
    return lambda: (
        payments.refundable_minor(payment, at=NOON) == 0
        or payments.begin_refund(payment_id=payment.pk, amount_minor=500, at=NOON)
    )


def _refund_sent() -> Callable[[], Any]:
    payment = _payment()

    def send() -> None:
        if payments.refundable_minor(payment, at=NOON):
            refund = payments.begin_refund(payment_id=payment.pk, amount_minor=500, at=NOON)
            payments.attempt_refund(refund_id=refund.pk, provider=PaperProvider(), at=NOON)

    return send


def _paid() -> Callable[[], Any]:
    payment = payments.begin(owner=make_owner(), currency="USD", amount_minor=500, provider="paper", key="k", at=NOON)
    return lambda: payments.attempt(payment_id=payment.pk, provider=PaperProvider(), at=NOON)


def _payout() -> Callable[[], Any]:
    _, payee, lease = _world()
    metering.finish(reference=lease, at=HOUR, ended_by="tenant")

    def pay() -> None:
        try:
            payout = payouts.request(owner=payee, currency="USD", period="p", provider="paper", at=HOUR)
        except payouts.NothingToPayOut:
            return
        payouts.send(payout_id=payout.pk, provider=PaperProvider(), at=HOUR)

    return pay


ACTS = [_top_up, _paid, _close, _finish, _late_stop, _void, _start, _refund, _refund_sent, _payout]


def _written() -> tuple[int, ...]:
    tables: tuple[Any, ...] = (Journal, Transfer, Meter, Adjustment, BillingRun)
    return tuple(table._default_manager.count() for table in tables)


@pytest.mark.django_db
@pytest.mark.parametrize("world", ACTS)
def test_a_death_at_any_statement_leaves_nothing_and_a_rerun_does_it_once(world: Callable[[], Any]) -> None:
    act = world()
    before, point = _written(), 0

    while killed_at(point, act):
        assert _written() == before, point
        point += 1
    done = _written()
    act()

    assert point > 3
    assert done != before
    assert _written() == done
    assert reconcile.findings() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(3_000)  # --histories 2000 kills 400 workers
def test_real_kills_of_workers_leave_right_books(request: pytest.FixtureRequest) -> None:
    """SIGKILL at a random moment, two workers at once. `--histories N` kills N / 10 times (at least 12)."""
    kills = max(12, (request.config.getoption("--histories", default=None) or 0) // 10)
    payer, payee, price = make_owner(10**12), uuid4(), make_price(3_600_001)
    rng = random.Random(kills)
    for number in range(kills):
        lease = run(payer=payer, payee=payee, price=price, reference=f"r{number}", at=after(number * 60))
        workers = [_fork(lambda n=number, who=lease: _work(n, who, payer)) for _ in range(2)]
        time.sleep(rng.random() * 0.15)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        for worker in workers:
            os.waitpid(worker, 0)
        assert reconcile.findings() == [], number
        _work(number, lease, payer)
    found = wallets.balance(owner=payer, currency="USD", at=after(kills * 60))

    charged = sum(Meter.objects.values_list("posted_micros", flat=True))
    assert charged == kills * (3_600_001 * 30 // 3600)
    assert found.balance_micros == 10**12 + kills * 1_000_000 - charged
    assert BillingRun.objects.count() == kills


def _work(number: int, lease: str, payer: UUID) -> None:
    at = after(number * 60 + 40)
    wallets.top_up(owner=payer, currency="USD", amount_micros=1_000_000, key=lease, by="t", reason="r", at=at)
    close.close(shard=0, to=after(number * 60 + 20), at=at)
    metering.stop(reference=lease, seq=2, at=after(number * 60 + 30), cause="t", received_at=at)
    metering.finish(reference=lease, at=at, ended_by="tenant")


def _fork(act: Callable[[], None]) -> int:
    connection.close()  # a session that two processes share would be ended by the death of one
    child = os.fork()
    if child:
        return child
    try:
        act()
    finally:
        os._exit(0)
