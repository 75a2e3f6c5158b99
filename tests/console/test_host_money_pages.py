"""The operators' pages of what hosts bring say what the owner's doors say, and only to those who may see money."""

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from accounts.models import User
from agents import baselines
from agents.models import Host, HostEvent, ScoreEntry, SelfTest
from apikit import clock
from billing import close, payouts
from scheduler import host_money
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    make_active_lease,
    make_host,
    make_organization,
    make_tenant,
    price,
)

pytestmark = pytest.mark.django_db
HOUR = 3600
LATER = after(3 * HOUR)
PAGE = "/admin/money-of-hosts/"


@pytest.fixture(autouse=True)
def _later() -> Iterator[None]:
    with clock.frozen(LATER):
        yield


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(User.objects.create_superuser(username="op", email="op@x.invalid", password="x"))
    return client


@pytest.fixture
def host() -> Host:
    host = make_host(owner=make_organization("Owner", currency="XTS", time_zone="UTC"), gpus=2, enrolled_at=NOON)
    price()
    lease = make_active_lease(make_tenant(), "A100_80G x2", at=NOON)
    end_and_clean(lease, at=after(2 + HOUR))
    close.close_due(at=LATER)
    return host


def test_the_page_of_a_host_has_the_money_of_its_owners_doors(operator: Client, host: Host) -> None:
    text = operator.get(f"{PAGE}{host.pk}/").content.decode()

    found = host_money.earnings(host=host, days=host_money.days_until(at=LATER, count=30, time_zone="UTC"))
    # Two GPUs at 3.60 an hour for an hour, less ten percent.
    assert (found.total.gross_micros, found.total.earned_micros) == (7_200_000, 6_480_000)
    for shown in ("7.20", "6.48 XTS", "0.72", "33.3 %", "4 h", "simulated"):
        assert shown in text, shown
    (reference,) = found.by_lease
    assert reference in text
    assert text.count('class="bar"') == 30
    assert "too little to advise from" in text


def test_payouts_score_moves_and_figures_of_tests_stand_there_too(operator: Client, host: Host) -> None:
    payouts.request(owner=host.owner_id, currency="XTS", period="2027-03", provider="paper", at=LATER)
    event = HostEvent.objects.create(host=host, at=NOON, kind="host.lost", detail="Silent for 40 s.")
    ScoreEntry.objects.create(host=host, event=event, at=NOON, points=-500)
    uuids = list(host.devices.order_by("index").values_list("uuid", flat=True))
    SelfTest.objects.create(
        host=host, seed="0", devices=uuids, asked_at=NOON, answer_by=NOON, answered_at=NOON, passed=True,
        simulated=True, figures={uuids[0]: {"h2d_mib_per_s": 12_345}, uuids[1]: {}},
    )  # fmt: skip

    text = operator.get(f"{PAGE}{host.pk}/").content.decode()

    for shown in (
        "2027-03",
        "created",
        "6.48 XTS</td><td>created",
        "Silent for 40 s.",
        "-500",
        "h2d_mib_per_s",
        "12345",
        "not compared yet",
    ):
        assert shown in text, shown


def test_a_figure_stands_beside_its_models_fleet(host: Host) -> None:
    for _ in range(baselines.FLEET_SIZE):
        _tested(make_host(gpus=1), 1000)
    _tested(host, 700)

    rows = baselines.compared(host)

    assert {(row.value, row.expected, row.least, row.hosts, row.is_low) for row in rows} == {(700, 1000, 850, 10, True)}
    assert [row.index for row in rows] == [0, 1]


def _tested(host: Host, value: int) -> None:
    uuids = list(host.devices.values_list("uuid", flat=True))
    SelfTest.objects.create(
        host=host, seed="0", devices=uuids, asked_at=NOON, answer_by=NOON, answered_at=NOON, passed=True,
        simulated=True, figures={uuid: {"h2d_mib_per_s": value} for uuid in uuids},
    )  # fmt: skip


def test_the_table_has_every_live_host_with_what_its_idle_hours_cost(operator: Client, host: Host) -> None:
    other = make_host(name="another", gpus=1, enrolled_at=NOON)
    Host.objects.create(owner=host.owner, zone=host.zone, name="gone-for-good", state="retired")

    text = operator.get(PAGE).content.decode()
    only = operator.get(PAGE, {"q": "another"}).content.decode()

    assert host.name in text
    assert other.name in text
    assert "gone-for-good" not in text
    assert "6.48 XTS" in text
    assert f"{PAGE}{other.pk}/" in only
    assert f"{PAGE}{host.pk}/" not in only


@pytest.mark.parametrize(
    "query", ["days=0", "days=x", "cost_micros=-1", "cost_micros=" + "9" * 40, "p=zzz", "cost_micros=²"]
)
def test_nonsense_in_the_address_is_the_page_without_it(operator: Client, host: Host, query: str) -> None:
    assert operator.get(f"{PAGE}?{query}").status_code == 200
    assert operator.get(f"{PAGE}{host.pk}/?{query}").status_code == 200


def test_without_the_right_to_see_money_there_is_no_page(client: Client, host: Host) -> None:
    staff = User.objects.create_user(username="staff", email="s@x.invalid", password="x", is_staff=True)
    staff.user_permissions.set(Permission.objects.filter(codename="view_host"))
    client.force_login(staff)
    assert client.get(PAGE).status_code == 403
    assert client.get(f"{PAGE}{host.pk}/").status_code == 403

    staff.user_permissions.add(*Permission.objects.filter(codename="view_journal"))

    assert client.get(f"{PAGE}{host.pk}/").status_code == 200


def test_the_first_page_and_a_hosts_own_page_lead_there(operator: Client, host: Host) -> None:
    assert PAGE in operator.get("/admin/").content.decode()
    assert f"{PAGE}{host.pk}/" in operator.get(f"/admin/agents/host/{host.pk}/change/").content.decode()
