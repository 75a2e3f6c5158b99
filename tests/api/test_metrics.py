"""What the GPUs of a lease measured, as a tenant asks for it."""

from collections.abc import Iterator
from typing import Any

import pytest

from agents import measurements
from agents.models import Workload
from apikit import clock
from leasing.models import Lease
from scheduler import metrics_api
from tenants.models import Role
from tests.factories import after, make_active_lease, make_host, make_image, make_tenant, price
from tests.tenants.conftest import MemberCaller

pytestmark = pytest.mark.django_db
HOUR_ON = after(3600)


@pytest.fixture(autouse=True)
def _an_hour_on() -> Iterator[None]:
    with clock.frozen(HOUR_ON):
        yield


@pytest.fixture
def lease() -> Lease:
    make_host(gpus=8)
    price()
    make_image()
    return make_active_lease(make_tenant(), "A100_80G x2")


@pytest.fixture
def caller(lease: Lease) -> MemberCaller:
    return MemberCaller(lease.organization, Role.DEVELOPER)


def measure(lease: Lease, percent: int, *, at_s: int) -> None:
    """Let both GPUs measure; the second says nothing but its heat."""
    workload = Workload.objects.get(reference=lease.public_id)
    first, second = workload.spec["devices"]
    said = {first: {"utilization_percent": percent, "power_mw": 250_000}, second: {"temperature_c": 40}}
    measurements.record([workload], said, at=after(at_s))


def ask(caller: MemberCaller, lease: Lease, query: str = "", *, status: int = 200) -> dict[str, Any]:
    answer = caller.get(f"/api/v1/leases/{lease.public_id}/metrics{query}")
    assert answer.status_code == status, answer.content
    found: dict[str, Any] = answer.json()
    return found


def test_each_gpu_has_a_figure_a_minute_and_null_where_nothing_was_measured(lease: Lease, caller: MemberCaller) -> None:
    measure(lease, 20, at_s=3540)
    measure(lease, 60, at_s=3555)

    shown = ask(caller, lease)

    assert (shown["step_s"], len(shown["at"]), shown["simulated"]) == (60, 60, True)
    assert (shown["from"], shown["to"]) == ("2027-03-01T12:01:00Z", "2027-03-01T13:01:00Z")
    first, second = shown["series"]
    assert (first["member"], first["gpu_model"], first["memory_total_mib"]) == (0, "A100_80G", 81920)
    assert first["utilization_percent"]["mean"] == [*[None] * 58, 40, None]
    assert first["utilization_percent"]["max"] == [*[None] * 58, 60, None]
    assert first["power_mw"]["mean"][58] == 250_000
    assert set(second["utilization_percent"]["mean"]) == {None}
    assert second["temperature_c"]["mean"][58] == 40


def test_a_range_and_a_step_are_as_asked_for(lease: Lease, caller: MemberCaller) -> None:
    for at_s in (0, 60, 300):
        measure(lease, at_s // 10, at_s=at_s)

    shown = ask(caller, lease, "?since=2027-03-01T12:00:00Z&until=2027-03-01T12:09:30Z&step_s=300&member=0")

    assert shown["at"] == ["2027-03-01T12:00:00Z", "2027-03-01T12:05:00Z"]
    assert shown["series"][0]["utilization_percent"]["mean"] == [3, 30]
    assert ask(caller, lease, "?member=1")["series"] == []


@pytest.mark.parametrize(
    "query",
    [
        "?since=2027-03-01T13:30:00Z",
        "?since=2027-03-01T12:30:00Z&until=2027-03-01T12:20:00Z",
        "?step_s=61",
        "?member=x",
    ],
)
def test_a_range_that_is_none_is_refused(lease: Lease, caller: MemberCaller, query: str) -> None:
    assert ask(caller, lease, query, status=422)["errors"][0]["parameter"] == query[1:].partition("=")[0]


def test_a_long_range_has_longer_steps_and_too_short_ones_are_refused(
    lease: Lease, caller: MemberCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_api, "POINTS_MOST", 30)

    assert ask(caller, lease)["step_s"] == 300
    refused = ask(caller, lease, "?step_s=60", status=422)
    assert "300 s would do" in refused["detail"]
    monkeypatch.setattr(metrics_api, "POINTS_MOST", 1)
    assert "name a `member`" in ask(caller, lease, status=422)["detail"]


def test_a_lease_that_never_ran_measured_nothing(caller: MemberCaller, lease: Lease) -> None:
    waiting = caller.post("/api/v1/leases", {"request": "A100_80G x8", "image": "pytorch_latest"}).json()

    shown = caller.get(f"/api/v1/leases/{waiting['id']}/metrics").json()

    assert (shown["series"], len(shown["at"])) == ([], 60)


def test_what_is_not_kept_any_more_is_not_asked_for(lease: Lease, caller: MemberCaller) -> None:
    shown = ask(caller, lease, "?since=2027-01-01T00:00:00Z")

    assert shown["from"] == "2027-02-22T13:01:00Z"
