"""Devices between two tenants, on the server: held until the host has cleaned, and out of service when it could not."""

from typing import Any

import pytest

from agents import reports, workloads
from agents.models import Alarm, CleaningRecord, Device, Host, Workload
from agents.protocol import DeviceReport
from leasing import parking
from leasing.models import Allocation, Lease
from leasing.states import EndReason, State
from scheduler import converging, recovery
from tests.factories import after, hear, make_active_lease, make_host, make_lease, place, price, say

pytestmark = pytest.mark.django_db
COMMON = [{"check": name, "passed": True, "detail": ""} for name in ("container", "network", "secrets", "scratch")]


def record(device: str, **failed: str) -> dict[str, Any]:
    checks = [
        {"check": name, "passed": name not in failed, "detail": failed.get(name, ""), "limit_mib": 100}
        for name in ("processes", "memory")
    ]
    return {"clean": not failed, "duration_ms": 250, "checks": COMMON, "devices": {device: checks}}


@pytest.fixture
def lease() -> Lease:
    make_host(name="only")
    price()
    made = make_active_lease()
    Workload.objects.update(last_valid_until=after(63))  # an answer has named it, so it may be running
    say(made, "ready", at=after(3), container="c1")
    return made


def ended(lease: Lease) -> Lease:
    hear(lease, at=after(60))
    return recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(60))


def test_a_device_is_not_let_while_its_host_cleans_and_the_lease_is_over_meanwhile(lease: Lease) -> None:
    ended(lease)
    say(lease, "cleaning", at=after(62), container="c1")
    converging.converge(at=after(63))
    waiting = make_lease(at=after(63))
    place(at=after(64))
    lease.refresh_from_db()
    waiting.refresh_from_db()
    assert (lease.state, waiting.state) == (State.ENDED, State.PENDING)
    assert Allocation.objects.get().released_at is None

    device = Device.objects.get()
    say(lease, "gone", at=after(70), container="c1", handover=record(device.uuid))
    converging.converge(at=after(71))
    place(at=after(72))

    waiting.refresh_from_db()
    assert waiting.state == State.PROVISIONING
    kept = CleaningRecord.objects.get()
    assert (kept.reference, kept.device, kept.was_clean, kept.duration_ms) == (lease.public_id, device, True, 250)
    assert (kept.ended_at, kept.at) == (after(62), after(70))
    assert [check["check"] for check in kept.checks] == [
        "container", "network", "secrets", "scratch", "processes", "memory",
    ]  # fmt: skip


def test_a_device_that_stays_dirty_is_out_of_service_with_the_reason_until_it_is_clean_and_tested(
    lease: Lease,
) -> None:
    device = Device.objects.get()
    ended(lease)
    say(lease, "gone", at=after(190), container="c1", handover=record(device.uuid, memory="900 MiB in use"))
    converging.converge(at=after(191))
    waiting = make_lease(at=after(191))
    place(at=after(192))
    waiting.refresh_from_db()
    device.refresh_from_db()

    assert (waiting.state, device.health) == (State.PENDING, Device.Health.SUSPECT)
    assert device.health_reason == "Not clean after its last tenant: memory (900 MiB in use)"
    assert Alarm.objects.get(kind="device_dirty").subject == device.public_id
    assert CleaningRecord.objects.get().was_clean is False

    assert seen(device, used_mib=900, second=200) == Device.Health.SUSPECT
    assert seen(device, used_mib=900, second=2000) == Device.Health.SUSPECT, "time alone made it clean"
    assert seen(device, used_mib=80, second=2010) == Device.Health.SELFTEST


def seen(device: Device, *, used_mib: int, second: int) -> str:
    """Let the host report the device; return the health that it has then."""
    host = Host.objects.get()
    item = DeviceReport(uuid=device.uuid, readings={"memory_used_mib": used_mib, "processes": []}).to_json()
    reports.apply_devices(
        host=host,
        items=[item],
        inventory_is_known=True,
        leased=set(),
        rebooted=False,
        proven_at=after(second),
        at=after(second),
    )
    device.refresh_from_db()
    return str(device.health)


def test_what_a_host_says_is_cut_and_read_with_care(lease: Lease) -> None:
    ended(lease)
    nonsense = {"duration_ms": "long", "checks": "all", "devices": [1]}
    say(lease, "gone", at=after(70), container="c1", handover=nonsense)

    kept = CleaningRecord.objects.get()

    assert (kept.was_clean, kept.duration_ms, kept.checks) == (True, None, [])


def test_an_agent_that_says_nothing_of_it_is_recorded_as_such(lease: Lease) -> None:
    ended(lease)
    say(lease, "gone", at=after(70), container="c1")

    assert CleaningRecord.objects.get().was_clean is None


def test_scratch_is_kept_for_a_parked_lease_that_holds_and_dropped_when_it_ends(lease: Lease) -> None:
    host = Host.objects.get()
    price_of_holding()
    hear(lease, at=after(60))
    recovery.park_now(lease=lease, keep=parking.HOLD, at=after(60))
    assert workloads.kept_scratch(host.pk) == [lease.public_id]
    before = Host.objects.get().generation

    say(lease, "gone", at=after(61), container="c1")
    recovery.end_now(lease=Lease.objects.get(), reason=EndReason.TENANT, at=after(70))
    converging.converge(at=after(71))

    assert Lease.objects.get().state == State.ENDED
    assert workloads.kept_scratch(host.pk) == []
    assert Host.objects.get().generation > before, "the host is not told"


def price_of_holding() -> None:
    from billing import price_list
    from tests.factories import NOON

    series = price_list.Series(
        sku="A100_80G", region="sim", tier="verified", term="on_demand", use="hold", currency="XTS"
    )
    price_list.publish(series=series, price_micros_per_hour=1_000_000, starts_at=NOON, cause="test", at=NOON)


def test_scratch_of_a_lease_that_only_keeps_its_wish_is_not_kept(lease: Lease) -> None:
    hear(lease, at=after(60))
    recovery.park_now(lease=lease, keep=parking.QUEUE, at=after(60))

    assert Workload.objects.get().keeps_scratch is False
