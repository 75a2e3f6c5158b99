"""When the next epoch may start elsewhere: the devices of a host that was cut off must be free of the old one first.

A container runs on without us for at most `valid_for_s` after the answer that said so, then it is given its grace to
stop (protocol.silent_life_s, which the agent's dead-man timer uses too). The margin on top covers what neither side
sees: the way of an answer through the network, and the drift of two clocks over that time.
"""

from datetime import datetime, timedelta

from django.conf import settings

from agents.models import Workload
from agents.protocol import silent_life_s


def safe_at(workload: Workload) -> datetime | None:
    """Return the first instant at which nothing of this workload can still be running; None while it is wanted.

    A whole machine is no container that could run twice: another epoch may start elsewhere as soon as this one is given
    up. Its own devices are another matter: the calendar holds them until it is back (agents.machines).

    The host's acknowledgement (`gone_at`) settles it at once. Without one it is the last renewal that may have reached
    the host, plus grace and margin, and never before the workload was given up.
    """
    if workload.gone_at is not None:
        return workload.gone_at
    if workload.wanted or workload.unwanted_at is None:
        return None
    if workload.last_valid_until is None or workload.kind == Workload.Kind.MACHINE:
        return workload.unwanted_at  # no answer ever named it
    if workload.step == "cleaning" and workload.exited_at is not None:
        return max(workload.unwanted_at, workload.exited_at)  # its devices are looked at; its container is gone
    # valid_for_s is in `last_valid_until` already.
    life_s = silent_life_s(valid_for_s=0, stop_grace_s=workload.stop_grace_s)
    return max(workload.unwanted_at, workload.last_valid_until + timedelta(seconds=life_s + settings.FENCE_MARGIN_S))
