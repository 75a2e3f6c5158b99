from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import host_events, score
from agents.models import CapacityChange, Host, ScoreEntry
from agents.score import Mishap
from tests.agents.conftest import Clock
from tests.agents.test_hosts_doors import Owner
from tests.factories import NOON, after, make_host

DAY_S = 86_400


def test_a_loss_weighs_less_every_day_and_nothing_after_thirty() -> None:
    loss = Mishap(NOON, -500)

    weights = [score.weight(loss, at=after(day * DAY_S)) for day in (0, 15, 29, 30, 31)]

    assert weights == [-500, -250, -16, 0, 0]


@given(
    mishaps=st.lists(st.builds(Mishap, st.integers(-90, 0).map(lambda d: after(d * DAY_S)), st.integers(-5000, -1))),
    days=st.integers(0, 60),
)
def test_without_a_new_mishap_the_score_never_falls_and_is_full_at_last(mishaps: list[Mishap], days: int) -> None:
    scores = [score.score_bp(mishaps, at=after((days + more) * DAY_S)) for more in (0, 1, 30)]

    assert 0 <= scores[0] <= scores[1] <= scores[2] == score.FULL_BP


def test_what_if_answers_what_an_owner_asks() -> None:
    answers = score.what_if([Mishap(NOON, -500), Mishap(NOON, -150)], at=NOON)

    assert answers == score.WhatIf(
        after_7_days_bp=10_000 - 383 - 115,
        after_30_days_bp=10_000,
        without_heaviest_bp=9_850,
        after_another_loss_bp=8_850,
    )


@pytest.mark.django_db
def test_a_mishap_of_the_diary_counts_once_however_often_the_loop_runs() -> None:
    host, other = make_host(), make_host()
    host_events.record(host_id=host.pk, kind="host.lost", at=NOON)
    host_events.record(host_id=host.pk, kind="host.cordoned", at=NOON)

    CapacityChange.objects.all().delete()
    moved = [score.update(at=after(1)) for _ in range(3)]

    assert moved == [1, 0, 0]
    assert ScoreEntry.objects.get().points == -500
    assert Host.objects.get(pk=host.pk).reliability_bp == 9_500
    assert Host.objects.get(pk=other.pk).reliability_bp == 10_000
    assert set(CapacityChange.objects.values_list("host", flat=True)) == {host.pk}


@pytest.mark.django_db
def test_a_score_recovers_by_itself() -> None:
    host = make_host()
    host_events.record(host_id=host.pk, kind="host.lost", at=NOON)
    score.update(at=NOON)

    score.update(at=NOON + timedelta(days=15))
    half = Host.objects.get().reliability_bp
    score.update(at=NOON + timedelta(days=30))

    assert (half, Host.objects.get().reliability_bp) == (9_700, 10_000)


@pytest.mark.django_db
def test_an_owner_sees_every_point_with_its_reason_and_the_formula(at: Clock) -> None:
    owner = Owner()
    host = make_host(owner=owner.organization)
    host_events.record(host_id=host.pk, kind="device.lost", detail="Xid 79", at=NOON)
    score.update(at=NOON)

    shown = owner.call("GET", f"/hosts/{host.public_id}/score").json()

    assert shown["score_bp"] == 9_700
    assert shown["entries"] == [
        {"at": "2027-03-01T12:00:00Z", "kind": "device.lost", "detail": "Xid 79", "points_bp": -300, "weighs_bp": -300}
    ]
    assert shown["formula"]["points_bp"]["device.lost"] == -300
    assert shown["what_if"]["after_another_loss_bp"] == 9_200
    assert Owner().call("GET", f"/hosts/{host.public_id}/score").status_code == 404
