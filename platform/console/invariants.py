"""The books are checked from time to time, and what was found stays readable: on a page, and as a metric."""

from collections import defaultdict
from datetime import datetime

from django.db import transaction

from billing import reconcile
from billing.reconcile import Finding
from console.models import InvariantCheck

EXAMPLES = 10


def check(*, at: datetime) -> int:
    """Check every invariant, keep what each finds, and return how many rows break one. The queries only read."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in reconcile.findings():
        found[finding.invariant].append(finding)
    with transaction.atomic():
        for name in reconcile.checks():
            examples = [{"row": finding.row, "detail": finding.detail} for finding in found[name][:EXAMPLES]]
            InvariantCheck.objects.update_or_create(
                name=name, defaults={"checked_at": at, "findings": len(found[name]), "examples": examples}
            )
        InvariantCheck.objects.exclude(name__in=reconcile.checks()).delete()  # one that is no longer asked
    return sum(len(rows) for rows in found.values())
