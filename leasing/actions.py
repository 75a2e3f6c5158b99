"""What may be asked of this lease now: the `actions` of the object, and what `invalid-transition` names."""

from collections.abc import Callable, Mapping

from leasing.models import Lease
from leasing.states import ACTIONS, State

_RESERVED = Lease.TermKind.RESERVED
# Of what its state allows, this stays only where its history and its term have it.
_IF: Mapping[str, Callable[[Lease], bool]] = {
    "defer": lambda lease: lease.first_active_at is None,
    "renew": lambda lease: bool(lease.period and lease.end_at),
    # What is reserved was promised for a minimum of time, for these GPUs.
    "resize": lambda lease: lease.term_kind != _RESERVED and not lease.is_bare and lease.leaves_at is None,
    "move": lambda lease: lease.term_kind != _RESERVED and not lease.is_bare and lease.leaves_at is None,
    # A whole machine is wiped when it is given back: it is not stopped and kept, and not started anew in place.
    "park": lambda lease: not lease.is_bare,
    "restart": lambda lease: not lease.is_bare,
}


def of(lease: Lease) -> list[str]:
    """Return the names of the acts that are valid now, in the order of the table."""
    return [name for name in ACTIONS[State(lease.state)] if name not in _IF or _IF[name](lease)]
