"""How hosts' reputation, proofs and enrolments look."""

from collections.abc import Iterator

from gpuyard.cli.money_views import percent
from gpuyard.cli.tables import Column
from gpuyard.cli.values import Row, ago, badge, member, plain

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
