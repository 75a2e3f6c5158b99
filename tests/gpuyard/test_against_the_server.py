"""The SDK and the command against the real doors, over HTTP. Hosts are simulated by the test, which also keeps time."""

import asyncio
import json

import pytest
from click.testing import CliRunner
from pytest_django.live_server_helper import LiveServer

import gpuyard
from agents.models import Host
from apikit import clock
from gpuyard.cli import cli
from gpuyard.cli.following import Progress
from leasing.models import Lease
from scheduler import converging
from tenants import keys, roles
from tests import factories
from tests.factories import NOON, after

pytestmark = pytest.mark.django_db(transaction=True)
SPEC = {"gpu_model": "A100_80G", "node_count": 4, "image_id": "pytorch_latest", "lease_term": "on_demand"}


def _key(*, hosts: int = 0, micros: int = 1_000_000_000) -> str:
    """Return a key of a tenant with money, in a market with so many hosts of one A100."""
    for _ in range(hosts):
        factories.make_host()
    factories.make_zone()
    factories.make_gpu_model()
    factories.price()
    factories.make_image()
    tenant = factories.make_tenant(micros=micros)
    _, text = keys.create(
        organization=tenant, name="test", scopes=roles.SCOPES, expires_at=None, created_by=None, at=NOON
    )
    return text


def _push(seen: gpuyard.Lease) -> None:
    """Do what scheduler and hosts would do next to a lease that is seen like this."""
    lease = Lease.objects.get(request=seen.request)
    if seen.state == "pending":
        factories.place(at=NOON)
    elif seen.state == "provisioning":
        factories.say(lease, "ready", at=NOON)
        converging.converge(at=NOON)
    elif seen.state == "ending":
        factories.say(lease, "gone", at=after(101))
        converging.converge(at=after(101))


def test_four_fields_become_a_gang_of_four_that_is_followed_charged_and_ended(live_server: LiveServer) -> None:
    client = gpuyard.Client(_key(hosts=4), api_url=live_server.url)
    with clock.frozen(NOON):
        instance = client.create_instance(SPEC)
        active = client.leases.wait(instance.instance_id, timeout_s=60, on_change=_push)

        assert active.request == "4*A100_80G"
        assert active.simulated
        assert [member.rank for member in active.members or []] == [0, 1, 2, 3]
        assert [member.rank for member in client.leases.members(active.id)] == [0, 1, 2, 3]
    with clock.frozen(after(100)):
        Host.objects.update(last_heard_at=after(100))
        client.leases.end(active.id)
        ended = client.leases.wait(active.id, until="ended", timeout_s=60, on_change=_push)
        charges = client.leases.charges(active.id)

        assert ended.end_reason == "tenant"
        assert charges.billable_seconds == 100
        assert charges.charged.amount == sum(line.charged.amount for line in charges.lines if line.charged)
        assert str(charges.charged) == "0.400000 XTS"
        events = [event.to_state for event in client.leases.events(active.id, follow=True)]
        assert events == ["pending", "provisioning", "active", "ending", "ended"]
        assert [piece.text for piece in client.leases.logs(active.id, follow=True)] == []
    client.close()


def test_wallet_and_market_are_read(live_server: LiveServer) -> None:
    with clock.frozen(after(1)):
        environment = {"GPUYARD_API_URL": live_server.url, "GPUYARD_API_KEY": _key()}
        wallet, entries, market = (
            json.loads(CliRunner().invoke(cli, [*words, "--json"], env=environment, catch_exceptions=False).stdout)
            for words in (["wallet"], ["wallet", "entries"], ["market", "A100_80G", "--region", "sim"])
        )

    (balance,) = wallet["items"]
    assert balance["available"] == {"amount": "1000.000000", "currency": "XTS"}
    assert [entry["amount"]["amount"] for entry in entries["items"]] == ["1000.000000"]
    assert [price["price"]["amount"] for price in market["items"]] == ["3.600000"]


