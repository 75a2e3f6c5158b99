"""Doorbells: each reads the clock and makes one call or a few; what is due stands in the database."""

from celery import shared_task

from apikit import clock
from billing import close, contracts, exhaustion, grants, holds, payment_providers, settling, watching


@shared_task(name="billing.close_due")  # type: ignore[untyped-decorator]
def close_due(**_: object) -> None:
    close.close_due(at=clock.now())
    contracts.earn_due(at=clock.now())
    grants.expire_due(at=clock.now())


@shared_task(name="billing.exhaustion_due")  # type: ignore[untyped-decorator]
def exhaustion_due(**_: object) -> None:
    exhaustion.refresh_passed(at=clock.now())
    holds.release_expired(at=clock.now())


@shared_task(name="billing.watch")  # type: ignore[untyped-decorator]
def watch(**_: object) -> None:
    watching.watch(at=clock.now())


@shared_task(name="billing.settle_due")  # type: ignore[untyped-decorator]
def settle_due(**_: object) -> None:
    settling.settle_due(providers=payment_providers.configured(), at=clock.now())
