"""The catalogue's doors, and its pages in the admin."""

import json
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import include, path

from apikit import clock
from catalogue import loading
from catalogue.admin import GpuModelForm
from catalogue.models import GpuModel, Region
from tenants import keys, roles
from tests.factories import make_organization

urlpatterns = [path("api/v1/", include("catalogue.urls"))]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.catalogue.test_api")]


@pytest.fixture(autouse=True)
def catalogue(db: None) -> None:
    loading.load()


def get(address: str, *, scopes: tuple[str, ...] = roles.SCOPES) -> Any:
    _, secret = keys.create(
        organization=make_organization(), name="t", scopes=scopes, expires_at=None, created_by=None, at=clock.now()
    )
    return Client().get(f"/api/v1/{address}", headers={"Authorization": f"Bearer {secret}"})


def test_the_models_come_page_by_page_in_the_order_of_their_slugs() -> None:
    first = get("gpu-models?limit=2").json()

    assert [item["slug"] for item in first["items"]] == sorted(GpuModel.objects.values_list("slug", flat=True))[:2]
    assert first["next_cursor"]


def test_models_are_filtered_by_vendor_and_by_being_sold() -> None:
    GpuModel.objects.filter(slug="MI210_64G").update(sold=False)

    slugs = {item["slug"] for item in get("gpu-models?vendor=amd&sold=1&limit=100").json()["items"]}

    assert "MI300X_192G" in slugs
    assert "MI210_64G" not in slugs
    assert not any(slug.startswith("A100") for slug in slugs)


def test_a_model_shows_what_is_known_of_one_device_and_null_for_the_rest() -> None:
    mi250 = get("gpu-models/MI250_128G").json()
    rtx = get("gpu-models/RTX_5090_D_32G").json()
    hygon = get("gpu-models/HYGON_K100_AI").json()

    assert (mi250["memory_gib"], mi250["devices_per_board"]) == (64, 2)
    assert rtx["fp16_tensor_dense_tflops"] is None
    assert hygon["memory_gib"] is None
    assert mi250["id"].startswith("gpu_")


@pytest.mark.parametrize("slug", ["B999_80G", "a100_80g", "A100%0080G", "%2e%2e"])
def test_a_slug_that_is_not_in_the_catalogue_is_not_found(slug: str) -> None:
    assert get(f"gpu-models/{slug}").status_code == 404


def test_an_unknown_parameter_is_refused() -> None:
    assert get("gpu-models?memory=80").status_code == 422


def test_the_catalogue_is_for_those_who_may_read_leases() -> None:
    assert Client().get("/api/v1/gpu-models").status_code == 401
    assert get("gpu-models", scopes=("billing:read",)).status_code == 403
    assert get("regions", scopes=("leases:read",)).status_code == 200


def test_regions_say_their_currency_and_zones_and_if_they_are_simulated() -> None:
    regions = {item["slug"]: item for item in get("regions").json()["items"]}

    assert regions["sim"]["simulated"] is True
    assert regions["sim"]["currency"] == "XTS"
    assert regions["sim"]["zones"] == ["sim-a", "sim-b"]
    assert regions["cn-hangzhou"]["simulated"] is False
    assert len(regions) == 5


def form(slug: str, **changes: Any) -> GpuModelForm:
    model = GpuModel.objects.get(slug=slug)
    data = GpuModelForm(instance=model).initial | changes
    return GpuModelForm(data={name: value for name, value in data.items() if value is not None}, instance=model)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"aliases": '["A100-80G"]'}, "aliases"),
        ({"aliases": '"L40S"'}, "aliases"),
        ({"fractions": '["0.3"]'}, "fractions"),
        ({"fractions": '{"0.5": 1}'}, "fractions"),
        ({"driver_names": "[1]"}, "driver_names"),
        ({"memory_gib": -1}, "memory_gib"),
        ({"memory_gib": 0}, "__all__"),
    ],
)
def test_an_operator_cannot_spoil_a_model(changes: dict[str, Any], field: str) -> None:
    assert field in form("L40S_48G", **_texts("L40S_48G") | changes).errors


def test_an_operator_can_sell_other_fractions() -> None:
    edited = form("L40S_48G", **_texts("L40S_48G") | {"fractions": '["0.5", "0.125"]'})

    assert edited.is_valid(), edited.errors
    assert edited.save().fractions == ["0.125", "0.5"]


def _texts(slug: str) -> dict[str, Any]:
    """The lists of a model as the form's fields send them."""
    model = GpuModel.objects.get(slug=slug)
    names = ("aliases", "mig_profiles", "fractions", "driver_names", "pci_ids", "field_confidence")
    return {name: json.dumps(getattr(model, name)) for name in names}


@pytest.mark.urls("config.urls")
@pytest.mark.parametrize("model", ["gpumodel", "region", "zone"])
def test_the_pages_of_the_admin_open(model: str) -> None:
    user = get_user_model().objects.create_superuser(username="root", email="root@example.invalid", password="x")
    client = Client()
    client.force_login(user)
    row = {"gpumodel": GpuModel, "region": Region}.get(model)

    assert client.get(f"/admin/catalogue/{model}/?q=a").status_code == 200
    assert client.get(f"/admin/catalogue/{model}/add/").status_code == 200
    if row is not None:
        assert client.get(f"/admin/catalogue/{model}/{row.objects.first().pk}/change/").status_code == 200


@pytest.mark.urls("config.urls")
def test_an_operator_puts_a_model_right_on_its_page_but_not_its_slug() -> None:
    user = get_user_model().objects.create_superuser(username="root", email="root@example.invalid", password="x")
    client = Client()
    client.force_login(user)
    model = GpuModel.objects.get(slug="L40S_48G")
    sent = GpuModelForm(instance=model).initial | _texts("L40S_48G") | {"slug": "OTHER_1G", "tdp_w": 349, "sold": ""}

    answer = client.post(
        f"/admin/catalogue/gpumodel/{model.pk}/change/",
        data={name: value for name, value in sent.items() if value is not None},
    )

    assert answer.status_code == 302, answer.content[:2000]
    model.refresh_from_db()
    assert (model.slug, model.tdp_w, model.sold) == ("L40S_48G", 349, False)
