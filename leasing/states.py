"""What can happen to a lease: the table of moves (DOMAIN.md section 3). `lifecycle` makes them; nothing else may."""

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    PENDING = "pending"  # accepted, waiting for capacity
    SCHEDULED = "scheduled"  # starts later; the calendar already holds its devices
    PROVISIONING = "provisioning"  # bound; its hosts fetch the image and start containers
    ACTIVE = "active"  # every member is ready and sees its GPUs; the meter runs
    PARKED = "parked"  # the tenant stopped it, keeping its devices or its place
    INTERRUPTED = "interrupted"  # host lost, GPU failed or reclaimed; the recovery policy decides
    ENDING = "ending"  # stop asked; containers stop and devices are cleaned
    ENDED = "ended"  # over, for good


class EndReason(StrEnum):
    TENANT = "tenant"
    COMPLETED = "completed"  # its command exited
    EXPIRED = "expired"
    BALANCE = "balance"
    PREEMPTED = "preempted"
    HOST_LOST = "host_lost"
    FAILED_TO_START = "failed_to_start"
    OPERATOR = "operator"
    NEVER_PLACED = "never_placed"


class OnInterrupt(StrEnum):
    RESTART_ELSEWHERE = "restart_elsewhere"
    WAIT_FOR_HOST = "wait_for_host"
    END = "end"


NEXT: Mapping[State, frozenset[State]] = {
    State.PENDING: frozenset({State.SCHEDULED, State.PROVISIONING, State.ENDED}),
    State.SCHEDULED: frozenset({State.PROVISIONING, State.PENDING, State.ENDED}),
    State.PROVISIONING: frozenset({State.ACTIVE, State.PENDING, State.ENDING}),
    State.ACTIVE: frozenset({State.PARKED, State.INTERRUPTED, State.ENDING}),
    State.PARKED: frozenset({State.PROVISIONING, State.PENDING, State.ENDING, State.ENDED}),
    State.INTERRUPTED: frozenset({State.ACTIVE, State.PROVISIONING, State.PENDING, State.ENDING}),
    State.ENDING: frozenset({State.ENDED}),
    State.ENDED: frozenset(),
}

# Devices are bound to a lease in these; what is freed is freed by lifecycle.release, after cleaning.
HOLDS_DEVICES = frozenset({State.SCHEDULED, State.PROVISIONING, State.ACTIVE, State.PARKED, State.ENDING})
LIVE = frozenset(State) - {State.ENDED}

# What a tenant may ask for in each state; `actions.of` leaves out what this lease's term does not have.
ACTIONS: Mapping[State, tuple[str, ...]] = {
    State.PENDING: ("cancel", "end", "defer"),
    State.SCHEDULED: ("cancel", "end", "defer"),
    State.PROVISIONING: ("cancel", "end", "extend", "shorten"),
    State.ACTIVE: ("end", "extend", "shorten", "renew", "park", "restart", "resize", "move"),
    State.PARKED: ("end", "resume"),
    State.INTERRUPTED: ("end", "extend", "shorten"),
    State.ENDING: (),
    State.ENDED: (),
}

# How long a container may run on unheard, in seconds: what the fence waits for before another epoch may start
# (AGENT.md section 5).
VALID_FOR_S: Mapping[OnInterrupt, int] = {
    OnInterrupt.RESTART_ELSEWHERE: 60,
    OnInterrupt.END: 600,
    OnInterrupt.WAIT_FOR_HOST: 21_600,
}
