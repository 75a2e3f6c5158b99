"""What a lease had on its scratch when its money went out is kept as a volume, and a new lease mounts it."""

from datetime import datetime, timedelta

import pytest

from agents import volumes as on_hosts
from agents import workloads
from agents.models import Host, Workload
from agents.protocol import scratch_place
from apikit.instants import instant
from billing import close, reconcile, wallets
from billing.models import Reserve, Transfer
from billing.models.accounts import AccountKind
from leasing import kept_scratch, volume_keeping, volumes
from leasing.models import Lease
from leasing.states import EndReason, State
from leasing.volume_models import Volume
from outbox.models import Message
from scheduler import converging
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    hear,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    place,
    price,
    say,
    storage_price,
)  # fmt: skip

pytestmark = pytest.mark.django_db
GIB_DAYS = 3 * 24 * 360  # the reserve of one GiB


@pytest.fixture(autouse=True)
def _market() -> None:
    storage_price()
    price()
    make_host(disk_mib=200 * 1024, disk_mib_per_gpu=190 * 1024)


def fills(lease: Lease, mib: int, *, at_s: float) -> None:
    """Its host reports how much is on its scratch."""
    say(lease, "ready", at=after(at_s), volumes_mib={scratch_place(lease.public_id, 0): mib})


def runs_dry(lease: Lease) -> float:
    """Let the lease end at the second in which its money is out, and its host acknowledge; return that second."""
    dry = wallets.balance(owner=lease.organization_id, currency="XTS", at=after(400)).exhausts_at
    assert dry is not None
    at_s = (dry - NOON).total_seconds()
    hear(lease, at=dry)
    converging.stop_exhausted(at=dry)
    say(lease, "gone", at=dry + timedelta(seconds=1))
    converging.converge(at=dry + timedelta(seconds=2))
    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDED, EndReason.BALANCE)
    return at_s


def storage_runs_dry(lease: Lease, at_s: float) -> datetime:
    """What a last second of its GPU was too much for pays for storage for a while; then the reserve does."""
    dry = wallets.balance(owner=lease.organization_id, currency="XTS", at=after(at_s + 3)).exhausts_at
    assert dry is not None
    Host.objects.update(last_heard_at=dry)
    volume_keeping.keep(at=dry + timedelta(seconds=1))
    return dry


def test_the_reserve_is_taken_before_the_money_is_out_and_the_scratch_becomes_a_volume() -> None:
    tenant = make_tenant(micros=2_000_000)
    lease = make_active_lease(tenant)
    fills(lease, 2500, at_s=60)

    assert kept_scratch.reserve(at=after(61)) == 1

    assert Reserve.objects.get().held_micros == 3 * GIB_DAYS
    at_s = runs_dry(lease)
    assert at_s == 2 + (2_000_000 - 3 * GIB_DAYS) // 1000  # so much sooner, and no second is charged to nobody
    assert Message.objects.get(topic="volume.ready").payload["kept_from"] == lease.public_id
    dry = storage_runs_dry(lease, at_s)
    volume = Volume.objects.get()
    assert (volume.state, volume.size_gib, volume.kept_from) == (Volume.State.EXPIRING, 3, lease.public_id)
    assert volume.name == lease.public_id.replace("_", "-")
    assert volume.destroy_at == dry + timedelta(days=3)
    assert Message.objects.get(topic="volume.expiring").payload["destroy_at"] == instant(volume.destroy_at)
    assert workloads.kept_scratch(volume.host_id) == [lease.public_id]  # type: ignore[arg-type]
    assert not Transfer.objects.filter(debit__kind=AccountKind.OVERRUN_EXPENSE).exists()
    assert reconcile.findings() == []


def test_a_new_lease_mounts_it_after_a_top_up() -> None:
    tenant = make_tenant(micros=2_000_000)
    lease = make_active_lease(tenant)
    fills(lease, 100, at_s=60)
    kept_scratch.reserve(at=after(61))
    at_s = runs_dry(lease)
    wallets.top_up(
        owner=tenant.pk, currency="XTS", amount_micros=50_000_000, key="m", by="t", reason="t", at=after(at_s + 60)
    )
    volume_keeping.keep(at=after(at_s + 65))
    volume = Volume.objects.get()
    assert (volume.state, volume.destroy_at) == (Volume.State.READY, None)

    again = make_active_lease(tenant, at=after(at_s + 70), volumes=[{"name": volume.name, "path": "/old"}])

    spec = Workload.objects.get(reference=again.public_id).spec
    assert spec["volumes"][0]["place"] == scratch_place(lease.public_id, 0)
    hear(again, at=after(at_s + 170))
    end_and_clean(again, at=after(at_s + 172))
    assert on_hosts.is_there(volume.public_id)
    assert reconcile.findings() == []


