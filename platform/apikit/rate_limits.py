"""How often somebody may do something: counters in PostgreSQL, raised and read in one statement, so they are exact.

A policy is `(quota, window in seconds)` under its name in `settings.RATE_LIMITS`. Windows are fixed: minute by minute.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from django.conf import settings
from django.db import connection

from apikit import statements
from apikit.errors import DomainError
from apikit.statements import Statement

DEFAULTS: dict[str, tuple[int, int]] = {
    "requests": (1200, 60),
    "lease_create": (60, 60),
    "sign_in": (10, 300),  # tries of a password for one person, by whomever
    "sign_in_address": (60, 300),  # tries from one address, for whomever
    "second_factor": (10, 300),  # codes tried for one person
}


class RateLimited(DomainError):
    slug = "rate-limited"
    title = "Too many requests"
    status = 429


@dataclass(frozen=True)
class Count:
    """Where a subject stands in a window."""

    policy: str
    quota: int
    window_s: int
    n: int
    resets_in_s: int

    def headers(self) -> dict[str, str]:
        """RateLimit and RateLimit-Policy in the form of the IETF draft (structured fields, RFC 9651)."""
        return {
            "RateLimit-Policy": f'"{self.policy}";q={self.quota};w={self.window_s}',
            "RateLimit": f'"{self.policy}";r={max(0, self.quota - self.n)};t={self.resets_in_s}',
        }


def count(policy: str, *, subject: str, at: datetime) -> Count:
    """Count one more and return where the subject stands. Raises RateLimited above the quota.

    Call it outside of the transaction of the work: a refusal must be counted too, and nobody should wait on the row.
    """
    (rows,) = statements.run(statement(policy, subject=subject, at=at))
    return counted(policy, n=rows[0][0], at=at)


def statement(policy: str, *, subject: str, at: datetime, unless: Statement | None = None) -> Statement:
    """Return what counts one more and says how many there are; nothing where the query `unless` finds a row."""
    _, window_s = _limit(policy)
    window = datetime.fromtimestamp(int(at.timestamp()) // window_s * window_s, UTC)
    condition, values = (f"WHERE NOT EXISTS ({unless.sql})", unless.values) if unless else ("", ())
    return Statement(
        'INSERT INTO apikit_ratecounter AS c (policy, subject, "window", n)'
        f" SELECT %s, %s, %s::timestamptz, 1 {condition}"
        ' ON CONFLICT (policy, subject, "window") DO UPDATE SET n = c.n + 1 RETURNING n',
        [policy, subject, window, *values],
    )


def counted(policy: str, *, n: int, at: datetime) -> Count:
    """Return where a subject stands with `n` in the window around `at`. Raises RateLimited above the quota."""
    quota, window_s = _limit(policy)
    found = Count(policy, quota, window_s, n, window_s - int(at.timestamp()) % window_s)
    if n > quota:
        refusal = RateLimited(f"At most {quota} in {window_s} s. Try again in {found.resets_in_s} s.", policy=policy)
        refusal.retry_after_s = found.resets_in_s
        raise refusal
    return found


def _limit(policy: str) -> tuple[int, int]:
    limits: dict[str, tuple[int, int]] = {**DEFAULTS, **getattr(settings, "RATE_LIMITS", {})}
    return limits[policy]


def forget_old(*, at: datetime) -> int:
    """Delete windows that began more than a day ago; return how many."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM apikit_ratecounter WHERE \"window\" < %s - interval '1 day'", [at])
        return int(cursor.rowcount)
