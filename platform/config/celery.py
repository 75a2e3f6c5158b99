"""The Celery application: `celery -A config worker`, `celery -A config beat`."""

import os
from typing import Any

from celery import Celery, Task

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")


class NotedTask(Task):  # type: ignore[misc]
    """A task that leaves a row behind when it is one of the loops (scheduler.loop_progress)."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        from apikit import clock

        self.request.noted_from = clock.now()

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        from django.conf import settings

        from apikit import clock
        from scheduler import loop_progress

        if self.name in settings.LOOPS:
            error = None if status == "SUCCESS" else repr(retval)
            loop_progress.note(name=self.name, started_at=self.request.noted_from, ended_at=clock.now(), error=error)


app = Celery("gpuyard", task_cls=NotedTask)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
