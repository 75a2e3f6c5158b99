"""`manage.py reconcile`: prove the books, or name the rows that break them."""

import sys

from django.core.management.base import BaseCommand

from billing import reconcile


class Command(BaseCommand):
    help = "Check every invariant of the books. Exits 0 when all hold, 1 with the rows that break one."

    def handle(self, *args: object, **options: object) -> None:
        found = reconcile.findings()
        for finding in found:
            self.stdout.write(f"{finding.invariant}: row {finding.row}: {finding.detail}")
        if found:
            sys.exit(1)
        self.stdout.write(f"The books are right: {len(reconcile.checks())} invariants hold.")
