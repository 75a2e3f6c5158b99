from typing import Any

from django.core.management.base import BaseCommand

from leasing import images


class Command(BaseCommand):
    help = "Load the platform's images from leasing/data/images.json; repeating it changes nothing."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"{images.load_catalogue()} images")
