"""manage.py load_catalogue: models, regions and zones from the files of the catalogue."""

from typing import Any

from django.core.management.base import BaseCommand

from catalogue import loading


class Command(BaseCommand):
    help = "Write the GPU models, regions and zones that are new or changed in the catalogue's files."

    def handle(self, *args: Any, **options: Any) -> None:
        loaded = loading.load()
        self.stdout.write(f"{loaded.models} GPU models, {loaded.regions} regions and {loaded.zones} zones written")
