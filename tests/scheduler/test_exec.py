"""The doors of `gpuyard exec`: who may, in what runs, and what is shown."""

import pytest

from agents import executions
from agents.models import Execution
from audit.models import Entry
from leasing.models import Lease
from tests.apikit.conftest import Caller
from tests.factories import after, make_active_lease, make_host, make_tenant, price

pytestmark = pytest.mark.django_db
EXEC = {"command": ["nvidia-smi", "-L"], "timeout_s": 10}


@pytest.fixture
def caller() -> Caller:
    make_host(gpus=2)
    price()
    return Caller(make_tenant())


@pytest.fixture
def lease(caller: Caller) -> Lease:
    return make_active_lease(caller.organization)


def post(caller: Caller, lease: Lease, **body: object) -> tuple[int, dict[str, object]]:
    answer = caller.post(f"/api/v1/leases/{lease.public_id}/exec", body)
    return answer.status_code, answer.json()


def test_a_command_is_asked_of_the_host_and_what_came_is_shown(caller: Caller, lease: Lease) -> None:
    status, made = post(caller, lease, **EXEC)
    assert (status, made["state"], made["exit_code"]) == (201, "running", None)

    row = Execution.objects.get()
    executions.answered(row.host, {"id": row.public_id, "exit_code": 2, "output": "GPU 0"}, at=after(1))
    path = f"/api/v1/leases/{lease.public_id}/exec/{made['id']}"
    found = caller.get(path).json()

    assert (found["state"], found["exit_code"], found["output"]) == ("done", 2, "GPU 0")
    assert Entry.objects.filter(action="lease.exec", target=lease.public_id).exists()
    assert "GPU 0" not in str(list(Entry.objects.values_list("after", flat=True)))


def test_a_stranger_finds_neither_lease_nor_command(caller: Caller, lease: Lease) -> None:
    _, made = post(caller, lease, **EXEC)
    stranger = Caller(make_tenant(name="Stranger"))
    other = make_active_lease(stranger.organization)

    assert post(stranger, lease, **EXEC)[0] == 404
    assert stranger.get(f"/api/v1/leases/{other.public_id}/exec/{made['id']}").status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [({"command": []}, 422), ({"command": "ls"}, 422), ({"command": ["x"] * 257}, 422), ({}, 422),
     ({"command": ["x" * 16_000, "y" * 400]}, 422), ({"command": ["ls"], "member": 3}, 409),
     ({"command": ["ls"], "timeout_s": 301}, 422)],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(caller: Caller, lease: Lease, body: dict[str, object], status: int) -> None:
    assert post(caller, lease, **body)[0] == status
