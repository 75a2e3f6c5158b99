"""Money as the doors write and read it: `{"amount": "12.345600", "currency": "CNY"}`, never a float."""

import re
from typing import NamedTuple

MICROS = 1_000_000
_AMOUNT = re.compile(r"(0|[1-9][0-9]{0,11})(?:\.([0-9]{1,6}))?", re.ASCII)


class Money(NamedTuple):
    """An amount in whole micro-units of a currency (ISO 4217)."""

    amount_micros: int
    currency: str

    def to_json(self) -> dict[str, str]:
        sign = "-" if self.amount_micros < 0 else ""
        whole, micros = divmod(abs(self.amount_micros), MICROS)
        return {"amount": f"{sign}{whole}.{micros:06d}", "currency": self.currency}


def read_amount(text: str) -> int | None:
    """Return the micro-units of a decimal such as "1.5", or None: a sign, an exponent, a seventh place are not."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    return int(match[1]) * MICROS + int((match[2] or "").ljust(6, "0"))
