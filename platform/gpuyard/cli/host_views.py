"""How hosts' reputation, proofs and enrolments look."""

from collections.abc import Iterator

from gpuyard.cli.money_views import percent
from gpuyard.cli.tables import Column
from gpuyard.cli.values import Row, ago, badge, member, money, plain, readable

SCORE_ENTRIES = (
    Column("AT", member("at")),
    Column("WHAT", member("kind")),
    Column("POINTS", lambda row: _signed(row.get("points_bp")), right=True),
    Column("WEIGHS", lambda row: _signed(row.get("weighs_bp")), right=True),
    Column("DETAIL", member("detail"), rank=1, flexible=True),
)
SELF_TESTS = (
    Column("ASKED", member("asked_at")),
    Column("LEVEL", lambda row: plain(row.get("level")) + badge(row)),
    Column("PASSED", lambda row: plain(row.get("passed")) or "not answered"),
    Column("FAILED", lambda row: _failed(row), rank=1, flexible=True),
    Column("WHY", member("cause"), rank=2, flexible=True),
)
ENROLMENTS = (
    Column("ID", member("id")),
    Column("NAME", lambda row: plain(row.get("name")) + badge(row), flexible=True),
    Column("STATE", member("state")),
    Column("ZONE", member("zone"), rank=3),
    Column("EXPIRES", lambda row: ago(row.get("expires_at")) if row.get("state") == "open" else "", rank=2),
    Column("HOST", member("host"), rank=1),
)
EARNED = (
    Column("WHAT", lambda row: plain(row.get("lease") or row.get("day"))),
    Column("GPU-SECONDS", member("gpu_seconds"), right=True),
    Column("EARNED", lambda row: money(row.get("earned")), right=True),
    Column("PAID BY TENANTS", lambda row: money(row.get("gross")), rank=1, right=True),
)
IDLE = (
    Column("MODEL", member("model")),
    Column("A SOLD HOUR BRINGS", lambda row: money(row.get("a_sold_hour_brings")), right=True),
    Column("AN IDLE HOUR COSTS", lambda row: money(row.get("an_idle_hour_costs")) or "not known", right=True),
    Column("MARKET IN USE", lambda row: _percent(row.get("market_used_bp")), rank=1, right=True),
)
FIGURES = (
    Column("GPU", member("index"), right=True),
    Column("FIGURE", member("name")),
    Column("MEASURED", member("value"), right=True),
    Column("EXPECTED", lambda row: plain(row.get("expected")) or "not known yet", right=True),
    Column("AT LEAST", member("least"), rank=1, right=True),
    Column("FROM HOSTS", lambda row: plain(row.get("hosts")) if row.get("hosts") else "published", rank=2, right=True),
)
ADVICE = (
    Column("MODEL", member("model")),
    Column("ADVISED FLOOR", lambda row: money(row.get("advised_floor")) or "too little was sold", right=True),
    Column("INCOME NOW", lambda row: money(row.get("income_now")), rank=1, right=True),
    Column("INCOME THEN", lambda row: money(row.get("income_advised")), rank=1, right=True),
    Column("MARKET IN USE", lambda row: _percent(row.get("market_used_bp")), rank=2, right=True),
)
MAINTENANCES = (
    Column("ID", member("id")),
    Column("FROM", member("starts_at")),
    Column("TO", member("ends_at")),
    Column("STATE", member("state"), rank=1),
    Column("MESSAGE", member("message"), rank=2, flexible=True),
)
_QUESTIONS = {
    "after_7_days_bp": "in 7 days",
    "after_30_days_bp": "in 30 days",
    "without_heaviest_bp": "but for the worst",
    "after_another_loss_bp": "after another loss",
}


def _signed(points: object) -> str:
    return f"{'-' if points < 0 else '+'}{percent(abs(points))}" if isinstance(points, int) else ""


def _failed(row: Row) -> str:
    bad = [each for each in row.get("checks") or [] if each.get("passed") is False]
    return "; ".join(f"{each.get('check')}: {each.get('detail') or 'failed'}" for each in bad)


def score(row: Row) -> Iterator[tuple[str, str]]:
    yield "host", plain(row.get("host"))
    yield "score", percent(row["score_bp"]) if isinstance(row.get("score_bp"), int) else ""
    asked = row.get("what_if") or {}
    for name, question in _QUESTIONS.items():
        if isinstance(asked.get(name), int):
            yield question, percent(asked[name])


def _percent(basis_points: object) -> str:
    return percent(basis_points) if isinstance(basis_points, int) else ""


def earned(row: Row) -> Iterator[tuple[str, str]]:
    total = row.get("total") or {}
    yield "host", f"{plain(row.get('host'))}{badge(row)}"
    yield "since", plain(row.get("from"))
    yield "earned", money(total.get("earned"))
    yield "paid by tenants", money(total.get("gross"))


def summary(row: Row) -> Iterator[tuple[str, str]]:
    use = row.get("use") or {}
    yield "host", f"{plain(row.get('host'))}{badge(row)}"
    yield "state", plain(row.get("state"))
    yield "since", plain(row.get("from"))
    shown = row.get("verification") or {}
    if shown.get("level"):
        yield "verified", f"{shown['level']}, until {plain(shown.get('holds_until'))}"
    yield "in use", _percent(use.get("used_bp"))
    yield "earned", money((row.get("earned") or {}).get("earned"))
    yield "score", _percent(row.get("score_bp"))


def floor(row: Row) -> Iterator[tuple[str, str]]:
    yield "host", f"{plain(row.get('host'))}{badge(row)}"
    yield "price floor", money(row.get("price_floor"))


def maintenance(row: Row) -> Iterator[tuple[str, str]]:
    for name in ("id", "host", "state", "starts_at", "ends_at", "lead_s", "message"):
        yield name.removesuffix("_s").replace("_", " "), readable(name, row.get(name), row)
