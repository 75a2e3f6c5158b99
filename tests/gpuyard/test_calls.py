"""Retries, idempotency keys, pages and errors, over a real socket."""

import asyncio
import inspect
import itertools
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

import gpuyard
from gpuyard.calls import Manner
from gpuyard.errors import BY_SLUG
from gpuyard.methods import Many, One
from tests.gpuyard.conftest import KEY
from tests.gpuyard.scripted_server import Answer, ScriptedServer, lease, problem

SLUGS = [
    "malformed-json",
    "duplicate-key",
    "json-too-deep",
    "malformed-request",
    "invalid-cursor",
    "idempotency-key-missing",
    "idempotency-key-invalid",
    "unauthenticated",
    "agent-clock-skew",
    "insufficient-funds",
    "permission-denied",
    "not-found",
    "method-not-allowed",
    "no-capacity",
    "invalid-transition",
    "gpu-quota-exceeded",
    "quote-allowance-used-up",
    "budget-exceeded",
    "idempotency-in-progress",
    "agent-replay",
    "quote-expired",
    "precondition-failed",
    "precondition-required",
    "payload-too-large",
    "uri-too-long",
    "unsupported-media-type",
    "validation-error",
    "idempotency-key-reused",
    "image-not-runnable",
    "rate-limited",
    "unavailable",
    "internal-error",
]


def test_a_created_lease_comes_back_typed_and_keeps_fields_this_version_does_not_know(
    server: ScriptedServer, client: gpuyard.Client
) -> None:
    server.on("POST", "/leases", Answer(201, lease(fabric={"name": "ib0"})))

    made = client.leases.create(request="A100_80G x4", image="pytorch_latest", term="2h")

    assert made.id == "lease_01k00000000000000000000001"
    assert made.created_at == datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert made.price is not None
    assert str(made.price) == "12.500000 XTS per gpu hour"
    assert made.fabric == {"name": "ib0"}
    (asked,) = server.asked
    assert asked.body == {"request": "A100_80G x4", "image": "pytorch_latest", "term": "2h"}
    assert asked.headers["authorization"] == f"Bearer {KEY}"


def test_create_instance_sends_the_four_fields_as_they_are_and_names_the_lease(
    server: ScriptedServer, client: gpuyard.Client
) -> None:
    server.on("POST", "/leases", Answer(201, lease()))
    spec = {"gpu_model": "A100_80G", "node_count": 4, "image_id": "pytorch_latest", "lease_term": "on_demand"}

    instance = client.create_instance(spec)

    assert instance.instance_id == instance.lease.id == "lease_01k00000000000000000000001"
    assert server.asked[0].body == spec


@pytest.mark.parametrize(
    "refusal",
    [
        problem(503, "unavailable", headers={"Retry-After": "2"}),
        problem(429, "rate-limited", headers={"Retry-After": "2"}),
        Answer(broken=True),
        Answer(502, b"<html>bad gateway</html>", {"Content-Type": "text/html"}),
        problem(409, "idempotency-in-progress"),
    ],
    ids=["unavailable", "rate limited", "broken connection", "a proxy's 502", "first try still running"],
)
def test_a_call_is_tried_again_with_the_same_idempotency_key(
    server: ScriptedServer, client: gpuyard.Client, pauses: list[float], refusal: Answer
) -> None:
    server.on("POST", "/leases", refusal, refusal, Answer(201, lease()))

    client.leases.create(request="A100_80G", image="x")

    keys = [asked.headers["idempotency-key"] for asked in server.requests("POST", "/leases")]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    asked_for_s = 2 if "Retry-After" in refusal.headers else 0
    assert all(asked_for_s <= pause <= asked_for_s + 1 for pause in pauses)


def test_two_calls_have_two_keys_unless_the_caller_says_one(server: ScriptedServer, client: gpuyard.Client) -> None:
    server.on("POST", "/leases", Answer(201, lease()))

    client.leases.create(request="A100_80G", image="x")
    client.leases.create(request="A100_80G", image="x")
    client.with_options(idempotency_key="mine").leases.create(request="A100_80G", image="x")

    first, second, third = (asked.headers["idempotency-key"] for asked in server.asked)
    assert first != second
    assert third == "mine"


