"""From numbered facts to spans of time, in any order of arrival."""

from itertools import permutations

from billing.timeline import Fact, Span, cut, fold

RUN, PARK, STOP = Fact(1, 100, "active", 11), Fact(2, 160, "hold", 12), Fact(3, 200, None, None)


def test_every_order_of_arrival_gives_the_same_spans() -> None:
    folded = {fold(order).spans for order in permutations([RUN, PARK, STOP])}

    assert folded == {(Span(100, 160, "active", 11), Span(160, 200, "hold", 12))}


def test_what_runs_has_no_end() -> None:
    assert fold([RUN]).spans == (Span(100, None, "active", 11),)


def test_a_stop_of_one_use_leaves_another_running() -> None:
    spans = fold([RUN, Fact(2, 150, "hold", None)]).spans

    assert spans == (Span(100, None, "active", 11),)


def test_an_end_before_its_start_leaves_an_empty_span_and_is_told() -> None:
    timeline = fold([RUN, Fact(2, 98, None, None)])

    assert timeline.spans == (Span(100, 100, "active", 11),)
    assert timeline.backwards == (2,)


def test_a_start_before_the_last_end_begins_at_that_end() -> None:
    spans = fold([RUN, Fact(2, 150, None, None), Fact(3, 140, "active", 13)]).spans

    assert spans[1] == Span(150, None, "active", 13)


def test_a_span_is_cut_only_inside() -> None:
    assert cut(Span(100, 200, "active", 1), [100, 150, 200, 300]) == [(100, 150), (150, 200)]
    assert cut(Span(100, None, "active", 1), [90, 300]) == [(100, 300), (300, None)]