def test_run_returns_the_exit_code_of_what_ran(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def push(progress: Progress, seen: gpuyard.Lease) -> None:
        _push(seen)
        if seen.state == "active":
            factories.say(Lease.objects.get(), "exited", at=after(50), exit_code=3)
            converging.converge(at=after(51))
            factories.say(Lease.objects.get(), "gone", at=after(52))
            converging.converge(at=after(53))

    monkeypatch.setattr(Progress, "show", push)
    with clock.frozen(NOON):
        environment = {"GPUYARD_API_URL": live_server.url, "GPUYARD_API_KEY": _key(hosts=1)}
        words = ("run", "A100_80G", "--image", "pytorch_latest", "--", "false")
        done = CliRunner().invoke(cli, words, env=environment, catch_exceptions=False)

    assert done.exit_code == 3
    assert Lease.objects.get().command == ["false"]


def test_one_key_makes_one_lease_and_a_list_has_every_lease_once(live_server: LiveServer) -> None:
    with clock.frozen(NOON), gpuyard.Client(_key(), api_url=live_server.url) as client:
        same = client.with_options(idempotency_key="once")
        first, again = (same.leases.create(request="A100_80G", image="pytorch_latest") for _ in range(2))
        made = [client.leases.create(request="A100_80G", image="pytorch_latest").id for _ in range(4)]

        assert first.id == again.id
        assert [lease.id for lease in client.leases.list(limit=2)] == [*reversed(made), first.id]
        with pytest.raises(gpuyard.IdempotencyKeyReused):
            same.leases.create(request="A100_80G x2", image="pytorch_latest")


def test_refusals_arrive_as_their_exceptions_and_write_nothing(live_server: LiveServer) -> None:
    with clock.frozen(NOON), gpuyard.Client(_key(micros=0), api_url=live_server.url) as client:
        with pytest.raises(gpuyard.InsufficientFunds) as poor:
            client.leases.create(request="A100_80G", image="pytorch_latest")
        with pytest.raises(gpuyard.ValidationError) as wrong:
            client.leases.create(request="A100_81G x4", image="pytorch_latest")
        with pytest.raises(gpuyard.NotFound):
            client.leases.get("lease_00000000000000000000000000")
        with pytest.raises(gpuyard.Unauthenticated):
            gpuyard.Client("gy_live_" + "x" * 47, api_url=live_server.url).leases.list().first(1)

        assert "missing" in poor.value.problem
        (fault,) = wrong.value.errors
        assert (fault["pointer"], fault["code"], fault["position"]) == ("/request", "unknown_model", 0)
        assert "A100_80G x4" in fault["nearest"]
        assert wrong.value.request_id
        assert [*client.leases.list()] == []


def test_a_poll_of_a_lease_that_does_not_change_ends_in_time(live_server: LiveServer) -> None:
    with clock.frozen(NOON), gpuyard.Client(_key(), api_url=live_server.url) as client:
        lease = client.leases.create(request="A100_80G", image="pytorch_latest")

        with pytest.raises(gpuyard.WaitTimedOut):
            client.leases.wait(lease.id, timeout_s=1.2)
        renamed = client.leases.update(lease.id, if_match=lease.etag or "", name="mine")
        with pytest.raises(gpuyard.PreconditionFailed):
            client.leases.update(lease.id, if_match=lease.etag or "", name="lost")

        assert renamed.name == "mine"
        assert client.leases.get(lease.id).name == "mine"


def test_a_plan_writes_nothing(live_server: LiveServer) -> None:
    with clock.frozen(NOON), gpuyard.Client(_key(hosts=1), api_url=live_server.url) as client:
        plan = client.leases.plan(request="A100_80G", image="pytorch_latest", term="2h")

        assert plan.plan is not None
        assert plan.plan["estimated_total"] == {"amount": "7.200000", "currency": "XTS"}
        assert [*client.leases.list()] == []


def test_the_async_client_works_against_the_same_doors(live_server: LiveServer) -> None:
    async def play(key: str) -> tuple[str, list[str]]:
        async with gpuyard.AsyncClient(key, api_url=live_server.url) as client:
            instance = await client.create_instance({**SPEC, "node_count": 1})
            return instance.instance_id, [lease.id async for lease in client.leases.list(limit=1)]

    with clock.frozen(NOON):
        made, listed = asyncio.run(play(_key()))

    assert listed == [made]


def test_the_command_offers_leases_lists_and_stops(live_server: LiveServer) -> None:
    with clock.frozen(NOON):
        environment = {"GPUYARD_API_URL": live_server.url, "GPUYARD_API_KEY": _key(hosts=2)}

        def gpuyard_command(*words: str) -> tuple[int, str]:
            done = CliRunner().invoke(cli, words, env=environment, catch_exceptions=False)
            return done.exit_code, done.stdout

        _, offers = gpuyard_command("offers", "--json")
        _, quote = gpuyard_command("quote", "A100_80G", "--ttl", "5m", "-o", "name")
        code, made = gpuyard_command("lease", "create", "--quote", quote.strip(), "--image", "pytorch_latest", "--json")
        stopped, _ = gpuyard_command("stop", json.loads(made)["id"])
        refused, _ = gpuyard_command("lease", "create", "A100_80G x8", "--image", "pytorch_latest", "--no-queue")

    (offer,) = json.loads(offers)["items"]
    assert (offer["request"], offer["available"], offer["price"]["amount"]) == ("A100_80G @sim", 2, "3.600000")
    assert (code, stopped, refused) == (0, 0, 6)