def test_the_fourth_refusal_is_raised(server: ScriptedServer, client: gpuyard.Client, pauses: list[float]) -> None:
    server.on("GET", "/wallet", problem(503, "unavailable", headers={"Retry-After": "1"}))

    with pytest.raises(gpuyard.Unavailable) as refused:
        client.wallet.get()

    assert len(server.asked) == 4
    assert len(pauses) == 3
    assert refused.value.retry_after_s == 1


def test_a_server_that_cannot_be_reached_is_one_error_after_four_tries(pauses: list[float]) -> None:
    client = gpuyard.Client(KEY, api_url="http://127.0.0.1:9")

    with pytest.raises(gpuyard.Unreachable, match="at 4 tries"):
        client.wallet.get()

    assert len(pauses) == 3


def test_a_pause_longer_than_a_minute_is_not_waited_for(
    server: ScriptedServer, client: gpuyard.Client, pauses: list[float]
) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    server.on("GET", "/wallet", problem(429, "rate-limited", headers={"Retry-After": later}))

    with pytest.raises(gpuyard.RateLimited) as refused:
        client.wallet.get()

    assert pauses == []
    assert refused.value.retry_after_s == pytest.approx(3600, abs=10)


def test_pauses_are_drawn_from_the_whole_range_below_a_ceiling_that_doubles(
    server: ScriptedServer, client: gpuyard.Client, pauses: list[float]
) -> None:
    server.on("GET", "/wallet", problem(503, "unavailable"))
    patient = client.with_options(tries=61)

    with pytest.raises(gpuyard.Unavailable):
        patient.wallet.get()

    manner = Manner()
    for number, pause in enumerate(pauses):
        assert 0 <= pause <= min(manner.cap_s, manner.base_s * 2**number)
    late = pauses[10:]
    assert min(late) < 2 < 6 < max(late)


@pytest.mark.parametrize("slug", SLUGS)
def test_each_problem_type_has_its_exception(server: ScriptedServer, client: gpuyard.Client, slug: str) -> None:
    name = "".join(word.capitalize() for word in slug.split("-"))
    kind = getattr(gpuyard, name)
    faults = [{"pointer": "/request", "code": "unknown_model", "detail": "No such model.", "position": 0}]
    refusal = problem(409, slug, detail="No.", request_id="req_1", errors=faults, needed="7")
    server.on("POST", "/leases", refusal)

    with pytest.raises(kind) as refused:
        client.with_options(tries=1).leases.create(request="B999", image="x")

    error = refused.value
    assert error.slug == slug
    assert (str(error), error.request_id, error.errors) == ("No.", "req_1", faults)
    assert error.problem["needed"] == "7"
    assert error.sent.body == {"request": "B999", "image": "x"}
    assert KEY not in repr(vars(error))


def test_no_exception_stands_for_a_type_that_the_api_does_not_have() -> None:
    assert sorted(BY_SLUG) == sorted(SLUGS)


def test_a_problem_of_a_new_type_is_an_api_error_with_its_slug(server: ScriptedServer, client: gpuyard.Client) -> None:
    server.on("GET", "/wallet", problem(451, "forbidden-here", headers={"X-Request-Id": "abc"}))

    with pytest.raises(gpuyard.ApiError) as refused:
        client.wallet.get()

    assert type(refused.value) is gpuyard.ApiError
    assert (refused.value.slug, refused.value.status, refused.value.request_id) == ("forbidden-here", 451, "abc")


def test_what_is_not_this_api_says_so(server: ScriptedServer, client: gpuyard.Client) -> None:
    server.on("GET", "/wallet", Answer(200, b"<html>welcome</html>", {"Content-Type": "text/html"}))

    with pytest.raises(gpuyard.UnexpectedAnswer, match="text/html"):
        client.wallet.get()


def _two_pages(server: ScriptedServer) -> None:
    server.on(
        "GET",
        "/leases",
        {"items": [lease(id="a"), lease(id="b")], "next": "c1"},
        Answer(200, {"items": [lease(id="c")]}, {"Link": f'<{server.url}/api/v1/leases?cursor=c%2F2>; rel="next"'}),
        {"items": [lease(id="d")], "next": None},
    )


def test_a_list_walks_every_page_with_its_filters_by_cursor_or_link(
    server: ScriptedServer, client: gpuyard.Client
) -> None:
    _two_pages(server)

    assert [found.id for found in client.leases.list(limit=2, state="active")] == ["a", "b", "c", "d"]

    assert [asked.query for asked in server.asked] == [
        {"limit": "2", "state": "active"},
        {"limit": "2", "state": "active", "cursor": "c1"},
        {"limit": "2", "state": "active", "cursor": "c/2"},
    ]


