"""Make an organization with its owner and, if asked, a first API key, which is printed once."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from accounts.models import User
from apikit import clock
from apikit.errors import DomainError
from tenants import keys, organizations, roles


class Command(BaseCommand):
    help = "Make an organization with its owner and, with --key, a first API key of every scope."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--owner", required=True, metavar="EMAIL", help="made if he does not exist")
        parser.add_argument("--currency", default="CNY", help="ISO 4217; XTS where the hardware is simulated")
        parser.add_argument("--time-zone", default="UTC")
        parser.add_argument("--gpu-quota", type=int, default=64)
        parser.add_argument("--key", metavar="NAME", help="make an API key of this name and print it")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with transaction.atomic():
                self._make(**options)
        except DomainError as exc:
            raise CommandError(exc.detail) from exc

    def _make(self, *, name: str, owner: str, currency: str, **options: Any) -> None:
        at = clock.now()
        email = owner.lower()
        user = User.objects.filter(email=email).first() or User.objects.create_user(email, email)
        organization = organizations.found(
            name=name,
            owner=user,
            currency=currency,
            time_zone=options["time_zone"],
            gpu_quota=options["gpu_quota"],
            at=at,
        )
        self.stdout.write(f"organization {organization.public_id} {organization.slug}")
        if options["key"]:
            _, secret = keys.create(
                organization=organization,
                name=options["key"],
                scopes=roles.SCOPES,
                expires_at=None,
                created_by=user,
                at=at,
            )
            self.stdout.write(f"key {secret}")
