"""Refusals. The base class knows no HTTP framework; each error stands beside the function that raises it."""

import unicodedata
from typing import Any, ClassVar

ECHO_LIMIT = 64  # characters of input that an answer may repeat


class DomainError(Exception):
    """An expected "no" that the caller can act on. Anything else is a bug and becomes a 500.

    Each subclass is one RFC 9457 problem type. Its class attributes are the contract with clients; `detail` is for
    people, and `facts` are the extension members for programs (JSON values). Where the caller should wait before he
    tries again, a class or an instance sets `retry_after_s`.
    """

    slug: ClassVar[str]
    title: ClassVar[str]
    status: ClassVar[int] = 409
    retry_after_s: int | None = None

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

    @classmethod
    def of(cls, faults: list[dict[str, Any]]) -> "InvalidInput":
        """Return the refusal of these faults: what the only one says, or that there are several."""
        if len(faults) == 1:
            return cls(str(faults[0].get("detail") or faults[0].get("code") or "It cannot be read."), errors=faults)
        return cls(f"There are {len(faults)} faults; `errors` names each.", errors=faults)


class NotFound(DomainError):
    slug = "not-found"
    title = "There is no such thing here"
    status = 404


class Unavailable(DomainError):
    slug = "unavailable"
    title = "The service cannot answer just now"
    status = 503
    retry_after_s = 1


def echoed(text: str) -> str:
    """Return at most 64 characters of what was sent, with everything that is not plainly printable made visible."""
    cut = text if len(text) <= ECHO_LIMIT else text[: ECHO_LIMIT - 1] + "…"
    return "".join(f"<U+{ord(c):04X}>" if unicodedata.category(c) in _UNPRINTABLE else c for c in cut)


_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
