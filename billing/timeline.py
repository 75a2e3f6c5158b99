"""From facts to spans: what a stream of numbered facts says about a lane of time. Pure.

A lane is one member of one reference and what excludes itself there: computing (active or hold) or storage. The order
of facts is their number, never their arrival, so late and doubled deliveries give the same spans.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """`begins`: what runs from `at_s` on (an opaque key of a rate); None for a stop, which may name one use only."""

    seq: int
    at_s: int
    use: str | None
    begins: int | None


@dataclass(frozen=True)
class Span:
    """[start_s, end_s) of whole UTC seconds at the rate that `begins` names; end_s None while it runs."""

    start_s: int
    end_s: int | None
    use: str
    begins: int


@dataclass(frozen=True)
class Timeline:
    spans: tuple[Span, ...]
    backwards: tuple[int, ...]  # numbers of the facts that end something before it began


def fold(facts: Iterable[Fact]) -> Timeline:
    """Return the spans that the facts describe; they never overlap, and a backward end leaves an empty one."""
    spans: list[Span] = []
    backwards: list[int] = []
    running: tuple[int, Fact] | None = None
    floor_s = 0
    for fact in sorted(facts, key=lambda f: f.seq):
        if running is not None and (fact.begins is not None or fact.use in (None, running[1].use)):
            start_s, began = running
            if fact.at_s < start_s:
                backwards.append(fact.seq)
            floor_s = max(fact.at_s, start_s)
            spans.append(Span(start_s, floor_s, began.use or "", began.begins or 0))
            running = None
        if fact.begins is not None:
            running = max(fact.at_s, floor_s), fact
    if running is not None:
        spans.append(Span(running[0], None, running[1].use or "", running[1].begins or 0))
    return Timeline(tuple(spans), tuple(backwards))


def cut(span: Span, points_s: Sequence[int]) -> list[tuple[int, int | None]]:
    """Return the span's pieces between the points that lie inside it."""
    inside = sorted(p for p in points_s if p > span.start_s and (span.end_s is None or p < span.end_s))
    starts = [span.start_s, *inside]
    return list(zip(starts, [*inside, span.end_s], strict=True))
