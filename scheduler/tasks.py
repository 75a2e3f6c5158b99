"""Ticks of the decider: thin, idempotent, and safe to run twice."""

from celery import shared_task
from django.conf import settings

from apikit import clock
from leasing import kept_scratch, quotes, volume_keeping
from scheduler import announcing, converging, doorbell, fair_share, making_room, placing, spot_prices


@shared_task(name="scheduler.place_pending")  # type: ignore[untyped-decorator]
def place_pending(**_: object) -> None:
    placing.place_pending(at=clock.now(), grace_s=settings.WORKLOAD_STOP_GRACE_S)


@shared_task(name="scheduler.converge")  # type: ignore[untyped-decorator]
def converge(**_: object) -> None:
    converging.converge(at=clock.now())
    doorbell.ring("scheduler.place_pending")


@shared_task(name="scheduler.expire_quotes")  # type: ignore[untyped-decorator]
def expire_quotes(**_: object) -> None:
    quotes.expire_due(at=clock.now())


@shared_task(name="scheduler.stop_exhausted")  # type: ignore[untyped-decorator]
def stop_exhausted(**_: object) -> None:
    converging.stop_exhausted(at=clock.now())


@shared_task(name="scheduler.stop_over_budget")  # type: ignore[untyped-decorator]
def stop_over_budget(**_: object) -> None:
    converging.stop_over_budget(at=clock.now())


@shared_task(name="scheduler.keep_volumes")  # type: ignore[untyped-decorator]
def keep_volumes(**_: object) -> None:
    volume_keeping.keep(at=clock.now())


@shared_task(name="scheduler.reserve_scratch")  # type: ignore[untyped-decorator]
def reserve_scratch(**_: object) -> None:
    kept_scratch.reserve(at=clock.now())


@shared_task(name="scheduler.step_spot_prices")  # type: ignore[untyped-decorator]
def step_spot_prices(**_: object) -> None:
    spot_prices.step_due(at=clock.now())


@shared_task(name="scheduler.update_recent_use")  # type: ignore[untyped-decorator]
def update_recent_use(**_: object) -> None:
    fair_share.update(at=clock.now())


@shared_task(name="scheduler.make_room")  # type: ignore[untyped-decorator]
def make_room(**_: object) -> None:
    making_room.make_room(at=clock.now())


@shared_task(name="scheduler.announce")  # type: ignore[untyped-decorator]
def announce(**_: object) -> None:
    announcing.announce(at=clock.now())
