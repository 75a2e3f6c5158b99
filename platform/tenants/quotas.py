"""How much an organization may hold at one time."""

from uuid import UUID

from apikit.errors import DomainError
from tenants.models import Organization


class GpuQuotaExceeded(DomainError):
    slug = "gpu-quota-exceeded"
    title = "The organization's GPU quota is used up"


def lock(organization_id: UUID) -> Organization:
    """Return the organization with its row locked: first in the lock order, so "count, then insert" is one step."""
    return Organization.objects.select_for_update(no_key=True).get(pk=organization_id)


def check_gpus(*, organization: Organization, in_use: int, wanted: int) -> None:
    """Raise GpuQuotaExceeded if `wanted` more GPUs than the `in_use` ones are too many. The caller holds the lock."""
    if in_use + wanted > organization.gpu_quota:
        raise GpuQuotaExceeded(
            f"{in_use} of {organization.gpu_quota} GPUs are in use; {wanted} more were asked for.",
            quota=organization.gpu_quota,
            in_use=in_use,
            wanted=wanted,
        )
