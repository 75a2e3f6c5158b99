"""The whole life of a machine on real parts: enrolled over a real sshd, verified, let, an Xid 79 in the middle, its
tenant's seconds ended there and his lease moved on, drained, left, paid. Its GPUs alone are simulated, and say so.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agents import bootstrap, ssh
from tests.agents.sshd import SSHD, Server
from tests.agents.test_bootstrap import make_plan
from tests.running_stack import ROOT, RunningStack, running_stack, until

pytestmark = [
    pytest.mark.sshd, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600),
    pytest.mark.skipif(not Path(SSHD).exists() or os.geteuid() != 0, reason="needs sshd and root"),
]  # fmt: skip

# A busy machine is not a dead host: this is not about silence.
SETTINGS = {"WORKLOAD_STOP_GRACE_S": "3", "HOST_SUSPECT_AFTER_S": "90", "HOST_SILENCE_LIMIT_S": "120"}
COMMAND = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
PAY_OUT = """
from django.db.models import F
from apikit import clock
from billing import close, payouts
from billing.models import Account
at = clock.now()
close.close_due(at=at)
earned = Account.objects.get(kind="host_earnings", owner=__import__("uuid").UUID("{owner}"), currency="XTS")
print(payouts.payable_micros(owner=earned.owner, currency="XTS", at=at))
print(payouts.request(owner=earned.owner, currency="XTS", period="test", provider="offline", at=at).public_id)
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """A control plane with one other host, to which a lease can move."""
    hosts = [{"name": "other", "gpus": ["A100_80G x2"], "engine": "process"}]
    with running_stack(hosts=hosts, settings=SETTINGS, keep_logs_in=tmp_path_factory.mktemp("stack")) as running:
        until(lambda: host_named(running, "other")["state"] == "online", what="The other host")
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    Path("/run/sshd").mkdir(exist_ok=True)
    folder = tmp_path / "sshd"
    folder.mkdir()
    server = Server(folder)
    server.start()
    yield server
    server.stop()


def host_named(stack: RunningStack, name: str) -> dict[str, Any]:
    found = stack.got(f"/hosts?name={name}", of="owner")["items"]
    return found[0] if found else {"state": "missing"}


def step(text: str) -> None:
    print(f"  {text}", file=sys.__stdout__, flush=True)


def test_a_machine_is_enrolled_let_hurt_recovered_from_drained_left_and_paid(
    stack: RunningStack, server: Server, tmp_path: Path
) -> None:
    scenario = tmp_path / "scenario.json"
    scenario.write_text("{}")
    plan, found = enrol_over_ssh(stack, server, tmp_path)
    step(f"enrolled over SSH as {found['identity']}: {', '.join(found)}")
    options = ["--state-dir", plan.state, "--sim-scenario", str(scenario)]
    with open(tmp_path / "agent.log", "wb") as log:
        agent = subprocess.Popen([plan.agent, "run", *options], stdout=log, stderr=log)
    try:
        live(stack, found["identity"], scenario)
    finally:
        agent.terminate()
        agent.wait(20)
    leave(stack, found["identity"])


def enrol_over_ssh(stack: RunningStack, server: Server, folder: Path) -> tuple[bootstrap.Plan, dict[str, str]]:
    zone = host_named(stack, "other")["zone"]
    body = {"name": "life", "zone": zone, "gpus": {"A100_80G": 2}}
    invited = stack.ask("POST", "/enrolments", body, of="owner")
    assert invited.status_code == 201, invited.text
    plan = make_plan(stack.access["agents_url"], invited.json()["token"], folder, name="life")
    key = ssh.fetch_host_key(server.address)
    found = bootstrap.run(
        address=server.address, host_key=key, credentials=server.credentials(), plan=plan, say=lambda *_: None
    )
    return plan, found


