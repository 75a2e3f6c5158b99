"""A release from the operator's hands to a real agent: asked for, fetched, tried, kept, and a workload that runs on."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import enrolment, releases, workloads
from agents.models import AgentUpgrade, Host, HostEvent, Workload
from apikit import clock
from tests.agents.test_real_agent import ROOT, until
from tests.agents.test_sync import REFERENCE
from tests.factories import make_gpu_model, make_organization, make_zone
from tests.fakes.releases import Signer, wheel

pytestmark = pytest.mark.django_db(transaction=True)
SIGNER = Signer()


class Service:
    """Runs the agent and starts it again when it has ended, as systemd does."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.process = subprocess.Popen(command, cwd=ROOT)

    def look(self) -> None:
        if self.process.poll() is not None:
            self.process = subprocess.Popen(self.command, cwd=ROOT)


@pytest.fixture
def service(live_server: Any, tmp_path: Path, settings: Any) -> Iterator[Service]:
    settings.AGENT_RELEASE_KEY = SIGNER.root_key
    make_gpu_model("A100_80G")
    _, token = enrolment.invite(
        organization=make_organization(), zone=make_zone().slug, name="node-1", access="public", created_by="test",
        at=clock.now(),
    )  # fmt: skip
    command = [sys.executable, "-m", "agents.node.main", "run", "--state-dir", str(tmp_path / "state")]
    command += ["--server", live_server.url, "--token", token, "--driver", "sim", "--sim", "A100_80G x1"]
    service = Service([*command, "--engine", "process"])
    yield service
    service.process.terminate()
    service.process.wait(15)


def test_a_host_takes_the_release_that_it_is_asked_to_take(service: Service) -> None:
    until(lambda: Host.objects.filter(state="online", tier="verified").exists(), "a verified host")
    host = Host.objects.get()
    workloads.want(
        reference=REFERENCE, member=0, host_id=host.pk, epoch=1, valid_for_s=60, stop_grace_s=2, not_after=None,
        spec={"image": "x", "devices": [host.devices.get().uuid], "command": ["sleep", "600"]}, at=clock.now(),
    )  # fmt: skip
    until(lambda: Workload.objects.filter(ready_at__isnull=False).exists(), "a ready workload")
    made = wheel("0.2.0")
    releases.add(document=SIGNER.sign(made, version="0.2.0"), wheel=made, by="test", at=clock.now())
    releases.roll_out(version="0.2.0", percent=100, reason="", by="test", at=clock.now())
    assert releases.tick(at=clock.now()) == 1

    def done() -> bool:
        service.look()
        return AgentUpgrade.objects.exclude(outcome="").exists()

    until(done, "what came of it")

    assert AgentUpgrade.objects.get().outcome == "done"
    host.refresh_from_db()
    assert host.agent_version == "0.2.0"
    assert Workload.objects.get().step == "ready"
    assert not HostEvent.objects.filter(kind="agent.exited").exists()
    workloads.unwant(reference=REFERENCE, at=clock.now(), reason="end")
    until(lambda: workloads.all_gone(REFERENCE, 1), "the acknowledgement of its end")
