"""What can go wrong: one exception per problem type of the API, and the few that arise on this side of the wire."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuyard.objects import Lease


class GpuyardError(Exception):
    """The base of every error this package raises."""


class NotConfigured(GpuyardError):
    """No address or no key is known, or the configuration file cannot be read."""


class Unreachable(GpuyardError):
    """The server could not be reached, or the connection broke, at every try."""


class UnexpectedAnswer(GpuyardError):
    """Something answered that does not speak this API: a proxy's page, say."""


class WaitTimedOut(GpuyardError, TimeoutError):
    """The lease did not reach the state within the time given. It goes on living; `lease` is how it was last seen."""

    def __init__(self, lease: Lease, *, until: Sequence[str]) -> None:
        super().__init__(f"{lease.id} is still {lease.state}, not yet {' or '.join(until)}.")
        self.lease = lease


class LeaseEnded(GpuyardError):
    """The lease ended before it reached the state that was waited for. `lease.end_reason` says why."""

    def __init__(self, lease: Lease, *, until: Sequence[str]) -> None:
        super().__init__(f"{lease.id} ended ({lease.end_reason}) before it was {' or '.join(until)}.")
        self.lease = lease


@dataclass(frozen=True)
class Sent:
    """What was asked, kept so that an error can point into it. It holds no credential."""

    method: str
    url: str
    query: Mapping[str, str]
    body: Any


def slug_of(problem: Mapping[str, Any]) -> str:
    """Return the last part of the problem's type: no-capacity of https://.../problems/no-capacity."""
    return re.split(r"[/#:]", str(problem.get("type", "")).rstrip("/"))[-1]


class ApiError(GpuyardError):
    """A refusal by the server (RFC 9457). A type this version does not know is raised as this class itself.

    problem: the whole document; its extension members are the facts. status: the HTTP status.
    request_id: the server's name for this request, for support. retry_after_s: when to try again, or None.
    errors: for a 400 or 422, one {pointer or parameter, code, detail, position?, nearest?} per fault.
    """

    slug: str = ""

    def __init__(
        self,
        problem: Mapping[str, Any],
        *,
        status: int,
        request_id: str | None = None,
        retry_after_s: float | None = None,
        sent: Sent | None = None,
    ) -> None:
        super().__init__(problem.get("detail") or problem.get("title") or f"The server answered {status}.")
        self.problem = dict(problem)
        self.slug = self.slug or slug_of(problem)
        self.status = status
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.sent = sent

    @property
    def errors(self) -> list[dict[str, Any]]:
        faults = self.problem.get("errors")
        return [fault for fault in faults if isinstance(fault, dict)] if isinstance(faults, list) else []


class MalformedJson(ApiError):
    slug = "malformed-json"


class DuplicateKey(ApiError):
    slug = "duplicate-key"


class JsonTooDeep(ApiError):
    slug = "json-too-deep"


class MalformedRequest(ApiError):
    slug = "malformed-request"


class InvalidCursor(ApiError):
    slug = "invalid-cursor"


class IdempotencyKeyMissing(ApiError):
    slug = "idempotency-key-missing"


class IdempotencyKeyInvalid(ApiError):
    slug = "idempotency-key-invalid"


class Unauthenticated(ApiError):
    slug = "unauthenticated"


class AgentClockSkew(ApiError):
    slug = "agent-clock-skew"


class InsufficientFunds(ApiError):
    """The wallet does not cover the first hold; the problem says what is needed and what is missing."""

    slug = "insufficient-funds"


class PermissionDenied(ApiError):
    slug = "permission-denied"


class NotFound(ApiError):
    """There is no such thing, or it belongs to somebody else."""

    slug = "not-found"


class MethodNotAllowed(ApiError):
    slug = "method-not-allowed"


class NoCapacity(ApiError):
    """Nothing fits now and the caller would not queue; the problem has the reasons, the nearest form and an ETA."""

    slug = "no-capacity"


class InvalidTransition(ApiError):
    """The object's state does not allow this action; the problem lists `actions` that it does allow."""

    slug = "invalid-transition"


class GpuQuotaExceeded(ApiError):
    slug = "gpu-quota-exceeded"


class QuoteAllowanceUsedUp(ApiError):
    """Quotes that were not redeemed have held too much within a day; `retry_after` says when it is less."""

    slug = "quote-allowance-used-up"


class BudgetExceeded(ApiError):
    slug = "budget-exceeded"


class IdempotencyInProgress(ApiError):
    slug = "idempotency-in-progress"


class AgentReplay(ApiError):
    slug = "agent-replay"


class QuoteExpired(ApiError):
    slug = "quote-expired"


class PreconditionFailed(ApiError):
    """The object changed since it was read: read it again, then decide again."""

    slug = "precondition-failed"


class PreconditionRequired(ApiError):
    slug = "precondition-required"


class PayloadTooLarge(ApiError):
    slug = "payload-too-large"


class UriTooLong(ApiError):
    slug = "uri-too-long"


class UnsupportedMediaType(ApiError):
    slug = "unsupported-media-type"


class ValidationError(ApiError):
    """The request was read and refused; `errors` has each fault with its place."""

    slug = "validation-error"


class IdempotencyKeyReused(ApiError):
    slug = "idempotency-key-reused"


class ImageNotRunnable(ApiError):
    slug = "image-not-runnable"


class RateLimited(ApiError):
    slug = "rate-limited"


class Unavailable(ApiError):
    slug = "unavailable"


class InternalError(ApiError):
    slug = "internal-error"


BY_SLUG: Mapping[str, type[ApiError]] = {kind.slug: kind for kind in ApiError.__subclasses__()}
