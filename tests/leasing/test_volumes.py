"""Named volumes: made, mounted, charged, kept when the money is out, destroyed; one lease at a time, on one host."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from accounts.models import User
from agents import volumes as on_hosts
from agents.models import Host, HostVolume, Workload
from apikit import clock
from billing import close, holds, metering, reconcile, statements, wallets
from billing.models import Reserve
from leasing import lifecycle, volume_keeping, volumes
from leasing.models import Lease
from leasing.states import EndReason, State
from leasing.volume_models import Volume
from outbox.models import Message
from scheduler import converging
from tenants import organizations
from tenants.models import Organization
from tests.apikit.conftest import Caller
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
DATA = [{"name": "data", "path": "/data", "size_gib": 10}]
AGAIN = [{"name": "data", "path": "/data"}]
RATE = 10 * 360  # micro-units an hour: a micro-unit a second
RESERVE = 3 * 24 * RATE
DAY = 86_400


@pytest.fixture(autouse=True)
def _market() -> None:
    storage_price()
    price()


def a_host(**fields: Any) -> Host:
    return make_host(**{"disk_mib": 200 * 1024, "disk_mib_per_gpu": 190 * 1024} | fields)


def the_volume(name: str = "data") -> Volume:
    return Volume.objects.filter(name=name).latest("created_at")


def keep(seconds: float) -> None:
    volume_keeping.keep(at=after(seconds))


def hosts_are_heard(seconds: float) -> None:
    Host.objects.update(last_heard_at=after(seconds))


def removed(volume: Volume, *, at_s: float) -> None:
    """Its host says that it is gone."""
    assert volume.host is not None
    assert on_hosts.dropped(volume.host, {"kind": "volume_gone", "place": volume.place}, at=after(at_s))


def told(topic: str) -> list[dict[str, Any]]:
    return [message.payload for message in Message.objects.filter(topic=topic).order_by("pk")]


def test_a_volume_is_made_with_its_first_lease_and_charged_from_when_that_is_ready_until_it_is_deleted() -> None:
    a_host()
    tenant = make_tenant()
    lease = make_active_lease(tenant, volumes=DATA)
    volume = the_volume()
    assert (volume.state, volume.made_at, volume.lease) == (Volume.State.READY, after(2), lease)

    end_and_clean(lease, at=after(102))
    hosts_are_heard(1002)
    volume = volumes.delete(volume_id=volume.pk, at=after(1002), actor="test")

    assert volume.state == Volume.State.DELETING
    removed(volume, at_s=1005)
    keep(1006)
    volume.refresh_from_db()
    assert (volume.state, volume.lease) == (Volume.State.DELETED, None)
    cost = metering.cost(reference=volume.public_id, at=after(5000))
    assert (cost.charged_micros, cost.seconds) == (1000, 0)  # its seconds are no GPU's
    line = cost.lines[0]
    assert (line.use, line.quantity, line.price_micros_per_hour, line.seconds) == ("storage", 10, 360, 1000)
    assert wallets.balance(owner=tenant.pk, currency="XTS", at=after(2000)).held_micros == 0
    assert reconcile.findings() == []


def test_the_spec_names_what_the_host_is_to_mount_and_its_disk_is_less_by_it() -> None:
    host = a_host(gpus=2)
    lease = make_active_lease(volumes=DATA)

    spec = Workload.objects.get(reference=lease.public_id).spec
    volume = the_volume()
    assert spec["volumes"] == [
        {"name": "data", "place": f"gy-{volume.public_id}", "path": "/data", "size_mib": 10 * 1024}
    ]
    assert spec["disk_mib"] == 190 * 1024 - 10 * 1024  # it comes off its own share
    host.refresh_from_db()
    assert (host.volumes_mib, host.disk_mib_per_gpu) == (10 * 1024, 190 * 1024 * 95 // 100 // 2)


def test_a_volume_that_does_not_fit_keeps_its_lease_waiting_for_disk() -> None:
    a_host()
    lease = make_lease(volumes=[{"name": "data", "path": "/data", "size_gib": 200}])

    place(at=after(1))

    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert lease.why_waiting is not None
    assert [row["code"] for row in lease.why_waiting["counts"]] == ["disk"]


def test_the_next_lease_with_it_runs_where_it_is_and_nowhere_else() -> None:
    first = a_host()
    tenant = make_tenant()
    end_and_clean(make_active_lease(tenant, volumes=DATA), at=after(100))
    a_host(last_heard_at=after(100))
    rival = make_active_lease(make_tenant(name="Rival"), constraints={}, at=after(110))
    assert the_volume().host == first

    back = make_lease(tenant, volumes=AGAIN, at=after(120))
    place(at=after(121))

    back.refresh_from_db()
    on = set(rival.members.values_list("host", flat=True))
    if on == {first.pk}:
        assert back.state == State.PENDING
        assert back.why_waiting is not None
        assert {row["code"] for row in back.why_waiting["counts"]} == {"volume", "busy"}
        assert "1 without its volume" in back.why_waiting["text"]
        end_and_clean(rival, at=after(130))
        hosts_are_heard(132)
        place(at=after(133))
        back.refresh_from_db()
    assert back.state == State.PROVISIONING
    assert set(back.members.values_list("host", flat=True)) == {first.pk}
    assert Volume.objects.count() == 1


@pytest.fixture
def caller() -> Iterator[Caller]:
    with clock.frozen(after(60)):
        yield Caller(make_tenant())


def test_one_lease_at_a_time_has_it(caller: Caller) -> None:
    a_host(gpus=2)
    lease = make_active_lease(caller.organization, volumes=DATA)

    answer = caller.post("/api/v1/leases", {"request": "A100_80G", "image": "pytorch_latest", "volumes": AGAIN})

    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "volume-in-use")
    assert answer.json()["lease"] == lease.public_id
    body = {"request": "A100_80G", "image": "pytorch_latest", "volumes": AGAIN}
    assert caller.post("/api/v1/leases?dry_run=1", body).status_code == 409
    planned = caller.post("/api/v1/leases?dry_run=1", {**body, "volumes": [{**DATA[0], "name": "more"}]})
    assert planned.status_code == 200, planned.json()
    assert Volume.objects.count() == 1  # a plan makes nothing
    deleted = caller.send("DELETE", f"/api/v1/volumes/{the_volume().public_id}")
    assert deleted.status_code == 409


def test_another_organizations_volume_of_the_same_name_is_another_one() -> None:
    a_host(gpus=2)
    mine = make_active_lease(volumes=DATA)
    theirs = make_active_lease(make_tenant(name="Others"), volumes=DATA)

    places = {lease.volumes[0]["place"] for lease in (mine, theirs)}
    assert len(places) == Volume.objects.count() == 2


def test_what_never_ran_leaves_no_volume_and_no_charge() -> None:
    host = a_host()
    tenant = make_tenant()
    lease = make_lease(tenant, volumes=DATA)
    place(at=after(1))
    assert on_hosts.is_there(the_volume().public_id)

    lifecycle.end(lease_id=lease.pk, reason=EndReason.TENANT, at=after(2))
    say(lease, "gone", at=after(3))
    converging.converge(at=after(4))

    volume = the_volume()
    assert (volume.state, volume.ended_reason, volume.meter_seq) == (Volume.State.DELETED, "never_used", 0)
    assert on_hosts.to_drop(host.pk) == [volume.place]
    assert wallets.balance(owner=tenant.pk, currency="XTS", at=after(10)).held_micros == 0
    assert reconcile.findings() == []


def test_a_start_that_fails_makes_the_volume_elsewhere() -> None:
    first = a_host()
    second = a_host(last_heard_at=NOON)
    lease = make_lease(volumes=DATA)
    place(at=after(1))
    tried = the_volume().host
    say(lease, "exited", at=after(2), failure="disk_full")
    converging.converge(at=after(3))
    say(lease, "gone", at=after(4))
    place(at=after(5))
    say(lease, "ready", at=after(6))
    converging.converge(at=after(7))

    volume = the_volume()
    assert tried is not None
    assert (volume.state, volume.host) == (Volume.State.READY, second if tried == first else first)
    assert on_hosts.to_drop(tried.pk) == [volume.place]


def test_its_reserve_is_held_from_the_start_and_a_wallet_that_does_not_have_it_is_refused() -> None:
    tenant = make_tenant(micros=RESERVE // 10_000 * 10_000)
    with pytest.raises(holds.InsufficientFunds):
        volumes.create(organization_id=tenant.pk, name="data", size_gib=10, region=None, at=NOON, actor="test")
    assert not Volume.objects.exists()

    volumes.create(organization_id=tenant.pk, name="small", size_gib=5, region="sim", at=NOON, actor="test")

    assert wallets.balance(owner=tenant.pk, currency="XTS", at=NOON).held_micros == RESERVE // 2
    assert reconcile.findings() == []


def a_dry_tenant() -> tuple[Organization, Volume]:
    """Somebody whose lease used his money up at after(1002); his volume is kept from then on."""
    a_host()
    # 1,000 s of a GPU at 1,000 and of storage at 1 micro-unit a second, and the reserve.
    tenant = make_tenant(micros=((RESERVE + 1_001_000) // 10_000 + 1) * 10_000)
    lease = make_active_lease(tenant, volumes=DATA)
    dry = wallets.balance(owner=tenant.pk, currency="XTS", at=after(900)).exhausts_at
    assert dry is not None
    dry_s = (dry - NOON).total_seconds()
    hear(lease, at=after(dry_s))
    converging.stop_exhausted(at=after(dry_s))
    say(lease, "gone", at=after(dry_s + 1))
    converging.converge(at=after(dry_s + 2))
    lease.refresh_from_db()
    assert (lease.state, lease.ending_reason) == (State.ENDED, EndReason.BALANCE)
    # What a last second of its GPU was too much for pays for storage for a while.
    dry = wallets.balance(owner=tenant.pk, currency="XTS", at=after(dry_s + 2)).exhausts_at
    assert dry is not None
    keep((dry - NOON).total_seconds() + 3)
    volume = the_volume()
    assert (volume.state, volume.destroy_at) == (Volume.State.EXPIRING, dry + timedelta(days=3))
    return tenant, volume


def closes(first_s: float, last_s: float) -> None:
    """The close of each hour, and the look after volumes that comes with it."""
    at_s = first_s
    while at_s <= last_s:
        hosts_are_heard(at_s)
        keep(at_s)
        close.close_due(at=after(at_s))
        assert reconcile.findings() == []
        at_s += 3600


def test_data_outlives_an_empty_wallet_for_three_days_and_never_drives_it_below_zero() -> None:
    tenant, volume = a_dry_tenant()  # by after(2200)
    assert told("volume.expiring")[0]["destroy_at"] == volume.destroy_at.strftime("%Y-%m-%dT%H:%M:%SZ")  # type: ignore[union-attr]

    closes(4000, 3 * DAY)

    volume.refresh_from_db()
    assert volume.state == Volume.State.EXPIRING
    over_s = (volume.destroy_at - NOON).total_seconds()  # type: ignore[operator]
    hosts_are_heard(over_s + 5)
    keep(over_s + 5)
    removed(volume, at_s=over_s + 6)
    keep(over_s + 7)
    closes(over_s + 400, over_s + 4500)
    volume.refresh_from_db()
    assert (volume.state, volume.ended_reason) == (Volume.State.DELETED, "money")
    assert told("volume.deleted")[0]["reason"] == "money"
    found = wallets.balance(owner=tenant.pk, currency="XTS", at=after(over_s + 5000))
    assert (found.held_micros, found.burn_micros_per_hour) == (0, 0)
    assert 0 <= found.balance_micros < 11_000  # all was used, and no more
    (month,) = statements.month(owner=tenant.pk, year=2027, month=3, time_zone="UTC", at=after(4 * DAY))
    assert month.closing_micros >= 0
    used = metering.cost(reference=volume.public_id, at=after(5 * DAY)).charged_micros
    assert used == int(over_s) - 2


def test_the_reserve_is_nobody_elses() -> None:
    tenant, _ = a_dry_tenant()

    closes(4000, 8000)

    with pytest.raises(holds.InsufficientFunds):
        make_lease(tenant, at=after(8000))


def test_a_top_up_saves_it_and_fills_its_reserve_up_again() -> None:
    tenant, volume = a_dry_tenant()
    closes(4000, DAY)
    wallets.top_up(
        owner=tenant.pk, currency="XTS", amount_micros=100_000_000, key="more", by="t", reason="t", at=after(DAY + 10)
    )

    closes(DAY + 1200, DAY + 9000)

    volume.refresh_from_db()
    assert (volume.state, volume.destroy_at) == (Volume.State.READY, None)
    assert Reserve.objects.get().held_micros == RESERVE
    closes(DAY + 12_000, 4 * DAY)
    volume.refresh_from_db()
    assert volume.state == Volume.State.READY


def test_a_host_that_is_not_heard_is_not_paid_and_one_that_leaves_takes_it_along() -> None:
    host = a_host()
    tenant = make_tenant()
    end_and_clean(make_active_lease(tenant, volumes=DATA), at=after(100))
    Host.objects.update(state=Host.State.LOST, last_heard_at=after(202))
    keep(300)
    volume = the_volume()
    assert volume.state == Volume.State.UNREACHABLE
    Host.objects.update(state=Host.State.ONLINE, last_heard_at=after(1000))
    keep(1000)
    volume.refresh_from_db()
    assert volume.state == Volume.State.READY
    Host.objects.update(state=Host.State.LOST, last_heard_at=after(1100))
    keep(1200)
    Host.objects.update(state=Host.State.RETIRED)
    waiting = make_lease(tenant, volumes=AGAIN, at=after(1250))

    keep(1300)

    volume.refresh_from_db()
    waiting.refresh_from_db()
    assert (volume.state, volume.ended_reason) == (Volume.State.LOST, "host_left")
    assert (waiting.state, waiting.ending_reason) == (State.ENDED, EndReason.HOST_LOST)
    assert metering.cost(reference=volume.public_id, at=after(2000)).charged_micros == 200 + 100
    host.refresh_from_db()
    assert not on_hosts.is_there(volume.public_id)
    assert wallets.balance(owner=tenant.pk, currency="XTS", at=after(2000)).held_micros == 0
    assert reconcile.findings() == []


def test_a_volume_on_a_quarantined_host_is_not_charged_though_its_agent_speaks() -> None:
    """No lease can be placed there: its tenant paid the owner, whom we do not trust, for what he could not reach."""
    host = a_host()
    lease = make_active_lease(make_tenant(), volumes=DATA)
    end_and_clean(lease, at=after(102))
    volume = the_volume()
    Host.objects.update(state=Host.State.QUARANTINED, state_since=after(202), last_heard_at=after(204))

    keep(205)
    hosts_are_heard(300)
    keep(301)

    volume.refresh_from_db()
    assert volume.state == Volume.State.UNREACHABLE
    assert metering.cost(reference=volume.public_id, at=after(400)).charged_micros == 200
    Host.objects.filter(pk=host.pk).update(state=Host.State.ONLINE, last_heard_at=after(500))
    keep(501)
    assert metering.cost(reference=volume.public_id, at=after(510)).charged_micros == 209
    assert reconcile.findings() == []


def test_a_request_that_was_under_way_when_a_ban_came_makes_no_volume() -> None:
    tenant = make_tenant()
    Organization.objects.filter(pk=tenant.pk).update(banned_at=after(1), banned_reason="fraud")

    with pytest.raises(organizations.Banned):
        volumes.create(organization_id=tenant.pk, name="data", size_gib=1, region=None, at=after(2), actor="t")

    assert not Volume.objects.exists()


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({"volumes": [{"name": "data", "path": "/data"}]}, "/volumes/0/size_gib"),
        ({"volumes": [{"name": "data", "path": "/etc/cron.d", "size_gib": 1}]}, "/volumes/0/path"),
        ({"volumes": [{"name": "data", "path": "/a/../etc", "size_gib": 1}]}, "/volumes/0/path"),
        ({"volumes": [{"name": "data", "path": "data", "size_gib": 1}]}, "/volumes/0/path"),
        ({"volumes": [{"name": "Data", "path": "/data", "size_gib": 1}]}, "/volumes/0/name"),
        ({"volumes": [DATA[0], {**DATA[0], "path": "/more"}]}, "/volumes/1/name"),
        ({"volumes": [DATA[0], {**DATA[0], "name": "more", "path": "/data/more"}]}, "/volumes/1/path"),
        ({"volumes": DATA, "request": "2*A100_80G"}, "/volumes"),
        ({"volumes": [{"name": "kept", "path": "/data", "size_gib": 7}]}, "/volumes/0/size_gib"),
        ({"volumes": [{"name": "data", "path": "/data", "size_gib": 0}]}, "/volumes/0/size_gib"),
    ],
)
def test_what_cannot_be_mounted_is_refused_with_its_place(caller: Caller, asked: dict[str, Any], pointer: str) -> None:
    make_host()
    volumes.create(organization_id=caller.organization.pk, name="kept", size_gib=1, region=None, at=NOON, actor="test")
    make_lease(make_tenant())  # the image is there

    answer = caller.post("/api/v1/leases", {"request": "A100_80G", "image": "pytorch_latest", **asked})

    assert answer.status_code == 422, answer.json()
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]
    assert not Lease.objects.filter(organization=caller.organization).exists()


def test_the_door_makes_lists_and_deletes(caller: Caller) -> None:
    made = caller.post("/api/v1/volumes", {"name": "data", "size_gib": 10, "region": "sim"})
    assert made.status_code == 201, made.json()
    body = made.json()
    assert (body["state"], body["region"], body["reserved"]["amount"]) == ("unbound", "sim", "0.259200")
    assert body["price"] == {"amount": "0.000360", "currency": "XTS", "per": "gib_hour"}
    again = caller.post("/api/v1/volumes", {"name": "data", "size_gib": 10})
    assert [fault["pointer"] for fault in again.json()["errors"]] == ["/name"]
    dry = caller.post("/api/v1/volumes?dry_run=1", {"name": "other", "size_gib": 10})
    assert dry.status_code == 200
    assert [row["name"] for row in caller.get("/api/v1/volumes").json()["items"]] == ["data"]

    gone = caller.send("DELETE", f"/api/v1/volumes/{body['id']}")

    assert (gone.status_code, gone.json()["state"], gone.json()["reserved"]["amount"]) == (200, "deleted", "0.000000")
    assert caller.get("/api/v1/volumes").json()["items"] == []
    assert len(caller.get("/api/v1/volumes?state=deleted").json()["items"]) == 1


def test_an_overfull_volume_is_told_once() -> None:
    host = a_host()
    make_active_lease(volumes=DATA)
    on_hosts.used(host, {the_volume().place: 11 * 1024}, at=after(60))

    keep(61)
    keep(66)

    assert len(told("volume.full")) == 1
    assert HostVolume.objects.get().used_mib == 11 * 1024


def test_operators_see_it_with_its_host_and_what_is_held(client: Client) -> None:
    a_host(name="rack-7")
    make_active_lease(volumes=DATA)
    client.force_login(User.objects.create_superuser("root", "root@example.org"))

    page = client.get("/admin/leasing/volume/").content.decode()
    on_disk = client.get("/admin/agents/hostvolume/").content.decode()

    assert all(text in page for text in (the_volume().public_id, "rack-7", "0.2592"))
    assert the_volume().place in on_disk
