"""`manage.py loops`: no error of a tick ends a loop, and each run leaves its row."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from celery import current_app
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections

from apikit import clock
from embedded import processes
from scheduler import loop_progress
from scheduler.management.commands import loops
from scheduler.models import LoopProgress

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAME = "scheduler.converge"


def noted(name: str = NAME) -> LoopProgress:
    return LoopProgress.objects.get(name=name)


def run_until(ticks: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch, *, fallback: bool = False) -> None:
    """Run the loop NAME in a thread, as the command does, until `act` was called `ticks` times."""
    stop, called = threading.Event(), [0]

    def counted() -> None:
        called[0] += 1
        act()

    monkeypatch.setitem(current_app.tasks, NAME, counted)
    thread = threading.Thread(
        target=loops.run_loop, kwargs={"name": NAME, "every_s": 0.02, "fallback": fallback, "stop": stop}
    )
    thread.start()
    try:
        processes.poll_until(lambda: called[0] >= ticks, within_s=20, what=f"Tick {ticks}")
    finally:
        stop.set()
        thread.join(20)


def fail() -> None:
    raise ValueError("this tick is broken")


@pytest.mark.django_db
def test_a_run_that_succeeds_leaves_its_row() -> None:
    loops.run_once(name=NAME, act=lambda: None)

    assert (noted().runs, noted().failures) == (1, 0)
    assert noted().succeeded_at == noted().ended_at


@pytest.mark.django_db
def test_a_run_that_fails_says_with_what_and_is_no_success() -> None:
    loops.run_once(name=NAME, act=fail)

    assert (noted().runs, noted().failures) == (1, 1)
    assert noted().succeeded_at is None
    assert noted().last_error == "ValueError: this tick is broken"


@pytest.mark.django_db(transaction=True)
def test_a_loop_outlives_the_errors_of_its_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    run_until(3, fail, monkeypatch)

    assert noted().failures >= 2


@pytest.mark.django_db(transaction=True)
def test_a_loop_outlives_a_database_that_hangs_up_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    run_until(3, hang_up, monkeypatch)


@pytest.mark.django_db(transaction=True)
def test_the_fallback_acts_when_no_worker_has_run_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    long_ago = clock.now() - timedelta(minutes=5)
    loop_progress.note(name=NAME, started_at=long_ago, ended_at=long_ago, error=None)

    run_until(1, lambda: None, monkeypatch, fallback=True)

    assert noted().runs == 2


@pytest.mark.parametrize(
    ("age_s", "every_s", "late"), [(2, 1.0, False), (4, 1.0, True), (100, 60.0, False), (200, 60.0, True)]
)
@pytest.mark.django_db
def test_a_loop_is_late_after_three_intervals_without_a_success(age_s: int, every_s: float, late: bool) -> None:
    then = NOON - timedelta(seconds=age_s)
    loop_progress.note(name=NAME, started_at=then, ended_at=then, error=None)
    loop_progress.note(name=NAME, started_at=NOON, ended_at=NOON, error="a failure is no progress")

    assert loop_progress.is_late(name=NAME, every_s=every_s, at=NOON) is late


@pytest.mark.django_db
def test_a_worker_notes_the_loops_and_no_other_task() -> None:
    @current_app.task(name="tests.not_a_loop")  # type: ignore[untyped-decorator]
    def not_a_loop() -> None:
        """Nothing is due."""

    @current_app.task(name="tests.a_loop")  # type: ignore[untyped-decorator]
    def a_loop() -> None:
        """Nothing is due."""

    try:
        settings.LOOPS["tests.a_loop"] = 1.0
        a_loop.apply()
        not_a_loop.apply()
    finally:
        del settings.LOOPS["tests.a_loop"]
        for name in ("tests.a_loop", "tests.not_a_loop"):
            current_app.tasks.pop(name)

    assert list(LoopProgress.objects.values_list("name", flat=True)) == ["tests.a_loop"]


def test_a_task_that_is_not_there_is_refused() -> None:
    settings.LOOPS["tests.missing"] = 1.0
    try:
        with pytest.raises(CommandError, match=r"no task tests\.missing"):
            call_command("loops", only=["tests.missing"])
    finally:
        del settings.LOOPS["tests.missing"]


def test_every_loop_of_the_schedule_is_a_task() -> None:
    current_app.loader.import_default_modules()

    assert settings.LOOPS.keys() <= current_app.tasks.keys()


@pytest.mark.django_db(transaction=True)
def test_the_command_runs_the_schedule_until_sigterm() -> None:
    database: dict[str, Any] = connections["default"].settings_dict
    user, password = quote(database["USER"]), quote(database["PASSWORD"], safe="")
    url = f"postgresql://{user}:{password}@{database['HOST']}:{database['PORT']}/{database['NAME']}"
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "config.settings", "DEBUG": "1"}
    environment.pop("GPUYARD_DATABASE_URL", None)
    running = subprocess.Popen([sys.executable, "-m", "django", "loops", "--only", NAME], env=environment)
    try:
        processes.poll_until(
            lambda: running.poll() is not None or LoopProgress.objects.filter(name=NAME, runs__gte=2).exists(),
            within_s=60,
            what="Two runs",
        )
    finally:
        running.send_signal(signal.SIGTERM)
        ended_with = running.wait(30)

    assert ended_with == 0
    assert noted().failures == 0, noted().last_error
