"""Who is calling: people. What they may do in which organization stands in `tenants`."""

from django.contrib.auth.models import AbstractUser
from django.db import models

from audit import ids


class User(AbstractUser):
    """A person who can sign in. Platform staff are users with `is_staff`; tenants' rights come from memberships."""

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    email = models.EmailField("email address", unique=True)

    REQUIRED_FIELDS = ["email"]

    @property
    def public_id(self) -> str:
        return ids.encode("user", self.pk)

    def __str__(self) -> str:
        return self.email
