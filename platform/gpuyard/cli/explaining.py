"""--explain and --dry-run in words: what was asked over HTTP, and why the answer is as it is."""

from collections.abc import Iterator
from typing import Any

import httpx2

from gpuyard.cli import tongue, values
from gpuyard.transport import Send

_BODY_SHOWN = 2_000  # characters of a body


def exchange(sent: Send, outcome: httpx2.Response | httpx2.TransportError, took_s: float) -> Iterator[str]:
    """Yield the call and its answer; the key itself is never shown."""
    query = "&".join(f"{name}={value}" for name, value in sent.query)
    yield f"> {sent.method} {sent.path}{'?' + query if query else ''}"
    for name, value in sent.headers.items():
        yield f"> {name}: {value}"
    if sent.content:
        yield f"> {sent.content.decode()[:_BODY_SHOWN]}"
    if isinstance(outcome, httpx2.TransportError):
        yield f"< no answer after {took_s:.3f} s: {outcome or type(outcome).__name__}"
        return
    yield f"< {outcome.status_code} {outcome.reason_phrase} after {took_s:.3f} s"
    for name in ("X-Request-Id", "ETag", "Location", "Retry-After", "Idempotency-Replayed", "RateLimit"):
        if name in outcome.headers:
            yield f"< {name}: {outcome.headers[name]}"


def why(data: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons that an answer carries."""
    waiting = data.get("why_waiting")
    if isinstance(waiting, dict):
        yield f"It waits: {waiting.get('text', '')}"
        yield from counted(waiting.get("counts") or waiting.get("reasons"))
        yield from _helpful(waiting.get("would_help"))
    decision = data.get("decision")
    if isinstance(decision, dict):
        for name, value in decision.items():
            yield f"Decided by {name}: {values.plain(value)}"
    if data.get("end_reason"):
        yield f"It ended: {values.ended_by(data['end_reason'])}"


def counted(counts: Any) -> Iterator[str]:
    """Yield refusals per reason, as the server counts them: a mapping, or a list of objects."""
    if isinstance(counts, dict):
        for reason, count in counts.items():
            yield f"  {count} x {str(reason).replace('_', ' ')}"
    elif isinstance(counts, list):
        yield from (f"  {_refused(entry) if isinstance(entry, dict) else values.plain(entry)}" for entry in counts)


def _refused(entry: dict[str, Any]) -> str:
    rest = {name: value for name, value in entry.items() if name not in ("code", "hosts")}
    facts = values.plain(rest)
    return f"{entry.get('hosts')} x {str(entry.get('code')).replace('_', ' ')}{f' ({facts})' if facts else ''}"


def _helpful(would_help: Any) -> Iterator[str]:
    if would_help:
        yield f"What would help: {values.plain(would_help)}"


def plan(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a dry run says would happen. A verb whose plan has another shape shows its members as they are."""
    found = data.get("plan", data)
    if not isinstance(found, dict):
        yield "plan", values.plain(found)
        return
    yield "dry run", tongue.said("nothing was changed, and nothing is promised")
    for name, value in found.items():
        if name == "placement" and isinstance(value, list):
            for member in value:
                where = " ".join(str(member.get(part)) for part in ("host", "region", "zone") if member.get(part))
                what = f"{member.get('gpus')} x {member.get('gpu_model')}" if "gpu_model" in member else ""
                yield f"member {member.get('rank', '')}", f"{what} on {where}{values.badge(member)}"
        elif name == "why_waiting" and isinstance(value, dict):
            yield "why not now", str(value.get("text", ""))
            yield from (("", line.strip()) for line in counted(value.get("counts")))
        elif value is not None:
            yield name.replace("_micros", "").replace("_", " "), values.readable(name, value, found)
