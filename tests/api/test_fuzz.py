"""schemathesis over the real application: what the description promises is what the doors do, and never a 5xx.

`make fuzz-api ARGS="--fuzz-cases 300"` tries that many requests per operation; the normal run a few.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from hypothesis import HealthCheck, Phase, Verbosity, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from apikit import clock, outbound
from console import api_description
from console.api_operations import OPERATIONS, Operation
from tenants.models import Organization, Role
from tests.api.conftest import FUZZED
from tests.api.test_access_matrix import MAKERS, _delivery
from tests.factories import (
    after,
    make_gpu_model,
    make_host,
    make_image,
    make_lease,
    make_tenant,
    make_zone,
    price,
)
from tests.tenants.conftest import MemberCaller

pytestmark = pytest.mark.django_db
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
FEW = 5


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[None]:
    """The clock stands still, nobody is limited, and no name of the internet is looked up."""

    def nowhere(*_: object, **__: object) -> Any:
        raise OSError("names are not looked up in tests")

    settings.RATE_LIMITS = {"requests": (10**9, 60), "lease_create": (10**9, 60)}
    monkeypatch.setattr(outbound, "_resolve", nowhere)
    with clock.frozen(after(40 * 86_400)):
        yield


@pytest.fixture
def tenant() -> Organization:
    make_zone()
    make_gpu_model()
    make_image()
    price()
    make_host(gpus=8, state_since=clock.now(), last_heard_at=clock.now())
    tenant = make_tenant()
    make_lease(tenant, at=clock.now())
    return tenant


@pytest.fixture
def described() -> Iterator[Any]:
    """The description, with the application behind it; requests leave the test's connection open."""
    ends = (request_started, request_finished)
    for signal in ends:
        signal.disconnect(close_old_connections)
    # Without its security: every request has the key, so none that is made wrong lacks it.
    open_to_all = {
        name: value for name, value in copy.deepcopy(api_description.document()).items() if name != "security"
    }
    del open_to_all["components"]["securitySchemes"]
    loaded = schemathesis.openapi.from_dict(open_to_all)
    loaded.app = get_wsgi_application()
    # What is wrong and too large too is refused for its size, before anybody reads it.
    refusals = loaded.config.checks.negative_data_rejection
    refusals.expected_statuses = [*refusals.expected_statuses, "413", "414"]
    yield loaded
    for signal in ends:
        signal.connect(close_old_connections)


def ids_of(operation: Operation, tenant: Organization) -> dict[str, str]:
    """Return ids of objects that are there, for the names in the path."""
    maker = MAKERS.get(operation.path.removeprefix("/").partition("/{id}")[0])
    found = {"id": maker(tenant)} if maker and "{id}" in operation.path else {}
    if "{delivery_id}" in operation.path:
        found["delivery_id"] = _delivery(tenant)
    return found | ({"slug": "A100_80G"} if "{slug}" in operation.path else {})


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.name for operation in OPERATIONS])
def test_an_operation_does_what_its_description_says(
    operation: Operation, tenant: Organization, described: Any, pytestconfig: pytest.Config
) -> None:
    cases = pytestconfig.getoption("--fuzz-cases") or FEW
    ids = ids_of(operation, tenant)
    secret = MemberCaller(tenant, Role.OWNER).secret
    promised = described.find_operation_by_id(operation.name)

    def attempt(case: Any, with_real_ids: bool) -> None:
        if with_real_ids:
            case.path_parameters.update(ids)
        FUZZED[operation.name] += 1
        with transaction.atomic():  # each request finds the same world
            answer = case.call(headers={"Authorization": f"Bearer {secret}"})
            transaction.set_rollback(True)
        case.validate_response(answer, checks=CHECKS)

    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        if mode is GenerationMode.NEGATIVE and not can_be_wrong(operation):
            continue
        run(attempt, promised.as_strategy(generation_mode=mode), cases=cases)


def can_be_wrong(operation: Operation) -> bool:
    """Say whether there is anything to send that the description forbids."""
    return operation.method != "get" or bool(api_description.view_of(operation).query.get("get"))


def run(attempt: Callable[[Any, bool], None], cases_of: Any, *, cases: int) -> None:
    bounded = hypothesis_settings(
        max_examples=cases, deadline=None, database=None, derandomize=cases == FEW, verbosity=Verbosity.quiet,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    bounded(given(case=cases_of, with_real_ids=st.booleans())(attempt))()
