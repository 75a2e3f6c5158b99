"""Groups: several members of an organization with one more role."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from audit import ids
from tenants.models import Membership, Organization, Role

# Owners are named one by one: whoever may change a group must not make owners by it.
ROLES = tuple(role for role in Role if role != Role.OWNER)


class Group(models.Model):
    """Whoever is in it may do what its role may, beside what his own role may."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    organization = models.ForeignKey(Organization, models.PROTECT, related_name="groups")
    name = models.CharField(max_length=64)
    role = models.CharField(max_length=16, choices=[(role.value, role.label) for role in ROLES])
    version = models.PositiveBigIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="group_name_is_unique_for_its_owner"),
            models.CheckConstraint(condition=Q(role__in=[*ROLES]), name="group_has_a_role_of_groups"),
        ]
        indexes = [models.Index(fields=["organization", "id"], name="group_of_organization")]

    @property
    def public_id(self) -> str:
        return ids.encode("group", self.pk)

    def __str__(self) -> str:
        return f"{self.name} ({self.role})"


class GroupMember(models.Model):
    """A membership is in a group, of the same organization; it goes with either."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    group = models.ForeignKey(Group, models.CASCADE, related_name="inside")
    membership = models.ForeignKey(Membership, models.CASCADE, related_name="groups_in")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["group", "membership"], name="once_in_a_group")]

    def __str__(self) -> str:
        return f"{self.membership} in {self.group}"
