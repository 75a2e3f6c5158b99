"""A real agent process and the real doors: from a token to a verified host, a running container, and its end."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import enrolment, executions, logs, workloads
from agents.models import Execution, Host, HostEvent, SelfTest, Workload
from apikit import clock
from billing import reconcile, wallets
from leasing import volume_keeping, volumes
from leasing.states import EndReason
from leasing.volume_models import Volume
from scheduler import converging, placing, recovery
from tests.agents.test_sync import REFERENCE
from tests.factories import (
    make_gpu_model,
    make_lease,
    make_organization,
    make_tenant,
    make_zone,
    price,
    storage_price,
)

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.django_db(transaction=True)


def until(condition: Callable[[], object], what: str, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {within_s} s"
        time.sleep(0.05)


@pytest.fixture
def agent(live_server: Any, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    make_gpu_model("A100_80G", memory_bandwidth_gb_s=2039, fp16_tensor_dense_tflops=312.0, confidence="high")
    _, token = enrolment.invite(
        organization=make_organization(), zone=make_zone().slug, name="node-1", access="public", created_by="test",
        at=clock.now(),
    )  # fmt: skip
    command = [sys.executable, "-m", "agents.node.main", "run", "--state-dir", str(tmp_path / "state")]
    command += ["--server", live_server.url, "--token", token, "--driver", "sim", "--sim", "A100_80G x2"]
    command += ["--engine", "process"]
    with open(tmp_path / "out", "wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    yield process
    process.terminate()
    process.wait(15)


def test_a_token_becomes_a_host_verified_at_l1_that_runs_what_is_wanted(agent: subprocess.Popen[bytes]) -> None:
    until(lambda: Host.objects.filter(state="online", tier="verified").exists(), "a verified host")
    host = Host.objects.get()
    uuids = [device.uuid for device in host.devices.all()]
    measured = SelfTest.objects.get(host=host, passed=True)
    assert (host.level, measured.simulated) == ("L1", True)
    assert set(measured.figures) == set(uuids)
    assert all(row["memory_mib_per_s"] > 0 for row in measured.figures.values())

    workloads.want(
        reference=REFERENCE, member=0, host_id=host.pk, epoch=1, valid_for_s=60, stop_grace_s=2, not_after=None,
        spec={"image": "x", "devices": uuids, "command": ["sh", "-c", "echo hello; sleep 600"]}, at=clock.now(),
    )  # fmt: skip
    until(lambda: Workload.objects.filter(ready_at__isnull=False).exists(), "a ready workload")
    until(lambda: "hello" in logs.read(reference=REFERENCE, member=0, offset=0).text, "its output")
    workload = Workload.objects.get()
    asked = executions.ask(workload=workload, argv=["sh", "-c", "echo inside; exit 3"], timeout_s=10, by="t",
                           at=clock.now())  # fmt: skip
    until(lambda: Execution.objects.filter(answered_at__isnull=False).exists(), "what a command said")
    asked.refresh_from_db()
    assert (asked.exit_code, asked.output, asked.failure) == (3, "inside\n", "")
    assert "inside" not in str(list(HostEvent.objects.values_list("facts", "detail"))), "it is the tenant's alone"
    workloads.unwant(reference=REFERENCE, at=clock.now(), reason="end")
    until(lambda: workloads.all_gone(REFERENCE, 1), "the acknowledgement of its end")

    assert host.simulated
    assert {device.health for device in host.devices.all()} == {"healthy"}


def test_a_volume_is_made_by_the_host_kept_when_its_lease_is_over_and_removed_when_it_is_deleted(
    agent: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    until(lambda: Host.objects.filter(state="online", tier="verified").exists(), "a verified host")
    storage_price(starts_at=clock.now())
    price(starts_at=clock.now())
    tenant = make_tenant(micros=0)
    wallets.top_up(
        owner=tenant.pk, currency="XTS", amount_micros=10**9, key="t", by="t", reason="t", at=clock.now()
    )  # fmt: skip
    lease = make_lease(
        tenant, at=clock.now(), volumes=[{"name": "data", "path": "/data", "size_gib": 1}],
        command=["sh", "-c", "echo at $GPUYARD_VOLUME_DATA; exec sleep 600"],
    )  # fmt: skip

    def comes_to(state: str) -> None:
        def look() -> bool:
            placing.place_pending(at=clock.now(), grace_s=2)
            converging.converge(at=clock.now())
            lease.refresh_from_db()
            return lease.state == state

        until(look, state)

    comes_to("active")
    volume = Volume.objects.get()
    data = tmp_path / "state" / "scratch" / volume.place / "data"
    assert volume.state == "ready"
    until(lambda: f"at {data}\n" in logs.read(reference=lease.public_id, member=0, offset=0).text, "its output")
    recovery.end_now(lease=lease, reason=EndReason.TENANT, at=clock.now())
    comes_to("ended")
    assert data.is_dir()

    volumes.delete(volume_id=volume.pk, at=clock.now(), actor="test")

    def is_gone() -> bool:
        volume_keeping.keep(at=clock.now())
        volume.refresh_from_db()
        return volume.state == "deleted"

    until(is_gone, "the host's word that it is gone")
    assert not data.parent.exists()
    assert reconcile.findings() == []
