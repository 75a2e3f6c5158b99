"""People: one per address."""

import pytest
from django.db import IntegrityError, transaction

from accounts.models import User

pytestmark = pytest.mark.django_db


def test_an_address_belongs_to_one_person() -> None:
    User.objects.create_user("a", "a@example.org")

    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.create_user("b", "a@example.org")


def test_a_person_has_a_typed_id_and_no_usable_password_by_default() -> None:
    user = User.objects.create_user("a", "a@example.org")

    assert user.public_id.startswith("user_")
    assert not user.has_usable_password()
