from typing import Any

import pytest
from django.test import Client

from agents import workloads
from agents.models import Enrolment, Host
from apikit import clock
from audit.models import Entry
from outbox.models import Message
from tenants import keys
from tenants.models import Organization
from tests.agents.conftest import Clock
from tests.agents.fake_agent import FakeAgent, make_online_agent
from tests.agents.test_sync import start
from tests.factories import after, make_host, make_organization, make_zone

pytestmark = pytest.mark.django_db


class Owner:
    """An organization that calls the API with a key."""

    def __init__(self, organization: Organization | None = None, *, may_write: bool = True) -> None:
        scopes = ("hosts:read", "hosts:write") if may_write else ("hosts:read",)
        self.organization = organization or make_organization()
        _, self.secret = keys.create(
            organization=self.organization, name="t", scopes=scopes, expires_at=None, created_by=None, at=clock.now()
        )
        self.client, self.posts = Client(raise_request_exception=False), 0

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        self.posts += 1
        names = {"Authorization": f"Bearer {self.secret}", "Idempotency-Key": f"k{self.posts}"} | headers
        names = {name.replace("_", "-"): value for name, value in names.items()}
        send = getattr(self.client, method.lower())
        options = {} if body is None else {"data": body, "content_type": "application/json"}
        return send(f"/api/v1{path}", headers=names, **options)


def slug(response: Any) -> str:
    return str(response.json()["type"].rpartition("/")[2])


def test_an_owner_makes_a_token_and_sees_his_host_join(at: Clock) -> None:
    owner = Owner()
    make_zone()
    made = owner.call("POST", "/enrolments", {"name": "node-1", "zone": "sim-1", "access": "private"})
    assert (made.status_code, made.json()["state"]) == (201, "open")

    FakeAgent().enrol(made.json()["token"])

    shown = owner.call("GET", f"/enrolments/{made.json()['id']}").json()
    assert (shown["state"], "token" in shown) == ("used", False)
    host = owner.call("GET", f"/hosts/{shown['host']}").json()
    assert (host["name"], host["access"], host["state"], host["simulated"]) == ("node-1", "private", "unverified", True)


def test_the_token_is_not_kept_in_the_clear_for_a_retry(at: Clock) -> None:
    owner = Owner()
    make_zone()
    body = {"name": "node-1", "zone": "sim-1"}

    first = owner.call("POST", "/enrolments", body, Idempotency_Key="same")
    again = owner.call("POST", "/enrolments", body, Idempotency_Key="same")

    assert first.json() == again.json()
    assert Enrolment.objects.count() == 1


def test_a_revoked_token_is_worthless(at: Clock) -> None:
    owner = Owner()
    make_zone()
    made = owner.call("POST", "/enrolments", {"name": "node-1", "zone": "sim-1"}).json()

    assert owner.call("DELETE", f"/enrolments/{made['id']}").status_code == 204

    assert FakeAgent().enrol(made["token"]).status_code == 401
    assert owner.call("GET", f"/enrolments/{made['id']}").json()["state"] == "revoked"


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({"zone": "sim-1"}, "/name", "required"),
        ({"name": "node-1", "zone": "nowhere"}, "/zone", "bad_value"),
        ({"name": "Node 1", "zone": "sim-1"}, "/name", "bad_name"),
        ({"name": "n", "zone": "sim-1", "gpu": {}}, "/gpu", "unknown_field"),
        ({"name": "n", "zone": "sim-1", "gpus": {"NO_SUCH": 1}}, "/gpus/NO_SUCH", "bad_value"),
    ],
)
def test_faults_of_an_invitation_are_named(at: Clock, body: dict[str, Any], pointer: str, code: str) -> None:
    owner = Owner()
    make_zone()

    refused = owner.call("POST", "/enrolments", body)

    assert refused.status_code == 422
    assert [(f["pointer"], f["code"]) for f in refused.json()["errors"]] == [(pointer, code)]
    assert not Enrolment.objects.exists()


def test_another_organizations_host_does_not_exist(at: Clock) -> None:
    owner, stranger = Owner(), Owner()
    host = make_host(owner=owner.organization)
    path = f"/hosts/{host.public_id}"

    answers = [
        stranger.call("GET", path),
        stranger.call("GET", f"{path}/devices"),
        stranger.call("GET", f"{path}/events"),
        stranger.call("GET", f"{path}/self-tests"),
        stranger.call("POST", f"{path}/actions/cordon", {}),
        stranger.call("PATCH", path, {"access": "private"}, If_Match='"1"'),
    ]

    assert {answer.status_code for answer in answers} == {404}
    assert [row["id"] for row in owner.call("GET", "/hosts").json()["items"]] == [host.public_id]
    assert stranger.call("GET", "/hosts").json()["items"] == []


def test_reading_is_not_writing(at: Clock) -> None:
    reader = Owner(may_write=False)
    host = make_host(owner=reader.organization)

    assert reader.call("GET", f"/hosts/{host.public_id}").status_code == 200
    assert reader.call("POST", f"/hosts/{host.public_id}/actions/cordon", {}).status_code == 403


def test_a_host_is_cordoned_drained_and_opened_again_with_the_reason_on_record(at: Clock) -> None:
    owner = Owner()
    path = f"/hosts/{make_host(owner=owner.organization).public_id}"

    cordoned = owner.call("POST", f"{path}/actions/cordon", {"reason": "new fans"}).json()
    drained = owner.call("POST", f"{path}/actions/drain", {"reason": "new fans", "deadline_s": 60}).json()
    opened = owner.call("POST", f"{path}/actions/uncordon", {}).json()

    assert (cordoned["scheduling"], cordoned["scheduling_reason"]) == ("cordoned", "new fans")
    assert (drained["scheduling"], drained["drain_deadline"]) == ("draining", "2027-03-01T12:01:00Z")
    assert (opened["scheduling"], opened["drain_deadline"]) == ("open", None)
    kinds = [row["kind"] for row in owner.call("GET", f"{path}/events").json()["items"]]
    assert kinds == ["host.uncordoned", "host.draining", "host.cordoned"]
    assert list(Entry.objects.filter(why="new fans").order_by("position").values_list("action", "why")) == [
        ("host.cordoned", "new fans"),
        ("host.draining", "new fans"),
    ]


