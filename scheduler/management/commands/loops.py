"""`manage.py loops`: every loop of `config/schedule.py` in this one process, without a broker."""

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

from celery import current_app
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections, connections

from apikit import clock
from scheduler import loop_progress

log = logging.getLogger(__name__)


class Command(BaseCommand):
    help = (
        "Run every loop of the schedule in this process, without a broker, until SIGTERM. Beside Celery's workers it "
        "is harmless, since both claim what is due; with --fallback it acts only where they fall behind."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--only", nargs="+", metavar="TASK", help="these loops of the schedule")
        parser.add_argument("--fallback", action="store_true", help="run a loop only when no worker has in time")

    def handle(self, *args: Any, **options: Any) -> None:
        current_app.loader.import_default_modules()  # every app's tasks
        loops = {
            name: every_s for name, every_s in settings.LOOPS.items() if name in (options["only"] or settings.LOOPS)
        }
        unknown = {*(options["only"] or ()), *loops} - current_app.tasks.keys()
        if unknown:
            raise CommandError(f"There is no task {', '.join(sorted(unknown))}.")
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        # A thread each, so that a slow loop delays no other.
        threads = [
            threading.Thread(
                target=run_loop,
                kwargs={"name": name, "every_s": every_s, "fallback": options["fallback"], "stop": stop},
                name=name,
            )
            for name, every_s in loops.items()
        ]
        for thread in threads:
            thread.start()
        stop.wait()
        for thread in threads:
            thread.join()


def run_loop(*, name: str, every_s: float, fallback: bool, stop: threading.Event) -> None:
    """Run the task `name` every `every_s` seconds until `stop` is set. No error of a tick ends it."""
    task: Callable[[], object] = current_app.tasks[name]
    while not stop.wait(every_s):
        close_old_connections()
        try:
            if not fallback or loop_progress.is_late(name=name, every_s=every_s, at=clock.now()):
                run_once(name=name, act=task)
        except Exception:  # the database is away, as a rule: the next tick finds it again
            log.exception("loop %s could not be looked at", name)
    connections.close_all()


def run_once(*, name: str, act: Callable[[], object]) -> None:
    """Run one tick here and now, and leave its outcome in the loop's row."""
    started_at = clock.now()
    error = None
    try:
        act()
    except Exception as fault:
        log.exception("loop %s failed", name)
        error = f"{type(fault).__name__}: {fault}"
    loop_progress.note(name=name, started_at=started_at, ended_at=clock.now(), error=error)