def test_the_first_items_of_a_list_cost_no_page_beyond_them(server: ScriptedServer, client: gpuyard.Client) -> None:
    _two_pages(server)

    assert [found.id for found in client.leases.list().first(2)] == ["a", "b"]

    assert len(server.asked) == 1


def test_an_id_cannot_reach_another_route(server: ScriptedServer, client: gpuyard.Client) -> None:
    with pytest.raises(gpuyard.NotFound):
        client.leases.get("../wallet?x=1")

    assert server.asked[0].path == "/api/v1/leases/..%2Fwallet%3Fx%3D1"


def test_an_edit_carries_the_version_it_was_made_on(server: ScriptedServer, client: gpuyard.Client) -> None:
    server.on("GET", "/leases/a", Answer(200, lease(id="a", version=7), {"ETag": '"7"'}))
    server.on("PATCH", "/leases/a", lease(id="a", version=8, name="mine"))
    seen = client.leases.get("a")

    changed = client.leases.update("a", if_match=seen.etag or "", name="mine")

    assert server.requests("PATCH", "/leases/a")[0].headers["if-match"] == '"7"'
    assert changed.etag == '"8"'


def test_a_dry_run_writes_nothing_and_reads_go_on_as_usual(server: ScriptedServer, client: gpuyard.Client) -> None:
    server.on("POST", "/leases", {"plan": {"hosts": 1}})
    server.on("GET", "/wallet", {"currency": "XTS"})
    careful = client.with_options(dry_run=True)

    plan = client.leases.plan(request="A100_80G", image="x")
    careful.leases.create(request="A100_80G", image="x")
    careful.wallet.get()

    assert plan.plan == gpuyard.Object({"hosts": 1})
    assert [asked.query for asked in server.asked] == [{"dry_run": "1"}, {"dry_run": "1"}, {}]


def test_the_async_client_creates_retries_lists_and_waits_alike(server: ScriptedServer) -> None:
    _two_pages(server)
    server.on("POST", "/leases", Answer(broken=True), Answer(201, lease()))
    server.on("GET", "/leases/" + lease()["id"], lease(), lease("active", version=2))

    async def play() -> tuple[gpuyard.Lease, list[str]]:
        async with gpuyard.AsyncClient(KEY, api_url=server.url) as client:
            made = await client.leases.create(request="A100_80G", image="x")
            active = await client.leases.wait(made.id, until="active", timeout_s=30)
            return active, [found.id async for found in client.leases.list()]

    active, ids = asyncio.run(play())

    assert active.state == "active"
    assert ids == ["a", "b", "c", "d"]
    assert len({asked.headers["idempotency-key"] for asked in server.requests("POST", "/leases")}) == 1


def test_both_clients_have_the_same_methods_with_the_same_arguments(server: ScriptedServer) -> None:
    blocking = gpuyard.Client(api_url=server.url)
    awaiting = gpuyard.AsyncClient(api_url=server.url)

    resources = [name for name in vars(blocking) if not name.startswith("_")]
    assert resources == [name for name in vars(awaiting) if not name.startswith("_")]
    methods = list(
        itertools.chain.from_iterable(
            ((resource, name) for name, found in vars(type(getattr(blocking, resource))).items() if _is_method(found))
            for resource in resources
        )
    )
    assert len(methods) >= len(gpuyard.OPERATIONS)
    for resource, name in methods:
        one, other = (getattr(getattr(client, resource), name) for client in (blocking, awaiting))
        assert inspect.signature(one) == inspect.signature(other)


def _is_method(found: object) -> bool:
    return isinstance(found, One | Many)


def test_an_object_is_frozen_compares_by_content_and_says_what_it_has() -> None:
    one, same = gpuyard.Lease(lease()), gpuyard.Lease(lease())

    assert one == same
    assert hash(one) == hash(same)
    assert one != gpuyard.Lease(lease(version=2))
    with pytest.raises(AttributeError, match="frozen"):
        one.state = "ended"
    with pytest.raises(AttributeError, match="no 'colour': actions, cost"):
        _ = one.colour
    assert one.exit_code is None
    assert one.to_dict() == lease()
