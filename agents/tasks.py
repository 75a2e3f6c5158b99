"""Ticks of this app's loops: each reads the clock and makes one call. Twice, late or lost does no harm."""

from celery import shared_task

from agents import capacity, logs, silence
from apikit import clock


@shared_task(name="agents.sweep_silence")  # type: ignore[untyped-decorator]
def sweep_silence(**_: object) -> None:
    silence.sweep(at=clock.now())


@shared_task(name="agents.forget_old")  # type: ignore[untyped-decorator]
def forget_old(**_: object) -> None:
    at = clock.now()
    capacity.forget(at=at)
    logs.forget(at=at)
