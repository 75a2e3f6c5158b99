"""The currencies that accounts may have, and how fine their money is. Pure."""

from dataclasses import dataclass

MICROS = 1_000_000  # micro-units in one major unit


@dataclass(frozen=True)
class Currency:
    """minor_exponent: decimal digits of the smallest unit that a bank can move (ISO 4217)."""

    code: str
    minor_exponent: int

    @property
    def micros_per_minor(self) -> int:
        return int(MICROS // 10**self.minor_exponent)


# Source of the exponents: ISO 4217, list one. XTS is its code for tests: simulated GPUs are charged in it.
CURRENCIES = {
    code: Currency(code, exponent)
    for code, exponent in (
        ("AUD", 2), ("BHD", 3), ("BRL", 2), ("CAD", 2), ("CHF", 2), ("CLP", 0), ("CNY", 2), ("CZK", 2), ("DKK", 2),
        ("EUR", 2), ("GBP", 2), ("HKD", 2), ("HUF", 2), ("IDR", 2), ("ILS", 2), ("INR", 2), ("ISK", 0), ("JOD", 3),
        ("JPY", 0), ("KRW", 0), ("KWD", 3), ("MXN", 2), ("MYR", 2), ("NOK", 2), ("NZD", 2), ("OMR", 3), ("PHP", 2),
        ("PLN", 2), ("RUB", 2), ("SEK", 2), ("SGD", 2), ("THB", 2), ("TND", 3), ("TRY", 2), ("TWD", 2), ("UAH", 2),
        ("USD", 2), ("VND", 0), ("XTS", 2), ("ZAR", 2),
    )
}  # fmt: skip


def get(code: str) -> Currency:
    """Return the currency, or raise ValueError for a code that no account may have."""
    if code not in CURRENCIES:
        raise ValueError(f"{code!r} is no currency that accounts may have")
    return CURRENCIES[code]
