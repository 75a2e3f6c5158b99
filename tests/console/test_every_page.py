"""Every list and every form of the operators' pages opens: a filter that cannot be is found here, and not by them."""

import pytest
from django.contrib import admin
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from accounts.models import User

pytestmark = pytest.mark.django_db
TABLES = sorted(admin.site._registry, key=lambda model: model._meta.label)


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", "root@example.org"))
    return client


@pytest.mark.parametrize("model", TABLES, ids=[model._meta.label for model in TABLES])
def test_a_table_opens_as_a_list_searched_and_empty(operator: Client, model: type[Model]) -> None:
    place = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    shown = admin.site._registry[model]

    answers = [operator.get(reverse(f"{place}_changelist"))]
    if shown.search_fields:
        answers.append(operator.get(reverse(f"{place}_changelist"), {"q": "zz"}))
    added = operator.get(reverse(f"{place}_add"))

    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert added.status_code in {200, 403}


def test_nobody_adds_a_second_factor_for_another(operator: Client) -> None:
    assert operator.get(reverse("admin:mfa_authenticator_add")).status_code == 403
