"""The operators' first page: each GPU counted once, the queue with its reasons, money, what is sick or late."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission
from django.test import Client

from accounts.models import User
from agents.models import Alarm, Device, Host
from apikit import clock
from apikit.money import Money
from console import overview as pages
from console.models import InvariantCheck
from console.templatetags import humane
from scheduler import loop_progress, planning
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
)
from tests.factories import wanted as make_wanted

pytestmark = pytest.mark.django_db
LATER = after(300)


@pytest.fixture(autouse=True)
def _later() -> Iterator[None]:
    with clock.frozen(LATER):
        yield


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(User.objects.create_superuser(username="op", email="op@x.invalid", password="x"))
    return client


def look() -> pages.Overview:
    return pages.overview(simulated_currency=settings.SIMULATED_CURRENCY, at=LATER)


def all_loops_run() -> None:
    for name in settings.LOOPS:
        loop_progress.note(name=name, started_at=LATER, ended_at=LATER, error=None)


def test_every_gpu_is_counted_once() -> None:
    tenant = make_tenant()
    host = make_host(gpus=6, last_heard_at=LATER, state_since=LATER)
    price()
    make_active_lease(tenant, "A100_80G x2")
    planning.quote(organization=tenant, wanted=make_wanted(tenant, at=LATER), ttl_s=300, at=LATER)
    free = Device.objects.filter(host=host, allocations=None).order_by("index")
    Device.objects.filter(pk=free[0].pk).update(health=Device.Health.DEGRADED)
    make_host(gpus=1, state=Host.State.LOST)
    make_host(gpus=1, scheduling=Host.Scheduling.DRAINING)
    make_host(gpus=5, state=Host.State.RETIRED)

    (line,) = look().pool

    assert (line.region, line.model, line.simulated) == ("sim", "A100_80G", True)
    assert (line.total, line.free, line.held, line.leased, line.out_of_service) == (8, 2, 1, 2, 3)
    assert line.out == {"GPU degraded": 1, "host lost": 1, "draining": 1}


def test_the_queue_says_who_waits_for_how_long_and_why() -> None:
    make_host(gpus=2)
    price()
    make_active_lease(request="A100_80G x2")
    waiting = make_lease(request="A100_80G x2")
    place(at=NOON)

    queue = look().queue

    assert queue.length == 1
    assert (queue.first[0].lease, queue.first[0].waits_s) == (waiting, 300)
    assert queue.first[0].why
    assert queue.reasons[0][1] == 1


def test_todays_money_is_what_was_posted_today() -> None:
    make_host(gpus=1)
    price(micros=3_600_000)
    tenant = make_tenant(micros=50_000_000)
    lease = make_active_lease(tenant)
    end_and_clean(lease, at=after(102))

    (day,) = look().money

    assert (day.currency, day.simulated) == ("XTS", True)
    assert day.paid_in.amount_micros == 50_000_000
    assert day.used.amount_micros == 100_000
    assert day.commission.amount_micros == 10_000
    assert (day.carried.amount_micros, day.per_hour.amount_micros) == (0, 0)
    tomorrow = pages.money(simulated_currency="XTS", at=LATER + timedelta(days=1))
    assert [(day.paid_in.amount_micros, day.used.amount_micros) for day in tomorrow] == [(0, 0)]


def test_what_runs_is_shown_as_a_rate() -> None:
    make_host(gpus=2)
    price(micros=3_600_000)
    make_active_lease(request="A100_80G x2")

    assert look().money[0].per_hour.amount_micros == 7_200_000


def test_when_all_is_well_nothing_needs_attention(operator: Client) -> None:
    make_host()
    all_loops_run()

    assert not look().needs_attention
    assert b"Nothing: hosts" in operator.get("/admin/").content


def test_what_is_sick_or_late_is_named_and_linked(operator: Client) -> None:
    all_loops_run()
    loop_progress.note(name="scheduler.converge", started_at=NOON, ended_at=NOON, error=None)
    make_host(name="wreck", state=Host.State.QUARANTINED, state_reason="lied <script>alert(1)</script>")
    device = make_host(name="limping").devices.get()
    Device.objects.filter(pk=device.pk).update(health=Device.Health.DEGRADED, health_reason="Xid 63")
    Alarm.objects.create(kind="many_silent", subject="sim", detail="Six of ten", opened_at=NOON)
    InvariantCheck.objects.create(name="a wallet/is whole", checked_at=NOON, findings=3)

    page = operator.get("/admin/").content.decode()

    for said in ("wreck", "limping", "Xid 63", "Six of ten", "a wallet/is whole", "scheduler.converge"):
        assert said in page
    assert "<script>alert" not in page
    for link in ("agents/host/", "agents/device/", "agents/alarm/", "console/invariantcheck/"):
        href = page.partition(f'href="/admin/{link}')[2].partition('"')[0]
        assert operator.get(f"/admin/{link}{href}").status_code == 200, link


def test_the_number_of_queries_does_not_grow(operator: Client, django_assert_max_num_queries: Any) -> None:
    price_of = make_host(gpus=8)
    price()
    for _ in range(3):
        make_active_lease()
        make_lease(request="A100_80G x8")
        make_host(gpus=4, zone=price_of.zone)

    with django_assert_max_num_queries(22):
        operator.get("/admin/")


def test_who_may_not_see_hosts_or_money_does_not(client: Client) -> None:
    make_host(name="secret-host", state=Host.State.LOST)
    make_tenant()
    staff = User.objects.create_user(username="s", email="s@x.invalid", password="x", is_staff=True)
    client.force_login(staff)
    nothing = client.get("/admin/").content.decode()

    staff.user_permissions.set(Permission.objects.filter(codename__in=["view_host", "view_lease"]))
    hosts_only = client.get("/admin/").content.decode()

    assert "secret-host" not in nothing
    assert "secret-host" in hosts_only
    assert "Money today" not in hosts_only


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (7_505, "2 h 5 min"), (200_000, "2 d 7 h")]
)
def test_durations_have_their_two_largest_units(count: float, words: str) -> None:
    assert humane.seconds(count) == words


@pytest.mark.parametrize(
    ("micros", "text"), [(0, "0.00"), (1_234_567_890_000, "1 234 567.89"), (-15_999, "-0.01"), (9_999, "0.00")]
)
def test_amounts_have_two_places(micros: int, text: str) -> None:
    assert humane.amount(Money(micros, "CNY")) == text
