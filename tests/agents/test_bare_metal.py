"""Whole machines over SSH: a real sshd, real accounts, real keys and sessions; the host's agent signs real syncs."""

import os
import pwd
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agents import host_life, machine_access, machines, machines_back, ssh
from agents.machine_records import Handover, MachineAccess
from agents.models import Alarm, Host, HostEvent, Workload
from audit.models import Entry
from leasing import term_changes
from leasing.states import EndReason, State
from tests.agents.conftest import Clock
from tests.agents.sshd import SSHD, Server, until
from tests.agents.whole_machines import World, a_machine

pytestmark = [
    pytest.mark.sshd,
    pytest.mark.root,
    pytest.mark.django_db,
    pytest.mark.skipif(not Path(SSHD).exists() or os.geteuid() != 0, reason="needs sshd and root"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with a_machine(tmp_path) as server:
        yield server


@pytest.fixture
def world(server: Server, at: Clock) -> World:
    return World(server, at)


def accounts() -> list[str]:
    return [entry.pw_name for entry in pwd.getpwall() if entry.pw_name.startswith("gy-")]


def test_a_tenant_has_the_machine_for_his_term_and_then_nothing_of_him_is_left(world: World) -> None:
    lease = world.active()
    user = machines.account_name(lease.public_id)
    with world.enter(lease) as tenant:
        assert tenant.run("id -un").out.strip() == user
        assert tenant.run("id -u").out.strip() != "0"
        assert not tenant.run("cat /etc/shadow").ok
        assert tenant.run("echo data > ~/work; touch /tmp/gy-left /dev/shm/gy-left; crontab -l; echo ok").ok
        tenant.run("nohup sleep 600 >/dev/null 2>&1 &")
    uid = pwd.getpwnam(user).pw_uid
    assert subprocess.run(["pgrep", "-u", str(uid), "sleep"], check=False, stdout=subprocess.DEVNULL).returncode == 0
    world.at.forward(100)
    world.sync()

    ended = world.end(lease)
    world.hand_over()

    assert (ended.state, ended.charged_micros) == (State.ENDED, 100 * 2 * 1000)  # money is settled at once
    assert accounts() == []
    assert not Path(f"/home/{user}").exists()
    assert [path for path in ("/tmp/gy-left", "/dev/shm/gy-left") if Path(path).exists()] == []
    until(lambda: subprocess.run(["pgrep", "-u", str(uid)], check=False, stdout=subprocess.DEVNULL).returncode == 1)
    assert world.held == 2  # clean is not yet proven: it must pass a self-test first
    for _ in range(3):
        world.at.forward(5)
        world.hand_over()
        world.sync()
    world.hand_over()
    world.converge(lease)
    assert Workload.objects.get().gone_at is not None
    assert world.held == 0
    kinds = list(Entry.objects.filter(action__startswith="host.machine").values_list("action", flat=True))
    assert kinds == ["host.machine_given", "host.machine_cleared", "host.machine_back"]


def test_it_is_usable_from_the_first_sync_after_it_was_given_with_all_gpus_well(world: World) -> None:
    lease = world.lease()
    world.sync()
    assert world.converge(lease).state == State.PROVISIONING  # heard, but nobody was let in yet
    world.hand_over()
    world.at.forward(3)
    world.agent.device_state = {world.agent.uuids[0]: {"state": "unresponsive"}}
    world.sync()
    assert world.converge(lease).state == State.PROVISIONING

    world.at.forward(4)
    world.agent.device_state = {}
    world.sync()

    assert world.converge(lease).state == State.ACTIVE
    assert lease.first_active_at == world.at()
    assert Workload.objects.get().spec["image"] == ""
    assert world.agent.sync()["valid_for_s"] == {}  # the agent is told of no container


def test_a_gpu_that_falls_off_the_bus_ends_the_charge_at_that_second(world: World) -> None:
    lease = world.active()
    began = world.at()
    for _ in range(4):  # what a host says first after a silence would prove nothing of it
        world.at.forward(10)
        world.sync()
    world.at.forward(10)
    world.agent.device_state = {world.agent.uuids[1]: {"xids": [79]}}

    world.sync()

    assert world.converge(lease).state in {State.ENDING, State.ENDED}
    assert lease.ending_reason == EndReason.HOST_LOST
    world.converge(lease)
    assert lease.charged_micros == 50 * 2 * 1000
    assert began + timedelta(seconds=50) == world.at()


def test_giving_twice_changes_nothing_and_an_end_that_moves_moves_in_the_key(world: World) -> None:
    lease = world.active()
    file = Path(f"/home/{machines.account_name(lease.public_id)}/.ssh/authorized_keys")
    world.hand_over()  # a term counts from the first usable second: only now its end is known
    first = file.read_text()
    assert first.count("expiry-time=") == 1
    Handover.objects.update(state="giving", check_at=world.at())

    world.hand_over()
    assert file.read_text().count("ssh-ed25519") == 1
    assert len(accounts()) == 1

    term_changes.change_end(lease_id=lease.pk, end_at=world.at() + timedelta(days=2), at=world.at())
    world.hand_over()
    assert file.read_text() > first
    with world.enter(lease) as tenant:
        assert tenant.run("true").ok


def test_after_its_end_sshd_lets_nobody_in_even_if_we_are_away(world: World) -> None:
    lease = world.active()
    world.hand_over()
    file = Path(f"/home/{machines.account_name(lease.public_id)}/.ssh/authorized_keys")
    file.write_text(file.read_text().replace('expiry-time="20', 'expiry-time="19'))

    with pytest.raises(ssh.NotLetIn), world.enter(lease):
        pytest.fail("it was let in")


def test_a_machine_that_cannot_be_reached_for_the_take_back_is_quarantined_and_never_let_again(world: World) -> None:
    lease = world.active()
    world.end(lease)
    world.server.stop()
    for _ in range(12):
        world.hand_over()
        world.at.forward(65)
        world.agent.clock_s = int(world.at().timestamp())
        world.agent.sync()

    host = world.agent.row
    assert (host.state, Handover.objects.get().state) == ("quarantined", "stuck")
    assert Alarm.objects.filter(kind="machine_not_back", closed_at=None).exists()
    assert world.held == 2
    host_life.release(host_id=host.pk, reason="seems well", by="user:1", at=world.at())
    world.sync()
    world.converge(lease)
    assert world.held == 2  # a release of the host is no take-back

    machines_back.settle(handover_id=Handover.objects.get().pk, reason="wiped by hand", by="user:1", at=world.at())
    world.converge(lease)

    assert world.held == 0
    entry = Entry.objects.filter(action="host.machine_back").get()
    assert (entry.actor, entry.why) == ("user:1", "wiped by hand")
    world.server.start()


def test_a_take_back_that_works_after_all_leads_to_the_self_test(world: World) -> None:
    lease = world.active()
    world.end(lease)
    world.server.stop()
    world.hand_over()
    assert Handover.objects.get().state == "taking"
    world.server.start()
    world.at.forward(60)

    world.hand_over()

    assert Handover.objects.get().state == "testing"
    assert accounts() == []


def test_a_machine_that_cannot_be_reached_is_not_given_and_not_offered_until_it_is_mended(world: World) -> None:
    world.server.stop()
    lease = world.lease()
    for _ in range(3):
        world.hand_over()
        world.at.forward(90)
        world.sync()

    assert world.converge(lease).state == State.PENDING
    assert lease.failed_starts == 1
    assert not world.agent.row.bare_metal
    assert "Unable to connect" in MachineAccess.objects.get().trouble
    world.server.start()
    world.at.forward(301)
    world.sync()
    world.hand_over()
    assert world.agent.row.bare_metal


def test_another_host_key_quarantines_before_anything_is_sent_until_an_operator_accepts_it(world: World) -> None:
    world.server.stop()
    world.server.start(host_key="user")
    shown = ssh.fetch_host_key(world.server.address)
    log = world.server.folder / "log"
    lines = len(log.read_text().splitlines())
    lease = world.lease()

    world.hand_over()

    host = world.agent.row
    assert (host.state, host.bare_metal) == ("quarantined", False)
    assert shown.fingerprint in host.state_reason
    assert not any("Accepted" in line for line in log.read_text().splitlines()[lines:])
    world.converge(lease)

    with pytest.raises(machine_access.KeyNotShown):
        machine_access.accept_key(host_id=host.pk, fingerprint="SHA256:x", reason="r", by="user:1", at=world.at())
    machine_access.accept_key(
        host_id=host.pk, fingerprint=shown.fingerprint, reason="reinstalled", by="user:1", at=world.at()
    )
    assert world.agent.row.state == "quarantined"
    entry = Entry.objects.get(action="host.ssh_key_accepted")
    assert (entry.after, entry.why, entry.actor) == (shown.fingerprint, "reinstalled", "user:1")
    host_life.release(host_id=host.pk, reason="well", by="user:1", at=world.at())
    world.at.forward(1)
    world.hand_over()
    assert world.agent.row.bare_metal


def test_a_machine_that_comes_back_changed_is_kept_for_a_person(world: World, tmp_path: Path) -> None:
    lease = world.active()
    planted = Path("/etc/cron.d/gy-test-planted")
    planted.parent.mkdir(exist_ok=True)
    planted.write_text("* * * * * root true\n")
    try:
        world.end(lease)
        world.hand_over()
    finally:
        planted.unlink()

    row = Handover.objects.get()
    assert (row.state, world.agent.row.state) == ("stuck", "quarantined")
    assert row.drift[0] == "units"
    assert Alarm.objects.filter(kind="machine_changed").exists()
    assert world.held == 2


def test_a_real_machine_is_seen_to_have_rebooted_before_it_is_tested(
    world: World, settings: Any, tmp_path: Path
) -> None:
    lease = world.active()
    world.end(lease)
    settings.BARE_METAL_REBOOT = f"touch {tmp_path}/rebooted"
    Host.objects.update(simulated=False)
    Workload.objects.filter(handover__isnull=False).update(spec={"devices": [], "ssh_keys": []})
    world.hand_over()
    until((tmp_path / "rebooted").exists)
    Host.objects.update(simulated=True)
    assert Handover.objects.get().state == "rebooting"
    world.at.forward(5)
    world.sync()
    world.hand_over()
    assert Handover.objects.get().state == "rebooting"

    world.agent.boot_id, world.agent.boot_no, world.agent.seq = "boot-2", 2, 0
    world.at.forward(5)
    world.sync()
    world.hand_over()

    assert Handover.objects.get().state == "testing"


def test_an_account_that_somebody_else_has_now_is_not_touched(world: World) -> None:
    lease = world.active()
    user = machines.account_name(lease.public_id)
    uid = pwd.getpwnam(user).pw_uid
    subprocess.run(["userdel", "--force", "--remove", user], check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["useradd", "--create-home", "--uid", str(uid), "gy-owner-test"], check=True)
    keep = Path("/home/gy-owner-test/keep")
    keep.write_text("mine")
    os.chown(keep, uid, uid)
    world.end(lease)

    world.hand_over()

    assert keep.read_text() == "mine"
    assert "is the account of gy-owner-test" in Handover.objects.get().last_error


def test_a_machine_is_given_only_where_the_owner_offers_it(world: World) -> None:
    machine_access.withdraw(host_id=world.agent.row.pk, reason="not now", by="user:owner", at=world.at())

    lease = world.lease()

    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert lease.why_waiting is not None
    assert lease.why_waiting["counts"][0]["code"] == "bare_metal"
    assert HostEvent.objects.filter(kind="host.access_withdrawn").exists()


def test_what_a_tenant_links_in_his_home_leads_root_nowhere(world: World, tmp_path: Path) -> None:
    lease = world.active()
    world.hand_over()
    mine = tmp_path / "of-root"
    mine.mkdir(mode=0o700)
    (mine / "secret").write_text("root's")
    (mine / ".new").symlink_to(mine / "secret")
    home = Path(f"/home/{machines.account_name(lease.public_id)}")
    with world.enter(lease) as tenant:
        assert tenant.run(f"mv ~/.ssh ~/old; ln -s {mine} ~/.ssh").ok

    term_changes.change_end(lease_id=lease.pk, end_at=world.at() + timedelta(days=2), at=world.at())
    world.hand_over()
    world.end(lease)
    world.hand_over()

    assert (mine.stat().st_uid, (mine / "secret").read_text()) == (0, "root's")
    assert sorted(path.name for path in mine.iterdir()) == [".new", "secret"]
    assert not home.exists()
    assert accounts() == []


def test_the_account_itself_ends_with_the_term(world: World) -> None:
    lease = world.active()
    world.hand_over()
    user = machines.account_name(lease.public_id)
    line = subprocess.run(["getent", "shadow", user], check=True, capture_output=True, text=True).stdout
    last_day = int(line.split(":")[7])
    today = int(time.time()) // 86_400

    assert today < last_day <= today + 3
