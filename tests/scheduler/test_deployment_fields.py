"""What a lease says of its container, from the door to the host: secrets, logins, SSH, Jupyter, health, endpoints."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from nacl.public import PrivateKey, SealedBox

from agents.models import Host, Workload
from apikit import clock
from audit.models import Entry
from leasing.models import Lease
from leasing.states import EndReason
from scheduler import converging
from tenants import vault
from tenants.models import Organization, Role
from tests.factories import NOON, after, end_and_clean, make_host, make_image, make_tenant, place, price, say
from tests.leasing.test_images_and_secrets import everything_stored
from tests.tenants.conftest import MemberCaller

pytestmark = pytest.mark.django_db
LEASES = "/api/v1/leases"
BODY = {"request": "A100_80G", "image": "pytorch_latest"}
CANARY = "canary-77aa-nobody-stores-me"
LOGIN = "acme:canary-99bb-nor-me"
SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBfTZXN0a2V5LW9mLW5vYm9keQAAAAAAAAAAAAAAAAAA me@home"
NOTEBOOK = {"jupyter": {"port": 8888, "command": ["notebook"]}, "ssh": {"port": 22}}


@pytest.fixture(autouse=True)
def _noon() -> Iterator[None]:
    with clock.frozen(NOON):
        yield


@pytest.fixture
def key() -> PrivateKey:
    return PrivateKey.generate()


@pytest.fixture
def host(key: PrivateKey) -> Host:
    made = make_host(gpus=2, sealing_key=bytes(key.public_key).hex(), address="203.0.113.7")
    price()
    make_image()
    return made


@pytest.fixture
def tenant(host: Host) -> Organization:
    tenant = make_tenant()
    for name, value in (("TOKEN", CANARY), ("REGISTRY", LOGIN), ("ODD", "no colon in it")):
        vault.store(organization=tenant, name=name, value=value, at=NOON, actor="test")
    return tenant


@pytest.fixture
def caller(tenant: Organization) -> MemberCaller:
    return MemberCaller(tenant, Role.DEVELOPER)


def opened(workload: Workload, key: PrivateKey) -> dict[str, Any]:
    """Return what the host can open, as it does."""
    found: dict[str, Any] = json.loads(SealedBox(key).decrypt(base64.b64decode(workload.sealed)))
    return found


def test_values_reach_the_host_sealed_and_are_in_clear_nowhere(caller: MemberCaller, key: PrivateKey) -> None:
    made = caller.post(LEASES, {**BODY, "secrets": ["TOKEN"], "registry_secret": "REGISTRY"})
    assert made.status_code == 201, made.content
    place(at=NOON)

    workload = Workload.objects.get()
    lease = Lease.objects.get()
    assert (workload.spec["secrets"], workload.spec["registry_login"]) == (["TOKEN"], True)
    assert opened(workload, key) == {
        "lease": lease.public_id, "member": 0, "epoch": 1, "secrets": {"TOKEN": CANARY},
        "registry": {"username": "acme", "password": LOGIN.partition(":")[2]},
    }  # fmt: skip
    stored = everything_stored()
    assert "pytorch_latest" in stored, "the search finds nothing at all"
    assert not [text for text in (CANARY, LOGIN, LOGIN.partition(":")[2]) if text in stored]
    assert (made.json()["secrets"], made.json()["registry_secret"]) == (["TOKEN"], "REGISTRY")

    say(lease, "ready", at=after(2))
    converging.converge(at=after(2))
    end_and_clean(Lease.objects.get(), at=after(60))
    assert Workload.objects.get().sealed == ""


def test_who_got_a_secret_is_in_the_audit(caller: MemberCaller, host: Host) -> None:
    caller.post(LEASES, {**BODY, "secrets": ["TOKEN"]})
    place(at=NOON)

    entry = Entry.objects.get(action="secret.handed_out")

    assert entry.after is not None
    assert entry.after["name"] == "TOKEN"
    assert entry.after["receiver"] == f"{Lease.objects.get().public_id} on {host.public_id}"


@pytest.mark.parametrize(
    ("fields", "pointer", "code"),
    [
        ({"secrets": ["TOKEM"]}, "/secrets/0", "bad_value"),
        ({"secrets": ["TOKEN", "TOKEN"]}, "/secrets/1", "bad_value"),
        ({"secrets": ["a-b"]}, "/secrets/0", "bad_value"),
        ({"registry_secret": "NOBODY"}, "/registry_secret", "bad_value"),
        ({"registry_secret": "ODD"}, "/registry_secret", "bad_value"),
        ({"jupyter": True}, "/jupyter", "bad_value"),
        ({"health": {}}, "/health/port", "exactly_one_of"),
        ({"health": {"port": 80, "command": ["x"]}}, "/health/port", "exactly_one_of"),
        ({"health": {"command": ["x"], "path": "/"}}, "/health/path", "exactly_one_of"),
        ({"health": {"port": 80, "path": "no-slash"}}, "/health/path", "bad_value"),
        ({"health": {"port": 80, "timeout_s": 0}}, "/health/timeout_s", "out_of_range"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    caller: MemberCaller, fields: dict[str, Any], pointer: str, code: str
) -> None:
    answer = caller.post(LEASES, {**BODY, **fields})

    assert answer.status_code == 422
    assert (pointer, code) in {(fault["pointer"], fault["code"]) for fault in answer.json()["errors"]}
    assert CANARY not in answer.content.decode()


def test_a_misspelt_name_is_told_its_nearest(caller: MemberCaller) -> None:
    (fault,) = caller.post(LEASES, {**BODY, "secrets": ["TOKEM"]}).json()["errors"]

    assert fault["nearest"] == ["TOKEN"]


def test_a_secret_of_another_organization_is_unknown(caller: MemberCaller) -> None:
    vault.store(organization=make_tenant(name="Others"), name="THEIRS", value="x", at=NOON, actor="test")

    assert caller.post(LEASES, {**BODY, "secrets": ["THEIRS"]}).status_code == 422


def test_a_secret_that_is_gone_when_it_starts_ends_the_lease_at_once_and_says_why(
    caller: MemberCaller, tenant: Organization
) -> None:
    caller.post(LEASES, {**BODY, "secrets": ["TOKEN"]})
    tenant.secrets.get(name="TOKEN").delete()
    place(at=NOON)
    lease = Lease.objects.get()
    say(lease, "exited", at=after(1), failure="secret_missing", detail="no value is kept under TOKEN any more")

    converging.converge(at=after(2))

    lease.refresh_from_db()
    assert (lease.ending_reason, "TOKEN" in lease.ending_detail) == (EndReason.FAILED_TO_START, True)


def test_ssh_keys_publish_the_image_s_port_and_the_lease_says_where_it_is(caller: MemberCaller) -> None:
    make_image("with_ssh", services=NOTEBOOK, ports=[8000])
    made = caller.post(LEASES, {**BODY, "image": "with_ssh", "ssh_keys": [SSH_KEY]})
    assert made.status_code == 201, made.content
    place(at=NOON)
    assert Workload.objects.get().spec["ports"] == [8000, 22]

    say(Lease.objects.get(), "ready", at=after(2), ports={"22": 40022, "8000": 48000})

    (member,) = caller.get(made["Location"]).json()["members"]
    assert member["endpoints"] == [
        {"port": 22, "service": "ssh", "address": "203.0.113.7", "host_port": 40022},
        {"port": 8000, "service": "tcp", "address": "203.0.113.7", "host_port": 48000},
    ]


def test_with_keys_an_image_of_unknown_services_gets_the_usual_port(caller: MemberCaller) -> None:
    caller.post(LEASES, {**BODY, "image": "docker.io/acme/it:1", "ssh_keys": [SSH_KEY]})
    place(at=NOON)

    assert Workload.objects.get().spec["ports"] == [22]


def test_without_keys_no_ssh_port_is_opened(caller: MemberCaller) -> None:
    make_image("with_ssh", services=NOTEBOOK)
    caller.post(LEASES, {**BODY, "image": "with_ssh"})
    place(at=NOON)

    assert Workload.objects.get().spec["ports"] == []


def test_jupyter_runs_its_command_behind_a_token_from_the_vault(caller: MemberCaller, tenant: Organization) -> None:
    make_image("with_jupyter", services=NOTEBOOK)
    asked = {**BODY, "image": "with_jupyter", "jupyter": True}
    refused = caller.post(LEASES, asked)
    assert [fault["pointer"] for fault in refused.json()["errors"]] == ["/secrets"]
    vault.store(organization=tenant, name="JUPYTER_TOKEN", value=CANARY, at=NOON, actor="test")

    made = caller.post(LEASES, {**asked, "secrets": ["JUPYTER_TOKEN"]})
    place(at=NOON)
    say(Lease.objects.get(), "ready", at=after(2), ports={"8888": 41000})

    spec = Workload.objects.get().spec
    assert (spec["command"], spec["ports"], spec["secrets"]) == (["notebook"], [8888], ["JUPYTER_TOKEN"])
    (endpoint,) = caller.get(made["Location"]).json()["members"][0]["endpoints"]
    assert endpoint["url"] == "http://203.0.113.7:41000/"


def test_a_read_only_root_goes_with_the_spec_and_only_where_it_was_asked_for(caller: MemberCaller) -> None:
    make_image("serving")
    made = caller.post(LEASES, {**BODY, "image": "serving", "read_only": True})
    caller.post(LEASES, {**BODY, "image": "serving"})
    place(at=NOON)

    assert caller.get(made["Location"]).json()["read_only"] is True
    said = {workload.reference: workload.spec.get("read_only") for workload in Workload.objects.all()}
    assert said.pop(made.json()["id"]) is True
    assert list(said.values()) == [None]  # an agent of a version before can read it


def test_a_health_check_goes_with_the_spec_and_the_lease_s_own_goes_before_the_image_s(caller: MemberCaller) -> None:
    make_image("serving", health={"port": 8000, "path": "/health"})
    caller.post(LEASES, {**BODY, "image": "serving"})
    caller.post(LEASES, {**BODY, "image": "serving", "health": {"command": ["true"]}})
    place(at=NOON)

    checks = [workload.spec["health"] for workload in Workload.objects.order_by("wanted_at", "reference")]
    assert {json.dumps(check, sort_keys=True) for check in checks} == {
        '{"path": "/health", "port": 8000}', '{"command": ["true"]}'
    }  # fmt: skip


def test_an_unhealthy_member_is_shown_and_its_seconds_go_on(caller: MemberCaller) -> None:
    made = caller.post(LEASES, {**BODY, "health": {"port": 8000}})
    place(at=NOON)
    lease = Lease.objects.get()
    say(lease, "ready", at=after(2))
    converging.converge(at=after(2))

    say(lease, "ready", at=after(62), unhealthy="health check on port 8000: refused")
    converging.converge(at=after(62))

    with clock.frozen(after(62)):
        shown = caller.get(made["Location"]).json()
    assert shown["state"] == "active"
    assert shown["members"][0]["unhealthy"] == "health check on port 8000: refused"
    assert shown["cost"]["billable_seconds"] == 60


def test_a_quote_is_redeemed_with_secrets_of_the_organization_only(caller: MemberCaller) -> None:
    quote = caller.post("/api/v1/quotes", {"request": "A100_80G"}).json()["id"]
    body = {"quote": quote, "image": "pytorch_latest"}
    assert caller.post(LEASES, {**body, "secrets": ["NOBODY"]}).status_code == 422

    made = caller.post(LEASES, {**body, "secrets": ["TOKEN"]})

    assert (made.status_code, made.json()["secrets"]) == (201, ["TOKEN"])
