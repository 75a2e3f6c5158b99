from typing import Any

import pytest
from nacl.signing import SigningKey

from agents import enrolment, host_life
from agents.models import Alarm, Enrolment, Host
from apikit.errors import InvalidInput
from tenants.models import Organization
from tests.agents.conftest import Clock
from tests.agents.fake_agent import FakeAgent, make_online_agent
from tests.factories import NOON, make_organization, make_zone

pytestmark = pytest.mark.django_db


def invite(owner: Organization, name: str = "node-1", **changes: Any) -> str:
    fields: dict[str, Any] = {"zone": make_zone().slug, "access": "public", "created_by": "test", "at": NOON}
    return enrolment.invite(organization=owner, name=name, **(fields | changes))[1]


def test_a_token_makes_a_host_of_its_owner_zone_and_access_class(at: Clock) -> None:
    owner = make_organization()

    response = FakeAgent().enrol(invite(owner, access="private"))

    host = Host.objects.get()
    assert response.status_code == 201
    assert (host.owner, host.access, host.zone.slug, host.state) == (owner, "private", "sim-1", "unverified")
    assert response.json()["host"] == host.public_id


def test_the_token_is_stored_hashed_and_good_once(at: Clock) -> None:
    token = invite(make_organization())
    FakeAgent().enrol(token)

    second = FakeAgent(name="other").enrol(token)

    assert token not in str(Enrolment.objects.values_list().get())
    assert (second.status_code, Host.objects.count()) == (401, 1)
    assert second.json()["type"].endswith("unauthenticated")


def test_the_same_machine_may_ask_again_when_the_answer_was_lost(at: Clock) -> None:
    agent, token = FakeAgent(), invite(make_organization())
    first = agent.enrol(token)

    again = agent.enrol(token)

    assert (again.status_code, again.json()) == (201, first.json())
    assert Host.objects.count() == 1


def test_a_token_is_over_after_fifteen_minutes_and_when_revoked(at: Clock) -> None:
    owner = make_organization()
    late, revoked = invite(owner), invite(owner, "node-2")
    enrolment.revoke(enrolment=Enrolment.objects.get(name="node-2"), at=NOON)

    assert FakeAgent(name="node-2").enrol(revoked).status_code == 401
    at.forward(900)
    assert FakeAgent().enrol(late).status_code == 401
    assert not Host.objects.exists()


def test_what_is_no_key_is_refused_and_burns_no_token(at: Clock) -> None:
    token = invite(make_organization())

    refused = FakeAgent().enrol(token, signing_key="zz")

    assert refused.status_code == 422
    assert FakeAgent().enrol(token).status_code == 201


def test_one_key_cannot_be_two_hosts(at: Clock) -> None:
    owner, key = make_organization(), SigningKey.generate()
    FakeAgent(key=key).enrol(invite(owner))

    copy = FakeAgent(name="node-2", key=key).enrol(invite(owner, "node-2"))

    assert (copy.status_code, copy.json()["type"].rpartition("/")[2]) == (409, "host-key-taken")


def test_a_machine_that_lost_its_disk_comes_back_as_itself(at: Clock) -> None:
    owner = make_organization()
    FakeAgent(boot_no=9).enrol(invite(owner))
    first = Host.objects.get()
    Host.objects.update(boot_no=9, last_seq=100)
    fresh = FakeAgent(boot_no=1)

    fresh.enrol(invite(owner))

    host = Host.objects.get()
    assert (host.pk, host.boot_no, host.last_seq) == (first.pk, 0, 0)
    assert host.signing_key == fresh.signing_key != first.signing_key


def test_another_machine_cannot_take_a_name_that_is_in_use(at: Clock) -> None:
    owner = make_organization()
    FakeAgent().enrol(invite(owner))

    other = FakeAgent(gpus=3).enrol(invite(owner))

    assert other.json()["type"].endswith("host-name-taken")


def test_a_retired_name_is_free_again(at: Clock) -> None:
    owner = make_organization()
    FakeAgent().enrol(invite(owner))
    host_life.retire(host_id=Host.objects.get().pk, reason="sold", by="test", at=NOON)

    assert FakeAgent(gpus=3).enrol(invite(owner)).status_code == 201


def test_a_gpu_in_two_live_hosts_puts_both_in_quarantine(at: Clock) -> None:
    first = make_online_agent()
    stolen = {"gpu_uuids": first.uuids}

    FakeAgent(name="node-2").enrol(invite(make_organization(), "node-2"), fingerprint=stolen)

    assert set(Host.objects.values_list("state", flat=True)) == {"quarantined"}
    assert Alarm.objects.filter(kind="host_quarantined", closed_at=None).count() == 2


def test_simulated_hardware_stands_only_in_a_simulated_region(at: Clock) -> None:
    owner = make_organization()
    make_zone("bj-1", simulated=False)

    in_real = FakeAgent().enrol(invite(owner, zone="bj-1"))
    real = FakeAgent(name="node-2").enrol(invite(owner, "node-2"), simulated=False)

    assert [in_real.status_code, real.status_code] == [422, 422]
    assert not Host.objects.exists()


def test_an_invitation_names_every_fault_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        invite(make_organization(), "Bad Name", zone="nowhere", access="all", gpus={"NO_SUCH": 1})

    pointers = [fault["pointer"] for fault in refused.value.facts["errors"]]
    assert pointers == ["/zone", "/name", "/access", "/gpus/NO_SUCH"]


def test_an_enrolment_that_cannot_be_read_is_a_problem_document(at: Clock) -> None:
    agent = FakeAgent()

    response = agent.client.post("/agent/v1/enrol", b'{"token": 1}', content_type="application/json")

    assert (response.status_code, response["Content-Type"]) == (422, "application/problem+json")
