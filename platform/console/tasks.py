"""Ticks of the console: thin."""

from celery import shared_task

from apikit import clock
from console import invariants


@shared_task(name="console.check_invariants")  # type: ignore[untyped-decorator]
def check_invariants(**_: object) -> None:
    invariants.check(at=clock.now())
