"""A transaction of its own, or the caller's."""

from collections.abc import Callable
from functools import wraps

from django.db import connection, transaction


def joins[**P, R](act: Callable[P, R]) -> Callable[P, R]:
    """Run `act` in the caller's transaction, or in one of its own where there is none.

    Unlike `atomic` it sets no savepoint in the caller's: for acts that refuse before they write anything.
    """

    @wraps(act)
    def joined(*args: P.args, **kwargs: P.kwargs) -> R:
        if connection.in_atomic_block:
            return act(*args, **kwargs)
        with transaction.atomic():
            return act(*args, **kwargs)

    return joined
