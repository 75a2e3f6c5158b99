"""What a mutant is, and the names of the tests that catch them."""

from dataclasses import dataclass

VECTORS = "tests/billing/test_vectors.py"
METERING = "tests/billing/test_metering.py"
MODEL = "tests/billing/test_model.py::test_closes_of_many_histories_at_once_leave_the_models_purses"
EXHAUSTION = "tests/billing/test_exhaustion.py"
TERMS = "tests/billing/test_terms.py"
PRICING = "tests/billing/test_pricing.py"
TIMELINE = "tests/billing/test_timeline.py"
RECONCILE = "tests/billing/test_reconcile.py"
STRIPE = "tests/billing/test_stripe_calls.py"
STRIPE_DOORS = "tests/billing/test_stripe_doors.py"
ABSURD = "tests/billing/test_absurd_prices.py"
HOLDS = "tests/billing/test_hold_at_once.py"
DOORS = "tests/billing/test_doors.py"


@dataclass(frozen=True)
class Mutant:
    """Replace `old`, which stands once in `path`, by `new`: one of `tests` must fail."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def vector(*names: str) -> tuple[str, ...]:
    """Return the tests of these worked figures."""
    return tuple(f"{VECTORS}::test_vector[{name}]" for name in names)
