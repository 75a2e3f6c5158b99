"""Refusals. The base class knows no HTTP framework; each error stands beside the function that raises it."""

from typing import Any, ClassVar


class DomainError(Exception):
    """An expected "no" that the caller can act on. Anything else is a bug and becomes a 500.

    Each subclass is one RFC 9457 problem type. Its class attributes are the contract with clients; `detail` is for
    people, and `facts` are the extension members for programs (JSON values).
    """

    slug: ClassVar[str]
    title: ClassVar[str]
    status: ClassVar[int] = 409

    def __init__(self, detail: str, **facts: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.facts = facts


class InvalidInput(DomainError):
    """One or several faults in what was sent: each {pointer or parameter, code, detail, position?, nearest?}."""

    slug = "validation-error"
    title = "The request was read and refused"
    status = 422

    def __init__(self, detail: str, *, errors: list[dict[str, Any]]) -> None:
        super().__init__(detail, errors=errors)


class NotFound(DomainError):
    slug = "not-found"
    title = "There is no such thing here"
    status = 404