def test_a_drain_until_a_moment_that_has_passed_is_refused_and_until_now_is_not(at: Clock) -> None:
    owner = Owner()
    host = make_host(owner=owner.organization)
    path = f"/hosts/{host.public_id}/actions/drain"

    refused = owner.call("POST", path, {"deadline": "2026-03-01T12:00:00Z"})

    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/deadline")
    assert owner.call("GET", f"/hosts/{host.public_id}").json()["scheduling"] == "open"
    assert owner.call("POST", path, {"deadline": "2027-03-01T12:00:00Z"}).status_code == 200
    assert owner.call("POST", path, {"deadline_s": 0}).status_code == 200


def test_a_host_with_something_running_cannot_leave_and_an_empty_one_can(at: Clock) -> None:
    agent = make_online_agent()
    owner = Owner(agent.row.owner)
    desired = start(agent)
    path = f"/hosts/{agent.host}/actions/retire"
    assert slug(owner.call("POST", path, {"reason": "sold"})) == "host-is-busy"

    workloads.unwant(reference=desired["lease"], at=after(1), reason="end")
    agent.sync(workloads=[agent.report(desired, "gone")])
    left = owner.call("POST", path, {"reason": "sold"})

    assert (left.status_code, left.json()["state"], left.json()["actions"]) == (200, "retired", [])
    assert agent.send().status_code == 401


def test_the_owner_sets_floor_class_and_hours_over_the_version_he_saw(at: Clock) -> None:
    owner = Owner()
    host = make_host(owner=owner.organization)
    path = f"/hosts/{host.public_id}"
    change = {
        "price_floor": {"amount": "1.5", "currency": "XTS"},
        "access": "shared_when_idle",
        "hours": [{"days": [0, 6], "from": "20:00", "to": "08:00"}],
        "hours_time_zone": "Asia/Shanghai",
    }

    assert slug(owner.call("PATCH", path, change)) == "precondition-required"
    assert slug(owner.call("PATCH", path, change, If_Match='"7"')) == "precondition-failed"
    changed = owner.call("PATCH", path, change, If_Match='"1"')

    assert changed.json()["price_floor"] == {"amount": "1.500000", "currency": "XTS", "per": "gpu_hour"}
    host.refresh_from_db()
    assert (host.price_floor_micros, host.access, host.version) == (1_500_000, "shared_when_idle", 2)
    assert (host.hours, host.hours_time_zone) == (change["hours"], "Asia/Shanghai")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"price_floor": {"amount": "1", "currency": "CNY"}}, "/price_floor/currency"),
        ({"hours": [{"days": [7], "from": "20:00", "to": "08:00"}]}, "/hours/0/days/0"),
        ({"hours": [{"days": [1], "from": "25:00", "to": "08:00"}]}, "/hours/0"),
        ({"hours_time_zone": "Mars/Olympus"}, "/hours_time_zone"),
        ({"state": "online"}, "/state"),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_its_place(at: Clock, change: dict[str, Any], pointer: str) -> None:
    owner = Owner()
    host = make_host(owner=owner.organization)

    refused = owner.call("PATCH", f"/hosts/{host.public_id}", change, If_Match='"1"')

    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
    assert Host.objects.get().version == 1


def test_an_action_that_does_not_exist_names_those_that_do(at: Clock) -> None:
    owner = Owner()
    host = make_host(owner=owner.organization)

    refused = owner.call("POST", f"/hosts/{host.public_id}/actions/explode", {})

    assert (refused.status_code, slug(refused)) == (409, "invalid-transition")
    assert "cordon" in refused.json()["actions"]


def test_devices_show_their_health_and_whether_they_are_in_use(at: Clock) -> None:
    agent = make_online_agent()
    owner = Owner(agent.row.owner)
    start(agent)

    rows = owner.call("GET", f"/hosts/{agent.host}/devices").json()["items"]

    assert [(row["model"], row["health"], row["in_use"]) for row in rows] == [("A100_80G", "healthy", True)] * 2
    assert rows[0]["readings"] == {"temperature_c": 40}


def test_an_owner_asks_for_a_new_verification_and_sees_its_checks(at: Clock) -> None:
    agent = make_online_agent()
    owner = Owner(agent.row.owner)

    owner.call("POST", f"/hosts/{agent.host}/actions/verify", {})
    wish = agent.sync()["wishes"][0]
    agent.sync(events=[agent.selftest_event(wish)])

    tests = owner.call("GET", f"/hosts/{agent.host}/self-tests").json()["items"]
    assert [(test["passed"], test["simulated"]) for test in tests] == [(True, True)] * 2


def test_owners_are_told_when_a_host_is_verified_and_online(at: Clock) -> None:
    agent = make_online_agent()

    topics = set(Message.objects.filter(organization=agent.row.owner).values_list("topic", flat=True))

    assert {"host.verified", "host.online"} <= topics


def test_a_dry_run_changes_nothing(at: Clock) -> None:
    owner = Owner()
    host = make_host(owner=owner.organization)

    shown = owner.call("POST", f"/hosts/{host.public_id}/actions/cordon?dry_run=1", {})

    assert (shown.status_code, shown.json()["scheduling"]) == (200, "cordoned")
    assert Host.objects.get().scheduling == "open"
