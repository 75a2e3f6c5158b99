"""The life of a lease: from request to the last micro-unit."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.db.models import Q

from agents.models import Host, Workload
from apikit.errors import InvalidInput
from billing import holds, metering, reconcile, wallets
from leasing import assigning, calendar, gpu_quota, lifecycle, starting, term_changes
from leasing.assigning import Assignment
from leasing.calendar import Seat
from leasing.models import Allocation, Lease
from leasing.states import NEXT, EndReason, State
from scheduler import converging, recovery
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    place,
    price,
    say,
    wanted,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def host() -> Host:
    host = make_host(gpus=8)
    price()
    return host


def test_a_lease_is_billed_from_ready_to_stop_to_the_second(host: Host) -> None:
    tenant = make_tenant()
    lease = make_active_lease(tenant, "A100_80G x4")

    lease = end_and_clean(lease, at=after(102))

    assert lease.state == State.ENDED
    assert lease.ending_reason == EndReason.TENANT
    # 4 GPUs x 3.6 an hour = 4,000 micro-units a second, from the ready of second 2 to the stop of second 102.
    assert lease.charged_micros == 4 * 1_000 * 100
    assert metering.cost(reference=lease.public_id, at=after(500)).seconds == 100
    balance = wallets.balance(owner=tenant.pk, currency="XTS", at=after(500))
    assert balance.balance_micros == 1_000_000_000 - 400_000
    assert balance.held_micros == 0
    assert reconcile.findings() == []


def test_a_pending_lease_holds_money_and_gives_it_back_when_cancelled(host: Host) -> None:
    tenant = make_tenant()
    lease = make_lease(tenant, "A100_80G x4")
    held = wallets.balance(owner=tenant.pk, currency="XTS", at=NOON).held_micros

    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(5))

    assert held == lease.held_micros == 4 * 3_600_000 // 6
    lease.refresh_from_db()
    assert (lease.state, lease.charged_micros) == (State.ENDED, 0)
    assert wallets.balance(owner=tenant.pk, currency="XTS", at=after(5)).held_micros == 0


def test_no_money_no_lease_and_nothing_is_written(host: Host) -> None:
    tenant = make_tenant(micros=10_000)

    with pytest.raises(holds.InsufficientFunds) as refused:
        make_lease(tenant)

    assert refused.value.status == 402
    assert not Lease.objects.exists()


def test_the_quota_counts_what_lives(host: Host) -> None:
    tenant = make_tenant(gpu_quota=5)
    first = make_lease(tenant, "A100_80G x4")
    with pytest.raises(gpu_quota.QuotaExceeded) as refused:
        make_lease(tenant, "A100_80G x2")

    recovery.end_now(lease=first, reason=EndReason.TENANT, at=NOON)

    assert refused.value.facts == {"quota": 5, "in_use": 4}
    assert make_lease(tenant, "A100_80G x2").state == State.PENDING


def test_devices_are_let_again_only_when_their_host_says_that_nothing_is_left(host: Host) -> None:
    lease = make_active_lease(request="A100_80G x8")
    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(10))
    waiting = make_lease(request="A100_80G x8", at=after(11))
    place(at=after(12))
    waiting.refresh_from_db()
    assert waiting.state == State.PENDING
    assert "busy" in waiting.why_waiting["text"]

    say(lease, "gone", at=after(13))
    converging.converge(at=after(14))
    place(at=after(15))

    waiting.refresh_from_db()
    assert waiting.state == State.PROVISIONING


def _assignment(host: Host, version_id: int, *, count: int = 1) -> Assignment:
    devices = list(host.devices.order_by("index"))[:count]
    return Assignment(
        option_index=0,
        seats=tuple(Seat(0, host.pk, device.pk) for device in devices),
        sku="A100_80G",
        prices={0: (version_id, 3_600_000)},
        facts={},
    )


def test_two_leases_cannot_hold_the_same_device() -> None:
    host = make_host()
    version = price()
    first, second = make_lease(), make_lease()
    assigning.assign(lease_id=first.pk, assignment=_assignment(host, version.pk), at=after(1))

    with pytest.raises(calendar.DevicesTaken):
        assigning.assign(lease_id=second.pk, assignment=_assignment(host, version.pk), at=after(1))

    assert list(Allocation.objects.values_list("lease", flat=True)) == [first.pk]
    second.refresh_from_db()
    assert (second.state, second.epoch) == (State.PENDING, 0)


def test_the_calendar_refuses_two_modes_and_two_organizations_on_a_shared_device(host: Host) -> None:
    first, second = make_lease(), make_lease()
    device = host.devices.first()
    assert device is not None
    during = calendar.range_until(start=NOON, end_at=None, stop_grace_s=0)

    def hold(lease: Lease, units: tuple[int, int], mode: str) -> None:
        seat = Seat(0, host.pk, device.pk, units, mode)
        calendar.bind(seats=[seat], organization_id=lease.organization_id, during=during, lease=lease)

    hold(first, (0, 4), "shared")

    with pytest.raises(calendar.DevicesTaken):
        hold(first, (4, 8), "mig")
    with pytest.raises(calendar.DevicesTaken):
        hold(second, (4, 8), "shared")
    hold(first, (4, 8), "shared")


def test_a_cancel_wins_over_progress(host: Host) -> None:
    lease = make_lease()
    place(at=NOON)
    Workload.objects.update(last_valid_until=after(60))  # its host was told to start it
    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(1))

    say(lease, "ready", at=after(2))
    converging.converge(at=after(3))

    lease.refresh_from_db()
    assert lease.state == State.ENDING
    assert not metering.cost(reference=lease.public_id, at=after(10)).running


def test_ending_twice_keeps_the_first_reason_and_one_event(host: Host) -> None:
    lease = make_active_lease()
    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=after(10))

    recovery.end_now(lease=lease, reason=EndReason.OPERATOR, at=after(20))

    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.TENANT
    assert lease.events.filter(to_state=State.ENDING).count() == 1


def test_a_lease_with_a_duration_ends_by_itself_at_that_second(host: Host) -> None:
    lease = make_active_lease(term="2h")

    converging.converge(at=after(7202 + 3))
    say(lease, "gone", at=after(7210))
    converging.converge(at=after(7211))

    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.EXPIRED
    assert lease.charged_micros == 7_200 * 1_000


def test_a_command_that_exits_completes_the_lease_at_that_second(host: Host) -> None:
    lease = make_active_lease()
    say(lease, "exited", at=after(50), exit_code=0)

    converging.converge(at=after(51))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDING, EndReason.COMPLETED)
    assert metering.cost(reference=lease.public_id, at=after(99)).seconds == 48


def test_a_gang_is_active_only_when_every_member_is_ready() -> None:
    make_host(gpus=8), make_host(gpus=8)
    price()
    lease = make_lease(request="2*A100_80G x8")
    place(at=NOON)
    say(lease, "ready", at=after(2), members=[0])
    converging.converge(at=after(3))
    lease.refresh_from_db()
    assert lease.state == State.PROVISIONING

    say(lease, "ready", at=after(7), members=[1])
    converging.converge(at=after(8))

    lease.refresh_from_db()
    assert lease.state == State.ACTIVE
    assert lease.first_active_at == after(7)
    ranks = [workload.spec["rendezvous"] for workload in starting.live_workloads(lease)]
    assert [(r["NODE_RANK"], r["NNODES"], r["WORLD_SIZE"]) for r in ranks] == [("0", "2", "16"), ("1", "2", "16")]
    assert [(r["PET_NODE_RANK"], r["PET_NNODES"], r["PET_NPROC_PER_NODE"]) for r in ranks] == [
        ("0", "2", "8"), ("1", "2", "8"),
    ]  # fmt: skip
    assert ranks[0]["MASTER_ADDR"] == "127.0.0.1", "the first one meets itself"
    (port,) = {int(r["MASTER_PORT"]) for r in ranks} | {int(r["PET_MASTER_PORT"]) for r in ranks}
    fixed = [workload.spec.get("fixed_ports") for workload in starting.live_workloads(lease)]
    own = [range(port, port + 9), range(port + 1, port + 9)]
    assert fixed == [{str(n): n for n in ports} for ports in own], "the same inside and out, as all were told"
    assert {r["GPUYARD_GANG_PORTS"] for r in ranks} == {",".join([f"{port + 1}-{port + 8}"] * 2)}
    assert metering.cost(reference=lease.public_id, at=after(17)).charged_micros == 16 * 1_000 * 10


def test_a_start_that_fails_is_tried_elsewhere_three_times_and_costs_nothing() -> None:
    for _ in range(4):
        make_host(gpus=1)
    price()
    lease = make_lease()
    for attempt in range(lifecycle.MAX_FAILED_STARTS):
        place(at=after(10 * attempt))
        say(lease, "exited", at=after(10 * attempt + 2), failure="image_not_found", detail="no such image")
        converging.converge(at=after(10 * attempt + 3))
        say(lease, "gone", at=after(10 * attempt + 4))
        converging.converge(at=after(10 * attempt + 5))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDED, EndReason.FAILED_TO_START)
    assert "image_not_found" in lease.ending_detail
    assert lease.charged_micros == 0
    assert lease.members.values("host").distinct().count() == lifecycle.MAX_FAILED_STARTS


def test_a_later_start_holds_its_devices_in_the_calendar_and_begins_on_time(host: Host) -> None:
    start, end = after(3600), after(7200)
    lease = make_lease(request="A100_80G x8", term={"kind": "on_demand", "start_at": start, "end_at": end})
    place(at=after(1))
    lease.refresh_from_db()
    assert lease.state == State.SCHEDULED
    # A lease without an end would stand in its way; one that ends in time does not.
    open_end = make_lease(at=after(2))
    in_time = make_lease(at=after(2), term={"kind": "on_demand", "end_at": after(1800)})
    place(at=after(3))
    open_end.refresh_from_db(), in_time.refresh_from_db()
    assert (open_end.state, in_time.state) == (State.PENDING, State.PROVISIONING)
    recovery.end_now(lease=in_time, reason=EndReason.TENANT, at=after(10))
    say(in_time, "gone", at=after(11))
    converging.converge(at=after(12))

    converging.converge(at=after(3601))

    lease.refresh_from_db()
    assert lease.state == State.PROVISIONING
    assert Workload.objects.filter(reference=lease.public_id, wanted=True).count() == 1


def test_extending_is_refused_where_the_calendar_is_promised_to_somebody_else(host: Host) -> None:
    lease = make_active_lease(request="A100_80G x8", term={"kind": "on_demand", "end_at": after(3600)})
    later = {"kind": "on_demand", "start_at": after(5000), "end_at": after(6000)}
    make_lease(request="A100_80G x8", term=later, at=after(5))
    place(at=after(6))

    with pytest.raises(calendar.DevicesTaken):
        term_changes.change_end(lease_id=lease.pk, end_at=after(4900), at=after(7))

    assert term_changes.change_end(lease_id=lease.pk, end_at=after(4000), at=after(8)).end_at == after(4000)


def test_a_move_that_is_not_in_the_table_is_refused() -> None:
    assert State.ACTIVE not in NEXT[State.PENDING]
    assert NEXT[State.ENDED] == frozenset()


def test_an_ended_lease_says_why_in_the_database_too(host: Host) -> None:
    lease = make_lease()

    with pytest.raises(IntegrityError), transaction.atomic():
        Lease.objects.filter(pk=lease.pk).update(state=State.ENDED, ended_at=NOON)


@pytest.mark.parametrize(
    ("asked", "pointer", "code"),
    [
        ({"request": "B999_80G"}, "/request", "unknown_model"),
        ({"request": "A100_80G @mars-9"}, "/request", "unknown_region"),
        ({"image": "no_such_image"}, "/image", "unknown_image"),
        ({"image": "evil.example/x:1"}, "/image", "registry_not_allowed"),
        ({"term": "24"}, "/term", "bad_value"),
        ({"term": {"kind": "reserved"}}, "/term/period", "bad_value"),
        ({"term": {"kind": "on_demand", "start_at": NOON - timedelta(days=1)}}, "/term/start_at", "out_of_range"),
        ({"constraints": {"regions": ["mars"]}}, "/constraints/regions/0", "bad_value"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(
    host: Host, asked: dict[str, object], pointer: str, code: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        wanted(make_tenant(), **asked)  # type: ignore[arg-type]

    (error,) = refused.value.facts["errors"]
    assert (error["pointer"], error["code"]) == (pointer, code)


def test_released_ranges_stay_in_the_calendar(host: Host) -> None:
    lease = make_active_lease()
    end_and_clean(lease, at=after(60))

    (row,) = Allocation.objects.filter(Q(lease=lease))
    assert row.released_at == row.during.upper == after(61)


def test_a_command_that_ends_before_it_was_seen_to_run_has_completed_with_its_code(host: Host) -> None:
    lease = make_lease(command=["false"])
    place(at=NOON)
    say(lease, "exited", at=after(1), failure="exited_early", exit_code=3)

    converging.converge(at=after(2))

    lease.refresh_from_db()
    assert (lease.ending_reason, lease.exit_code) == (EndReason.COMPLETED, 3)
    assert lease.members.count() == 1


def test_a_lease_that_failed_to_start_on_every_host_there_is_ends_and_does_not_wait_for_ever(host: Host) -> None:
    lease = make_lease()
    place(at=NOON)
    say(lease, "exited", at=after(1), failure="image_not_found", detail="no such image")
    converging.converge(at=after(2))
    say(lease, "gone", at=after(3))
    converging.converge(at=after(4))

    place(at=after(5))

    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDED, EndReason.FAILED_TO_START)
    assert "no such image" in lease.ending_detail


def test_a_container_knows_its_lease(host: Host) -> None:
    lease = make_lease()
    place(at=NOON)

    assert Workload.objects.get().spec["rendezvous"]["GPUYARD_LEASE_ID"] == lease.public_id
