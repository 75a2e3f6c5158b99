import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from apikit import clock
from console import demo_market


class Command(BaseCommand):
    help = (
        "Make what a one-machine installation needs (catalogue, images, play-money prices, organizations) and print "
        "API keys and enrolment tokens as one JSON line. Repeating it makes what is missing, and new keys."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", action="append", default=[], metavar="NAME", help="a host of the simulated pool")
        parser.add_argument("--admin-password", default=None, help="of the operator `admin`; left alone when not given")

    def handle(self, *args: Any, **options: Any) -> None:
        made = demo_market.set_up(hosts=options["host"], admin_password=options["admin_password"], at=clock.now())
        self.stdout.write(json.dumps(made))
