"""The pool in memory: what is remembered between loads never changes an answer."""

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from agents import capacity
from agents.models import Device, Host
from billing.models import PriceVersion
from leasing.models import Lease
from scheduler import pool as pools
from scheduler import pool_rows
from scheduler.placement import Ask, Placement, Refusal, Want, decide
from scheduler.pool import Pool
from tests.factories import NOON, after, end_and_clean, make_active_lease, make_host, make_tenant, place, price

pytestmark = pytest.mark.django_db


def load(at_s: float) -> Pool:
    return pools.load(term="on_demand", currency="XTS", at=after(at_s))


def say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load once, and let the log tell of no change from then on."""
    load(0)
    monkeypatch.setattr(pools._rows, "_unsettled", frozenset())
    silent = capacity.Changes(hosts=frozenset(), cursor=1)
    monkeypatch.setattr(capacity, "changed_since", lambda cursor, *, unsettled: silent)


def ask(count: int, at_s: float) -> Ask:
    now = pools.seconds(after(at_s))
    return Ask(options=(Want("A100_80G", count=count),), organization="somebody", now_s=now, start_s=now)


def test_a_pool_that_remembers_and_one_made_anew_decide_alike_whatever_happens() -> None:
    chance = random.Random(20261130)
    for index in range(5):
        make_host(gpus=8, name=f"host-{index}")
    price()
    tenant = make_tenant(gpu_quota=1000, micros=10**12)
    running: list[Lease] = []
    for turn in range(12):
        at_s = 60.0 * turn
        if running and chance.random() < 0.4:
            end_and_clean(running.pop(chance.randrange(len(running))), at=after(at_s))
        elif isinstance(load(at_s).decide(ask(3, at_s)), Placement):
            running.append(make_active_lease(tenant, f"A100_80G x{chance.choice([1, 2, 3])}", at=after(at_s)))
        if chance.random() < 0.3:
            sick = Device.objects.order_by("?").first()
            assert sick is not None
            Device.objects.filter(pk=sick.pk).update(health=chance.choice(["healthy", "suspect"]))
        for count in (1, 2, 4, 8):
            warm = load(at_s + 30).decide(ask(count, at_s + 30))
            pools.forget()
            cold = load(at_s + 30)
            assert warm == decide(cold.views(), ask(count, at_s + 30))


def test_a_host_that_stayed_as_it_was_stays_the_same_object() -> None:
    make_host(gpus=2, name="quiet"), make_host(gpus=2, name="busy")
    price()
    before = load(0)

    make_active_lease(at=after(1))
    changed = [key for key, view in load(10).hosts.items() if view is not before.hosts[key]]

    assert len(changed) == 1


def test_an_owners_price_floor_withholds_his_host_and_makes_no_price() -> None:
    make_host(gpus=2, price_floor_micros=3_600_001)
    price(micros=3_600_000)

    refused = load(0).decide(ask(1, 0))

    assert isinstance(refused, Refusal)
    assert [reason.code for reason in refused.reasons] == ["not_for_sale"]
    assert PriceVersion.objects.count() == 1


def test_what_is_not_released_is_not_free_however_long_its_end_is_past() -> None:
    make_host(gpus=1)
    price()
    make_active_lease(term={"kind": "on_demand", "end_at": after(600)})
    Host.objects.update(last_heard_at=NOON)

    place(at=after(9000))

    assert isinstance(load(9000).decide(ask(1, 9000)), Refusal)


@pytest.mark.django_db(transaction=True)
def test_whatever_happens_the_pool_in_memory_is_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random acts through the domain and behind its back; the memory is refreshed by the log only."""
    monkeypatch.setattr(pool_rows, "CHECK_S", 3600)
    chance = random.Random(7)
    hosts = [make_host(gpus=4, name=f"host-{index}") for index in range(6)]
    price()
    tenant = make_tenant(gpu_quota=1000, micros=10**12)
    running: list[Lease] = []

    def lease() -> None:
        if isinstance(load(at_s).decide(ask(2, at_s)), Placement):
            running.append(make_active_lease(tenant, "A100_80G x2", at=after(at_s)))

    def end() -> None:
        if running:
            end_and_clean(running.pop(chance.randrange(len(running))), at=after(at_s))

    def host() -> None:
        field, value = chance.choice(
            [("scheduling", "cordoned"), ("scheduling", "open"), ("price_floor_micros", 5), ("conditions", ["hot"]),
             ("conditions", []), ("state", "lost"), ("state", "retired"), ("state", "online"), ("cpu_milli", 64_000)]
        )  # fmt: skip
        Host.objects.filter(pk=chance.choice(hosts).pk).update(**{field: value})

    def device() -> None:
        device = chance.choice(list(Device.objects.all()))
        device.cordoned, device.readings = not device.cordoned, {"mig": {"placements": {}}, "watts": at_s}
        device.save()

    def rolled_back() -> None:
        with suppress(ZeroDivisionError), transaction.atomic():
            Device.objects.update(health="failed")
            load(at_s)
            raise ZeroDivisionError

    def nothing_of_it() -> None:
        Host.objects.update(last_heard_at=after(at_s), generation=F("generation") + 1)

    load(0)
    for turn in range(60):
        at_s = 60.0 * turn
        chance.choice([lease, lease, end, host, device, rolled_back, nothing_of_it])()
        warm = load(at_s + 30)
        assert pools.check() == set()
        pools.forget()
        cold = load(at_s + 30)
        assert warm.hosts == cold.hosts
        assert warm.known == cold.known
        assert warm.capacity == cold.capacity


def test_what_changes_without_a_line_in_the_log_is_found_and_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_rows, "CHECK_S", 3600)
    host = make_host(gpus=2)
    other = make_host(gpus=2)
    price()
    say_nothing(monkeypatch)
    Device.objects.filter(host=host).update(cordoned=True)
    before = pool_rows.DRIFT._value.get()
    assert all(not device.out_of_service for view in load(1).hosts.values() for device in view.devices)

    assert pools.check() == {host.pk}

    assert pool_rows.DRIFT._value.get() == before + 1
    found = {key: {device.out_of_service for device in view.devices} for key, view in load(2).hosts.items()}
    assert found == {f"{host.pk}/A100_80G": {"cordoned"}, f"{other.pk}/A100_80G": {""}}


def test_a_load_where_nothing_changed_reads_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_rows, "CHECK_S", 3600)
    for _ in range(3):
        make_host(gpus=8)
    price()
    say_nothing(monkeypatch)

    with CaptureQueriesContext(connection) as asked:
        load(2)

    assert len(asked) == 1  # prices in force


def test_strangers_are_decided_for_alike_and_owners_are_not() -> None:
    owner = make_host(gpus=1).owner
    price()
    pool = load(0)

    assert pool.general(replace(ask(1, 0), organization="one")) == pool.general(replace(ask(1, 0), organization="two"))
    assert pool.general(replace(ask(1, 0), organization=str(owner.pk))).organization == str(owner.pk)
