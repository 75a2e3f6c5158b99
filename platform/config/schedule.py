"""What runs by itself, and how often: the one table of loops, for Celery beat and for `manage.py loops`.

Each entry names a Celery task; a tick is a doorbell (the database says what is due), so a tick that is late, lost or
doubled changes nothing.
"""

from typing import Any

LOOPS: dict[str, float] = {  # task name -> seconds between ticks
    "scheduler.place_pending": 1.0,
    "scheduler.converge": 0.5,  # a host that says "ready" is billed from then; this is how long its tenant waits
    "scheduler.expire_quotes": 5.0,
    "scheduler.stop_exhausted": 1.0,
    "scheduler.stop_over_budget": 60.0,
    "scheduler.keep_volumes": 5.0,
    "scheduler.reserve_scratch": 30.0,
    "scheduler.make_room": 3.0,
    "scheduler.announce": 2.0,
    "scheduler.step_spot_prices": 15.0,
    "scheduler.update_recent_use": 60.0,
    "agents.sweep_silence": 1.0,
    "agents.forget_old": 60.0,
    "agents.challenge_hosts": 60.0,
    "agents.roll_out_releases": 30.0,  # of the agent, to those hosts whose turn it is
    "agents.check_ports": 10.0,  # can tenants reach what hosts publish?
    "agents.hand_over_machines": 2.0,  # whole machines, over SSH
    "agents.look_at_machines": 5.0,  # does each still let its tenant in?
    "agents.update_scores": 60.0,
    "billing.close_due": 60.0,
    "billing.exhaustion_due": 5.0,
    "billing.watch": 30.0,
    "billing.settle_due": 30.0,
    "console.check_invariants": 600.0,
    "outbox.relay": 1.0,
    "outbox.deliver": 1.0,
    "outbox.forget_old": 3600.0,
}


def beat_schedule() -> dict[str, dict[str, Any]]:
    # `expires`: ticks that piled up while no worker ran are worth nothing.
    return {
        name: {"task": name, "schedule": every_s, "options": {"expires": max(2.0, every_s)}}
        for name, every_s in LOOPS.items()
    }
