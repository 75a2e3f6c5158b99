"""How many GPUs an organization may have at one time: in leases that are not over, and in quotes that are open."""

from uuid import UUID

from apikit import statements
from apikit.errors import DomainError
from apikit.statements import Statement
from leasing.models import Quote
from tenants.models import Organization


class QuotaExceeded(DomainError):
    slug = "gpu-quota-exceeded"
    title = "The organization's GPU quota is used up"


def check(*, organization: Organization, gpus: int) -> None:
    """Raise QuotaExceeded if `gpus` more would be over it. The caller holds the organization's lock."""
    (rows,) = statements.run(held(organization.pk))
    refuse_if_over(organization, in_use=rows[0][0], gpus=gpus)


def held(organization_id: UUID, *, but: Quote | None = None) -> Statement:
    """Return the question for the GPUs of its leases that are not over and its open quotes (but one)."""
    return Statement(
        "SELECT coalesce((SELECT sum(gpu_count) FROM leasing_lease WHERE organization_id = %s AND state <> 'ended'), 0)"
        " + coalesce((SELECT sum(gpu_count) FROM leasing_quote WHERE organization_id = %s AND state = 'open'"
        " AND id IS DISTINCT FROM %s), 0)",
        [organization_id, organization_id, but.pk if but else None],
    )


def refuse_if_over(organization: Organization, *, in_use: int, gpus: int) -> None:
    if in_use + gpus > organization.gpu_quota:
        raise QuotaExceeded(
            f"{in_use} of {organization.gpu_quota} GPUs are in use or quoted; {gpus} more were asked for.",
            quota=organization.gpu_quota,
            in_use=in_use,
        )
