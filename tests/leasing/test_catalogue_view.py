"""What is kept of the catalogue in a process never hides another name, nor another currency."""

import pytest

from catalogue.models import GpuModel, Region
from leasing import catalogue_view
from tests.factories import make_gpu_model, make_zone

pytestmark = pytest.mark.django_db


def test_names_and_currencies_show_at_once_though_the_numbers_stay_the_same() -> None:
    make_zone("north-1", simulated=False), make_gpu_model("A100_80G")
    before = catalogue_view.current()

    Region.objects.update(slug="sim", currency="XTS", simulated=True)
    GpuModel.objects.update(slug="H100_80G")
    after = catalogue_view.current()

    assert before.currency_of_region == {"north": "CNY"}
    assert after.currency_of_region == {"sim": "XTS"}
    assert [gpu.slug for gpu in after.catalogue.gpus] == ["H100_80G"]
    assert catalogue_view.current() is after
