from typing import Any

import pytest

from agents import host_life, maintenance
from agents.models import Host, Maintenance
from apikit.errors import InvalidInput
from audit.models import Entry
from tests.agents.conftest import Clock
from tests.agents.test_hosts_doors import Owner
from tests.factories import NOON, after, make_host

pytestmark = pytest.mark.django_db
HOUR = 3600


def announce(host: Host, *, start: float = 10 * HOUR, end: float = 12 * HOUR, **changes: Any) -> Maintenance:
    window = {"starts_at": after(start), "ends_at": after(end), "message": "new disks", "lead_s": HOUR}
    return maintenance.announce(host_id=host.pk, by="user:1", at=NOON, **(window | changes))


def scheduling(host: Host) -> str:
    host.refresh_from_db()
    return host.scheduling


def test_a_host_is_drained_before_its_window_and_opened_after_it() -> None:
    host = make_host()
    announce(host)

    assert maintenance.tick(at=after(9 * HOUR - 1)) == 0
    assert scheduling(host) == "open"
    assert maintenance.tick(at=after(9 * HOUR)) == 1
    assert (scheduling(host), host.drain_deadline) == ("draining", after(10 * HOUR))
    assert host.scheduling_reason == "Maintenance until 2027-03-02 00:00 UTC: new disks"
    assert maintenance.tick(at=after(11 * HOUR)) == 0
    assert maintenance.tick(at=after(12 * HOUR)) == 1
    assert scheduling(host) == "open"
    assert maintenance.tick(at=after(13 * HOUR)) == 0


def test_a_late_tick_does_what_is_due_once() -> None:
    host = make_host()
    announce(host)

    assert maintenance.tick(at=after(20 * HOUR)) == 2
    assert scheduling(host) == "open"


def test_a_second_window_that_comes_up_during_the_first_is_kept_too() -> None:
    host = make_host()
    announce(host, start=10 * HOUR, end=12 * HOUR)
    announce(host, start=12.5 * HOUR, end=14 * HOUR)  # its lead time begins while the host is away for the first

    for hour in (9, 11.5, 11.9, 12, 12.01):
        maintenance.tick(at=after(hour * HOUR))

    assert (scheduling(host), host.drain_deadline) == ("draining", after(12.5 * HOUR))
    maintenance.tick(at=after(14 * HOUR))
    assert scheduling(host) == "open"


def test_what_the_owner_did_meanwhile_stands() -> None:
    host = make_host()
    announce(host)
    maintenance.tick(at=after(9 * HOUR))
    host_life.drain(host_id=host.pk, deadline=after(11 * HOUR), reason="sold", by="user:1", at=after(10 * HOUR))

    maintenance.tick(at=after(12 * HOUR))

    assert scheduling(host) == "draining"


def test_a_window_that_is_withdrawn_opens_the_host_again() -> None:
    host = make_host()
    row = announce(host)
    maintenance.tick(at=after(9 * HOUR))

    maintenance.withdraw(maintenance_id=row.pk, by="user:1", at=after(9 * HOUR + 5))
    maintenance.withdraw(maintenance_id=row.pk, by="user:1", at=after(9 * HOUR + 6))

    assert scheduling(host) == "open"
    actions = Entry.objects.filter(action__startswith="host.maintenance").values_list("action", flat=True)
    assert list(actions) == ["host.maintenance_announced", "host.maintenance_withdrawn"]


@pytest.mark.parametrize(
    "window",
    [(-1, HOUR), (HOUR, HOUR), (HOUR, 15 * 24 * HOUR), (400 * 24 * HOUR, 401 * 24 * HOUR), (11 * HOUR, 13 * HOUR)],
)
def test_windows_that_cannot_be_are_refused(window: tuple[float, float]) -> None:
    host = make_host()
    announce(host)

    with pytest.raises(InvalidInput):
        announce(host, start=window[0], end=window[1])


def test_an_owner_announces_sees_and_withdraws_a_window(at: Clock) -> None:
    owner = Owner()
    path = f"/hosts/{make_host(owner=owner.organization).public_id}/maintenance"
    body = {"starts_at": "2027-03-02T00:00:00Z", "ends_at": "2027-03-02T02:00:00Z", "message": "new disks"}

    made = owner.call("POST", path, body)
    again = owner.call("POST", path, body)
    listed = owner.call("GET", path).json()["items"]

    assert (made.status_code, made.json()["lead_s"], made.json()["state"]) == (201, 3600, "announced")
    assert again.status_code == 422
    assert [row["id"] for row in listed] == [made.json()["id"]]
    assert owner.call("DELETE", f"{path}/{made.json()['id']}").status_code == 204
    assert owner.call("GET", path).json()["items"][0]["state"] == "withdrawn"
    assert Owner().call("GET", path).status_code == 404
