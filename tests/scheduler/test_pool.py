"""The pool in memory: what is remembered between loads never changes an answer."""

import random

import pytest

from agents.models import Device, Host
from billing.models import PriceVersion
from scheduler import pool as pools
from scheduler.placement import Ask, Placement, Refusal, Want, decide
from scheduler.pool import Pool
from tests.factories import NOON, after, end_and_clean, make_active_lease, make_host, make_tenant, place, price

pytestmark = pytest.mark.django_db


def load(at_s: float) -> Pool:
    return pools.load(term="on_demand", currency="XTS", at=after(at_s))


def ask(count: int, at_s: float) -> Ask:
    now = pools.seconds(after(at_s))
    return Ask(options=(Want("A100_80G", count=count),), organization="somebody", now_s=now, start_s=now)


def test_a_pool_that_remembers_and_one_made_anew_decide_alike_whatever_happens() -> None:
    chance = random.Random(20261130)
    for index in range(5):
        make_host(gpus=8, name=f"host-{index}")
    price()
    tenant = make_tenant(gpu_quota=1000, micros=10**12)
    running = []
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