def live(stack: RunningStack, host: str, scenario: Path) -> None:
    """Verified, let, hurt in the middle of a lease, and the lease goes on elsewhere."""
    until(lambda: stack.got(f"/hosts/{host}", of="owner")["tier"] == "verified", what="The verification")
    shown = stack.got(f"/hosts/{host}", of="owner")
    assert (shown["simulated"], shown["detected"]["gpus"], shown["declared"]) == (
        True, {"A100_80G": 2}, {"gpus": {"A100_80G": 2}},
    )  # fmt: skip
    step(f"verified at {shown['verified_at']}, level {shown['verification']['level']}, simulated")
    other = host_named(stack, "other")["id"]
    assert stack.ask("POST", f"/hosts/{other}/actions/cordon", {"reason": "test"}, of="owner").status_code == 200
    lease = ask_for_lease(stack)
    active = wait_for(stack, lease, lambda row: row["state"] == "active")
    assert active["members"][0]["host"] == host
    until(lambda: stack.got(lease)["cost"]["billable_seconds"] >= 3, what="Some usable seconds")
    assert stack.ask("POST", f"/hosts/{other}/actions/uncordon", {}, of="owner").status_code == 200
    step("let: active and charged by the second")

    scenario.write_text(json.dumps({"devices": {"0": {"xids": [79]}}}))
    moved = wait_for(stack, lease, lambda row: row["state"] == "active" and row["members"][0]["host"] == other)
    lost = next(one for one in stack.got(f"{lease}/events")["items"] if one["to_state"] == "interrupted")
    assert lost["reason"] == "device_failed"
    health = {row["index"]: row["health"] for row in stack.got(f"/hosts/{host}/devices", of="owner")["items"]}
    assert health == {0: "lost", 1: "healthy"}  # one sick GPU is taken out, not its host
    step(f"Xid 79: {lost['detail']}; last good second {lost['facts']['last_good']}; recovered on the other host")

    until(lambda: stack.got(lease)["cost"]["billable_seconds"] >= 16, what="More than a cent's worth")
    assert stack.ask("DELETE", lease).status_code == 200
    ended = wait_for(stack, lease, lambda row: row["state"] == "ended")
    check_charges(stack.got(f"{lease}/charges"), lost_at=lost["facts"]["last_good"], ended=ended, moved=moved)
    step(f"ended; charged {ended['cost']['charged']['amount']} {ended['cost']['charged']['currency']}")


def ask_for_lease(stack: RunningStack) -> str:
    body = {"request": "A100_80G x2", "image": "gpuyard_demo", "command": COMMAND}
    answer = stack.ask("POST", "/leases", body)
    assert answer.status_code == 201, answer.text
    return f"/leases/{answer.json()['id']}"


def wait_for(stack: RunningStack, lease: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        row = stack.got(lease)
        return row if condition(row) else None

    return until(look, what=f"The next step of {lease}")


def check_charges(charges: dict[str, Any], *, lost_at: str, ended: dict[str, Any], moved: dict[str, Any]) -> None:
    """The seconds between the loss and the new start are nobody's; the others are charged once."""
    used = [line for line in charges["lines"] if line["what"] == "use"]
    assert next(line["to"] for line in used) == lost_at
    assert len(used) == 2
    first, second = used
    assert datetime.fromisoformat(second["from"]) > datetime.fromisoformat(first["to"])
    assert charges["billable_seconds"] == first["seconds"] + second["seconds"]
    assert charges["charged"] == ended["cost"]["charged"]


def leave(stack: RunningStack, host: str) -> None:
    """Drained, left, and paid what it earned; the books are proved."""
    kinds = until(lambda: [row["kind"] for row in score(stack, host)], what="The score's ledger", within_s=90)
    assert kinds == ["device.lost"]
    drained = stack.ask("POST", f"/hosts/{host}/actions/drain", {"deadline_s": 0, "reason": "sold"}, of="owner")
    assert (drained.status_code, drained.json()["scheduling"]) == (200, "draining")
    retired = until(lambda: _retired(stack, host), what="Its leave", within_s=60)
    assert retired["state"] == "retired"
    step("drained, and retired: its key is void")

    both = [host, host_named(stack, "other")["id"]]
    earned = [stack.got(f"/hosts/{one}/earnings?days=2", of="owner")["total"] for one in both]
    assert all(float(one["earned"]["amount"]) > 0 for one in earned)
    owner = stack.rows("SELECT owner_id FROM agents_host WHERE name = 'life'")[0][0]
    payable, payout = in_shell(stack, PAY_OUT.format(owner=owner)).split()[-2:]
    assert sum(round(float(one["earned"]["amount"]) * 1_000_000) for one in earned) == int(payable)
    assert [row["id"] for row in stack.got("/payouts", of="owner")["items"]] == [payout]
    proof = stack.reconcile()
    assert proof.returncode == 0, proof.stdout + proof.stderr
    step(f"paid out {int(payable) / 1_000_000} XTS, what its leases earned by the second; the books are proved")


def score(stack: RunningStack, host: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = stack.got(f"/hosts/{host}/score", of="owner")["entries"]
    return entries


def _retired(stack: RunningStack, host: str) -> dict[str, Any] | None:
    answer = stack.ask("POST", f"/hosts/{host}/actions/retire", {"reason": "sold"}, of="owner")
    found: dict[str, Any] = answer.json()
    return found if answer.status_code == 200 else None


def in_shell(stack: RunningStack, script: str) -> str:
    environment = {**os.environ, "DATABASE_URL": stack.database_url, "DEBUG": "1"}
    environment.pop("GPUYARD_DATABASE_URL", None)
    command = [sys.executable, str(ROOT / "manage.py"), "shell", "--no-imports", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
