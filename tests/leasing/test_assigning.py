"""Hundreds of decisions are carried out as one is: the same rows, and nobody pays for another's trouble."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.forms import model_to_dict
from django.test.utils import CaptureQueriesContext

from agents import workloads
from agents.models import Device, Host, Workload
from leasing import assigning, lifecycle
from leasing.assigning import Assignment
from leasing.calendar import DevicesTaken, Seat
from leasing.models import Allocation, Lease, LeaseEvent, LeaseMember
from leasing.moves import WrongState
from leasing.states import EndReason, State
from outbox.models import Message
from tenants.models import Organization
from tests.factories import NOON, after, make_host, make_lease, make_organization, make_tenant, price

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Organization:
    return make_tenant(gpu_quota=10_000, micros=10**12)


def decision(hosts: Sequence[Host], version_id: int, *, gpus: int = 1, first: int = 0) -> Assignment:
    seats = [
        Seat(rank, host.pk, device.pk)
        for rank, host in enumerate(hosts)
        for device in Device.objects.filter(host=host).order_by("index")[first : first + gpus]
    ]
    prices = dict.fromkeys(range(len(hosts)), (version_id, 3600000))
    return Assignment(0, tuple(seats), "A100_80G", prices, {"score": 1, "reasons": ["option:0"]})


def written(lease: Lease) -> list[Any]:
    """All rows of a lease, less what differs by nature: ids, hosts, and keys that name them."""
    row = Lease.objects.get(pk=lease.pk)
    own = {"id", "lease", "device", "host", "reference", "spec", "spec_hash"}

    def plain(found: Any) -> dict[str, Any]:
        return {name: str(value) for name, value in model_to_dict(found).items() if name not in own}

    runs = Workload.objects.filter(reference=row.public_id).order_by("member")
    specs = [run.spec | {"devices": len(run.spec["devices"])} for run in runs]
    for spec in specs:
        assert spec["rendezvous"].pop("GPUYARD_LEASE_ID") == row.public_id
        for name in ("MASTER_PORT", "PET_MASTER_PORT", "GPUYARD_GANG_PORTS"):  # a gang's own
            spec["rendezvous"].pop(name, None)
        spec.pop("fixed_ports", None)
    return [
        plain(row),
        [plain(found) for found in LeaseMember.objects.filter(lease=row).order_by("rank")],
        [plain(found) for found in LeaseEvent.objects.filter(lease=row).order_by("seq")],
        [plain(found) for found in Allocation.objects.filter(lease=row).order_by("rank", "device__index")],
        [plain(run) for run in runs],
        specs,
        [(m.topic, m.available_at, m.payload["version"]) for m in Message.objects.filter(key__startswith=row.public_id)
         .order_by("key")],
        [member.host.generation for member in row.members.select_related("host")],
    ]  # fmt: skip


def test_assigned_together_or_alone_the_rows_are_the_same(tenant: Organization) -> None:
    hosts = [make_host(gpus=2, name=f"host-{n}") for n in range(8)]
    version = price().pk
    asked: list[tuple[str, dict[str, Any]]] = [
        ("A100_80G", {}), ("2*A100_80G x2", {}), ("A100_80G x2", {"term": {"start_at": after(7200)}}),
    ]  # fmt: skip
    leases = [[make_lease(tenant, request, at=NOON, **more) for request, more in asked] for _ in range(2)]
    decided = [
        [
            (one[0].pk, decision(mine[:1], version)),
            (one[1].pk, decision(mine[1:3], version, gpus=2)),
            (one[2].pk, decision(mine[3:], version, gpus=2)),
        ]
        for one, mine in ((leases[0], hosts[:4]), (leases[1], hosts[4:]))
    ]

    for lease_id, assignment in decided[0]:
        assigning.assign(lease_id=lease_id, assignment=assignment, at=after(5))
    assigning.assign_all(decided[1], at=after(5))

    for alone, together in zip(*leases, strict=True):
        assert written(alone) == written(together)
    assert [Lease.objects.get(pk=lease.pk).state for lease in leases[1]] == [
        "provisioning",
        "provisioning",
        "scheduled",
    ]


def test_two_that_want_one_device_cost_nobody_else_his_lease(tenant: Organization) -> None:
    hosts = [make_host(gpus=1, name=f"host-{n}") for n in range(8)]
    version = price().pk
    leases = [make_lease(tenant) for _ in range(9)]
    acts = [(lease.pk, decision([hosts[n % 8]], version)) for n, lease in enumerate(leases)]

    outcomes = assigning.assign_all(acts, at=after(1))

    lost = [lease_id for lease_id, found in outcomes.items() if isinstance(found, DevicesTaken)]
    assert lost in ([leases[0].pk], [leases[8].pk])
    assert Lease.objects.filter(state=State.PROVISIONING).count() == 8
    assert Allocation.objects.count() == Workload.objects.count() == 8
    assert LeaseEvent.objects.filter(to_state=State.PROVISIONING).count() == 8


def test_a_poisoned_lease_and_a_cancelled_one_stop_no_other(
    tenant: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [make_host(gpus=1, name=f"host-{n}") for n in range(7)]
    version = price().pk
    leases = [make_lease(tenant) for _ in hosts]
    lifecycle.end(lease_id=leases[2].pk, reason=EndReason.TENANT, at=after(1))
    real = workloads.want_all

    def want(wanted: Sequence[workloads.Wanted], **asked: Any) -> list[Workload]:
        if any(one.reference == leases[5].public_id for one in wanted):
            raise RuntimeError("poison")
        return real(wanted, **asked)

    monkeypatch.setattr(workloads, "want_all", want)
    outcomes = assigning.assign_all(
        [(lease.pk, decision([host], version)) for lease, host in zip(leases, hosts, strict=True)], at=after(1)
    )

    def said(lease_id: UUID) -> str:
        return type(outcomes[lease_id]).__name__

    assert [said(lease.pk) for lease in leases] == [
        "Lease", "Lease", WrongState.__name__, "Lease", "Lease", "RuntimeError", "Lease",
    ]  # fmt: skip
    assert not Allocation.objects.filter(lease=leases[5]).exists()
    assert Lease.objects.get(pk=leases[5].pk).epoch == 0


def test_a_hundred_leases_take_no_more_statements_than_one(tenant: Organization) -> None:
    hosts = [make_host(gpus=1, name=f"host-{n}") for n in range(33)]
    version = price().pk
    acts = [(make_lease(tenant).pk, decision([host], version)) for host in hosts]

    with CaptureQueriesContext(
        connection,
    ) as one:
        assigning.assign_all(acts[:1], at=after(1))
    with CaptureQueriesContext(connection) as many:
        assigning.assign_all(acts[1:], at=after(1))

    assert len(many) == len(one) <= 24
    assert Lease.objects.filter(state=State.PROVISIONING).count() == 33


@pytest.mark.parametrize(
    ("one_owner", "addresses", "told"),
    [
        (True, ("192.168.1.5", "192.168.1.6"), "192.168.1.5,192.168.1.6"),
        (False, ("192.168.1.5", "8.8.4.4"), "127.0.0.1,8.8.4.4"),
        (False, ("8.8.8.8", "router.lan"), "8.8.8.8,127.0.0.1"),
    ],
)
def test_a_private_address_is_no_peer_on_another_owners_host(
    tenant: Organization, one_owner: bool, addresses: tuple[str, str], told: str
) -> None:
    """There it would be a machine of his own network, to which his firewall would open the gang's ports."""
    owners = [make_organization() for _ in range(1 if one_owner else 2)]
    hosts = [make_host(gpus=2, owner=owners[n % len(owners)], address=address) for n, address in enumerate(addresses)]
    version = price().pk
    lease = make_lease(tenant, "2*A100_80G x2", at=NOON)

    assigning.assign(lease_id=lease.pk, assignment=decision(hosts, version, gpus=2), at=after(5))

    assert {run.spec["rendezvous"]["GPUYARD_NODE_IPS"] for run in Workload.objects.all()} == {told}
