"""Ticks of this app's loops: each reads the clock and calls what is due. Twice, late or lost does no harm."""

from celery import shared_task

from agents import (
    capacity,
    logs,
    machine_looks,
    machines,
    maintenance,
    measurements,
    port_check,
    releases,
    score,
    silence,
    verification,
)
from apikit import clock


@shared_task(name="agents.sweep_silence")  # type: ignore[untyped-decorator]
def sweep_silence(**_: object) -> None:
    at = clock.now()
    silence.sweep(at=at)
    verification.expire(at=at)
    maintenance.tick(at=at)


@shared_task(name="agents.forget_old")  # type: ignore[untyped-decorator]
def forget_old(**_: object) -> None:
    at = clock.now()
    capacity.forget(at=at)
    logs.forget(at=at)
    measurements.forget(at=at)


@shared_task(name="agents.update_scores")  # type: ignore[untyped-decorator]
def update_scores(**_: object) -> None:
    score.update(at=clock.now())


@shared_task(name="agents.challenge_hosts")  # type: ignore[untyped-decorator]
def challenge_hosts(**_: object) -> None:
    verification.challenge(at=clock.now())


@shared_task(name="agents.check_ports")  # type: ignore[untyped-decorator]
def check_ports(**_: object) -> None:
    port_check.tick(now=clock.now)


@shared_task(name="agents.roll_out_releases")  # type: ignore[untyped-decorator]
def roll_out_releases(**_: object) -> None:
    releases.tick(at=clock.now())


@shared_task(name="agents.hand_over_machines")  # type: ignore[untyped-decorator]
def hand_over_machines(**_: object) -> None:
    machines.hand_over(now=clock.now)


@shared_task(name="agents.look_at_machines")  # type: ignore[untyped-decorator]
def look_at_machines(**_: object) -> None:
    machine_looks.look(now=clock.now)
