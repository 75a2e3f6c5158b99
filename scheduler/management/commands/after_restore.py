"""`manage.py after_restore`: once, after the database was restored, before any process of ours starts."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apikit import clock
from scheduler import restoring


class Command(BaseCommand):
    help = (
        "Make a restored database safe to go on with: nothing is charged that it has not heard, what still runs is "
        "adopted, and nothing is let again before what hosts were told since has run out."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--yes", action="store_true", help="nothing of ours is running: said, not asked")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["yes"]:
            raise CommandError("Stop every process of the control plane first, then say --yes.")
        self.stdout.write(json.dumps(restoring.after_restore(at=clock.now())))
