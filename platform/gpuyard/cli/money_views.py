"""How money looks: budgets, statements, top-ups, earnings, payouts."""

from collections.abc import Iterator
from decimal import Decimal

from gpuyard.cli.tables import Column
from gpuyard.cli.values import Row, ago, amount, member, money, plain, until


def _of(name: str) -> Column:
    return Column(name.replace("_", " ").upper(), lambda row: money(row.get(name)), right=True)


def percent(basis_points: int) -> str:
    return f"{amount(Decimal(basis_points) / 100).rstrip('0').rstrip('.')}%"


def _warns(row: Row) -> str:
    return " ".join(percent(each) for each in row.get("thresholds_bp") or [])


BUDGETS = (
    Column("NAME", member("name"), flexible=True),
    Column("A MONTH", lambda row: money(row.get("amount")), right=True),
    Column("OF", lambda row: plain(row.get("label")) or "everything", rank=1, flexible=True),
    Column("WARNS AT", _warns, rank=3),
    Column("THEN", member("action"), rank=2),
    Column("ID", member("id"), rank=4),
)
EARNINGS = (Column("CURRENCY", member("currency")), _of("balance"), _of("in_transit"))
PAYOUTS = (
    Column("ID", member("id")),
    Column("STATE", member("state")),
    Column("AMOUNT", lambda row: money(row.get("amount")), right=True),
    Column("FOR", member("period"), rank=2),
    Column("ASKED", lambda row: ago(row.get("created_at")), rank=3),
    Column("SETTLED", lambda row: ago(row.get("settled_at")), rank=1),
)
TOP_UPS = (
    Column("ID", member("id")),
    Column("STATE", member("state")),
    Column("AMOUNT", lambda row: money(row.get("amount")), right=True),
    Column("BY", member("provider"), rank=2),
    Column("BEGUN", lambda row: ago(row.get("created_at")), rank=3),
    Column("SETTLED", lambda row: ago(row.get("settled_at")), rank=1),
)
STATEMENTS = (
    Column("FROM", member("from")),
    Column("TO", member("to"), rank=1),
    _of("opening"),
    _of("paid_in"),
    _of("charged"),
    _of("closing"),
)
REFERENCES = (
    Column("LEASE", member("reference")),
    Column("SECONDS", lambda row: plain(sum(line.get("seconds") or 0 for line in row.get("lines") or [])), right=True),
    Column("LINES", lambda row: plain(len(row.get("lines") or [])), rank=1, right=True),
    Column("AMOUNT", lambda row: money(row.get("amount")), right=True),
)


def budget(row: Row) -> Iterator[tuple[str, str]]:
    yield "budget", plain(row.get("name"))
    yield "a month", money(row.get("amount"))
    yield "of", plain(row.get("label")) or "everything"
    spent = row.get("spent_micros")
    if isinstance(spent, int):
        yield "spent", money({"amount": str(Decimal(spent) / 1_000_000), "currency": row["amount"]["currency"]})
    yield "warns at", _warns(row)
    yield "then", plain(row.get("action"))
    yield "id", plain(row.get("id"))
    yield "since", until(row.get("created_at"))
