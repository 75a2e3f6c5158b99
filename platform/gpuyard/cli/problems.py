"""What a refusal looks like on a terminal, and which exit code it is."""

import json
from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len

from gpuyard import errors
from gpuyard.cli import explaining, values
from gpuyard.cli.tables import printable
from gpuyard.durations import show

OK, ERROR, USAGE, NOT_FOUND, NOT_ALLOWED, CONFLICT, NO_CAPACITY, NO_MONEY, STILL_WAITING, INTERRUPTED = *range(9), 130

_BY_SLUG = {
    "no-capacity": NO_CAPACITY,
    "insufficient-funds": NO_MONEY,
    "gpu-quota-exceeded": NO_MONEY,
    "budget-exceeded": NO_MONEY,
}
_BY_STATUS = {
    400: USAGE,
    401: NOT_ALLOWED,
    402: NO_MONEY,
    403: NOT_ALLOWED,
    404: NOT_FOUND,
    409: CONFLICT,
    410: CONFLICT,
    412: CONFLICT,
    413: USAGE,
    414: USAGE,
    415: USAGE,
    422: USAGE,
    428: CONFLICT,
}
_BY_END = {"never_placed": NO_CAPACITY, "balance": NO_MONEY}

_NEXT_STEP = {
    "unauthenticated": "Sign in with `gpuyard login`, or check GPUYARD_API_KEY.",
    "permission-denied": "Use a key with this scope, or ask an owner of the organization.",
    "not-found": "`gpuyard ps` and the other lists show what is there.",
    "insufficient-funds": "Top up the wallet (`gpuyard wallet` shows it), or ask for less or for a shorter time.",
    "gpu-quota-exceeded": "End a lease (`gpuyard ps`), or ask for a higher quota.",
    "quote-allowance-used-up": "Redeem a quote (`gpuyard lease create --quote ID`), or ask for a shorter --ttl.",
    "budget-exceeded": "Raise the budget, or ask for less.",
    "no-capacity": "`gpuyard offers` shows what can be had now; a lease without --no-queue waits for it.",
    "quote-expired": "Make a new quote with `gpuyard quote`.",
    "precondition-failed": "It changed in the meantime: look at it again, then repeat.",
    "image-not-runnable": "Choose another image (`gpuyard image list`) or another GPU.",
    "unavailable": "Nothing was changed. Try again in a moment.",
}
_WINDOW = 60  # characters of a text that are shown around a fault
_FACTS = ("needed", "missing", "quota", "in_use", "state", "actions", "key", "max_bytes")


def exit_code(error: BaseException) -> int:
    """Return the exit code of API.md section 7."""
    if isinstance(error, errors.ApiError):
        return _BY_SLUG.get(error.slug) or _BY_STATUS.get(error.status, ERROR)
    if isinstance(error, errors.NotConfigured):
        return NOT_ALLOWED
    if isinstance(error, errors.WaitTimedOut):
        return STILL_WAITING
    if isinstance(error, errors.LeaseEnded):
        return _BY_END.get(error.lease.end_reason or "", ERROR)
    return ERROR


def as_data(error: errors.GpuyardError) -> str:
    """Return the error as one JSON object: the server's problem, or one of the same form."""
    if isinstance(error, errors.ApiError):
        return json.dumps(error.problem, ensure_ascii=False)
    return json.dumps({"title": type(error).__name__, "detail": str(error)}, ensure_ascii=False)


def lines(error: errors.GpuyardError) -> Iterator[str]:
    """Yield what a person is told: what is wrong, where, what would be right, and what to do next."""
    yield f"Error: {printable(str(error))}"
    if isinstance(error, errors.WaitTimedOut):
        yield from following(error.lease.id)
    if not isinstance(error, errors.ApiError):
        return
    for fault in error.errors:
        yield from _fault(fault, error.sent, known=str(error))
    for name in _FACTS:
        if error.problem.get(name) not in (None, "", [], {}):
            yield f"  {name.replace('_', ' ')}: {printable(values.plain(error.problem[name]))}"
    yield from _capacity(error.problem)
    step = _next_step(error)
    if step:
        yield step
    if error.request_id:
        yield f"Request {printable(error.request_id)} ({error.status} {printable(error.slug) or 'without a type'})"


def following(lease_id: str, *, offset: int | None = None, member: int = 0) -> Iterator[str]:
    """Yield how to follow or stop a lease that goes on by itself. offset: of its output, what was printed already."""
    rest = (f" --member {member}" if member else "") + (f" --offset {offset}" if offset else "")
    yield f"The lease {lease_id} goes on."
    yield f"  Follow it: gpuyard lease wait {lease_id}    gpuyard logs -f {lease_id}{rest}"
    yield f"  Stop it:   gpuyard stop {lease_id}"


def _next_step(error: errors.ApiError) -> str:
    if error.retry_after_s and error.slug in ("rate-limited", "unavailable"):
        return f"Try again in {show(max(1, error.retry_after_s))}."
    return _NEXT_STEP.get(error.slug, "")


def _fault(fault: dict[str, Any], sent: errors.Sent | None, *, known: str) -> Iterator[str]:
    """Yield one fault. known: what was said already and need not be said twice."""
    place = printable(str(fault.get("pointer") or fault.get("parameter") or ""))
    said = str(fault.get("detail") or fault.get("code") or "")
    yield f"  {place}: {printable(said)}" if said != known else f"  {place}:"
    text = _text_at(fault, sent)
    position = fault.get("position")
    if text is not None and isinstance(position, int) and 0 <= position <= len(text):
        yield from _pointed(text, position)
    nearest = fault.get("nearest")
    if isinstance(nearest, list) and nearest:
        yield f"    Nearest: {printable('   '.join(map(str, nearest)))}"


def _text_at(fault: dict[str, Any], sent: errors.Sent | None) -> str | None:
    """Return the text that was sent where the fault is (RFC 6901), None if there is none."""
    if sent is None:
        return None
    if "parameter" in fault:
        return sent.query.get(str(fault["parameter"]))
    found = sent.body
    for part in str(fault.get("pointer", "")).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found if isinstance(found, str) else None


def _pointed(text: str, position: int) -> Iterator[str]:
    """Yield the text and a caret under the faulty character; of a long text, what stands around it."""
    start = max(0, position - _WINDOW // 2)
    before, after = text[start:position], text[position : start + _WINDOW]
    lead = "…" if start else ""
    tail = "…" if start + _WINDOW < len(text) else ""
    yield f"    {lead}{printable(before)}{printable(after)}{tail}"
    yield " " * (4 + cell_len(lead + printable(before))) + "^"


def _helpful(found: Any) -> str:
    """Return what would work: requests to type, where the server says them; each but once."""
    if not isinstance(found, list):
        return values.plain(found)
    rows = (each if isinstance(each, dict) else {"request": each} for each in found)
    return "   ".join(dict.fromkeys(str(row.get("request") or values.plain(row)) for row in rows))


def _capacity(problem: dict[str, Any]) -> Iterator[str]:
    reasons = problem.get("reasons")
    if isinstance(reasons, dict):  # a list of them is the sentence once more, for programs
        yield from explaining.counted(reasons)
    nearest = problem.get("nearest") or problem.get("would_help")
    if nearest:
        yield f"  What would help: {printable(_helpful(nearest))}"
    expected = values.eta(problem)
    if expected:
        yield f"  Expected {expected}"