def test_it_is_destroyed_when_its_reserve_is_used_up() -> None:
    lease = make_active_lease(make_tenant(micros=2_000_000))
    fills(lease, 100, at_s=60)
    kept_scratch.reserve(at=after(61))
    at_s = runs_dry(lease)
    over_s = (storage_runs_dry(lease, at_s) - NOON).total_seconds() + 3 * 86_400
    for hour in (5, 30, 71):
        Host.objects.update(last_heard_at=after(at_s + hour * 3600))
        volume_keeping.keep(at=after(at_s + hour * 3600))
        close.close_due(at=after(at_s + hour * 3600))
        assert reconcile.findings() == []
    Host.objects.update(last_heard_at=after(over_s + 2))

    volume_keeping.keep(at=after(over_s + 2))

    volume = Volume.objects.get()
    assert (volume.state, volume.ended_reason) == (Volume.State.DELETING, "money")
    assert volume.host is not None
    assert on_hosts.to_drop(volume.host.pk) == [volume.place]
    assert workloads.kept_scratch(volume.host.pk) == []
    found = wallets.balance(owner=lease.organization_id, currency="XTS", at=after(over_s + 10))
    assert found.held_micros == 0
    assert 0 <= found.balance_micros < 1_001
    assert reconcile.findings() == []


def test_money_that_comes_in_gives_the_reserve_back_and_so_does_the_end() -> None:
    tenant = make_tenant(micros=2_000_000)
    lease = make_active_lease(tenant)
    fills(lease, 100, at_s=60)
    kept_scratch.reserve(at=after(61))
    wallets.top_up(
        owner=tenant.pk, currency="XTS", amount_micros=500_000_000, key="m", by="t", reason="t", at=after(70)
    )

    kept_scratch.reserve(at=after(91))

    assert wallets.balance(owner=tenant.pk, currency="XTS", at=after(92)).held_micros == 0
    end_and_clean(lease, at=after(102))
    assert not Volume.objects.exists()
    assert reconcile.findings() == []


@pytest.mark.parametrize("mib", [0, 90 * 1024])
def test_an_empty_scratch_and_one_that_costs_more_than_half_of_what_is_left_are_not_kept(mib: int) -> None:
    lease = make_active_lease(make_tenant(micros=2_000_000))
    fills(lease, mib, at_s=60)

    assert kept_scratch.reserve(at=after(61)) == 0

    runs_dry(lease)
    assert not Volume.objects.exists()
    assert not Workload.objects.filter(keeps_scratch=True).exists()


def test_what_grows_is_reserved_for_as_it_is() -> None:
    lease = make_active_lease(make_tenant(micros=4_000_000))
    fills(lease, 100, at_s=60)
    kept_scratch.reserve(at=after(61))
    fills(lease, 5000, at_s=90)

    kept_scratch.reserve(at=after(91))

    assert Reserve.objects.get().held_micros == 5 * GIB_DAYS
    assert reconcile.findings() == []


def test_a_waiting_lease_is_not_touched() -> None:
    make_lease(make_tenant(micros=2_000_000))
    place(at=after(1))
    assert kept_scratch.reserve(at=after(2)) == 0


def test_a_volume_of_the_tenant_by_the_name_that_its_scratch_gets_does_not_keep_a_lease_from_ending() -> None:
    """It ran on for ever with an empty wallet: each end failed on the name, and nobody was charged."""
    tenant = make_tenant(micros=2_000_000)
    lease = make_active_lease(tenant)
    name = lease.public_id.replace("_", "-")
    volumes.create(organization_id=tenant.pk, name=name, size_gib=1, region=None, at=after(30), actor="t")
    volumes.create(organization_id=tenant.pk, name=f"{name}-2", size_gib=1, region=None, at=after(30), actor="t")
    fills(lease, 100, at_s=60)
    assert kept_scratch.reserve(at=after(61)) == 1

    runs_dry(lease)

    kept = Volume.objects.get(kept_from=lease.public_id)
    assert kept.name == f"{name}-3"
    assert reconcile.findings() == []


def test_a_host_that_says_more_than_the_lease_has_disk_holds_no_more_of_its_money() -> None:
    """Its owner earns by what is kept: half of the last day's money could be had for a scratch that was empty."""
    lease = make_active_lease(make_tenant(micros=40_000_000))
    assert lease.state == State.ACTIVE
    workload = Workload.objects.get(reference=lease.public_id)
    share_gib = -(-(workload.spec.get("disk_mib") or workload.host.disk_mib) // 1024)
    fills(lease, 700 * 1024, at_s=60)

    kept_scratch.reserve(at=after(61))

    assert [row.held_micros for row in Reserve.objects.all()] == [share_gib * GIB_DAYS]
