"""How the pages write durations and money."""

from django import template
from django.contrib.admin.utils import quote

from apikit.money import MICROS, Money

register = template.Library()
register.filter("admin_quote", quote)
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@register.filter
def seconds(count: float) -> str:
    """Write a duration with its two largest units: "2 h 5 min"."""
    rest, words = int(count), []
    for size, unit in _UNITS:
        number, rest = divmod(rest, size)
        if number:
            words.append(f"{number} {unit}")
    return " ".join(words[:2]) or "0 s"


@register.filter
def amount(money: Money) -> str:
    """Write an amount with two places, cut towards zero: the books have the rest."""
    sign = "-" if money.amount_micros < 0 else ""
    whole, micros = divmod(abs(money.amount_micros), MICROS)
    return f"{sign}{whole:,}.{micros // 10_000:02d}".replace(",", " ")


@register.filter
def percent(basis_points: int) -> str:
    """Write hundredths of a percent with one decimal: "12.3 %"."""
    return f"{basis_points // 100}.{basis_points % 100 // 10} %"
