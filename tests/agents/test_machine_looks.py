"""A whole machine that does not let its tenant in is not charged: a real sshd, asked with the tenant's public key."""

import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from agents import machine_access, machine_looks, machines, ssh, ssh_asking
from agents.machine_records import Handover, MachineAccess
from agents.models import Alarm, HostEvent, Workload
from leasing.models import Lease
from leasing.states import State
from tests.agents.conftest import Clock
from tests.agents.sshd import SSHD, Server
from tests.agents.whole_machines import World, a_machine

pytestmark = [
    pytest.mark.sshd,
    pytest.mark.root,
    pytest.mark.django_db,
    pytest.mark.skipif(not Path(SSHD).exists() or os.geteuid() != 0, reason="needs sshd and root"),
]
PER_S = 2 * 1000  # micros: two GPUs


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with a_machine(tmp_path) as server:
        yield server


@pytest.fixture
def world(server: Server, at: Clock) -> World:
    return World(server, at)


def pass_time(world: World, lease: Lease, *, times: int, every_s: int = 20) -> Lease:
    """The agent goes on saying that all is well; the control plane looks."""
    for _ in range(times):
        world.at.forward(every_s)
        world.sync()
        world.look()
        world.converge(lease)
    return lease


def test_a_machine_is_asked_without_the_tenants_private_key(server: Server) -> None:
    host_key = ssh.fetch_host_key(server.address)
    his, no_ones = ((server.folder / f"{name}.pub").read_text().strip() for name in ("user", "other"))

    ssh_asking.would_let_in(server.address, host_key=host_key, user="root", keys=[no_ones, his])
    with pytest.raises(ssh.NotLetIn):
        ssh_asking.would_let_in(server.address, host_key=host_key, user="root", keys=[no_ones])
    with pytest.raises(ssh.NotLetIn):
        ssh_asking.would_let_in(server.address, host_key=host_key, user="gy-nobody", keys=[his])
    server.stop()
    server.start(host_key="user")
    with pytest.raises(ssh.HostKeyChanged):
        ssh_asking.would_let_in(server.address, host_key=host_key, user="root", keys=[his])
    server.stop()
    with pytest.raises(ssh.Unreachable):
        ssh_asking.would_let_in(server.address, host_key=host_key, user="root", keys=[his])
    server.start()


def test_keys_of_rsa_are_asked_for_by_the_signatures_that_sshd_takes(server: Server) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", server.folder / "rsa"], check=True)
    line = (server.folder / "rsa.pub").read_text().strip()
    server.let_in(line)

    ssh_asking.would_let_in(server.address, host_key=ssh.fetch_host_key(server.address), user="root", keys=[line])


def test_an_sshd_that_is_dead_ends_the_charge_at_the_last_second_in_which_it_let_the_tenant_in(world: World) -> None:
    lease = world.active()
    began = world.at()
    pass_time(world, lease, times=2)
    assert lease.state == State.ACTIVE
    world.server.stop()

    pass_time(world, lease, times=machine_looks.SHUT_AFTER - 1)
    assert lease.state == State.ACTIVE  # a restart of its sshd is no end
    pass_time(world, lease, times=1)

    assert lease.state != State.ACTIVE
    world.converge(lease)
    assert Workload.objects.get(epoch=1).unusable_since == began + timedelta(seconds=40)
    assert world.end(lease).charged_micros == 40 * PER_S
    assert HostEvent.objects.filter(kind="host.machine_shut").count() == 1
    assert "machine does not let the tenant in" in Workload.objects.get(epoch=1).detail
    world.server.start()


def test_a_machine_that_opens_again_in_time_goes_on_and_the_seconds_between_are_free(world: World) -> None:
    lease = world.active(on_interrupt="wait_for_host")
    pass_time(world, lease, times=1)
    world.server.stop()
    pass_time(world, lease, times=machine_looks.SHUT_AFTER + 2)
    assert lease.state == State.INTERRUPTED
    world.server.start()

    pass_time(world, lease, times=1)
    again = world.at()
    pass_time(world, lease, times=1)  # the sync after the look says that it is usable
    assert lease.state == State.ACTIVE
    pass_time(world, lease, times=2)

    # 20 s before; after the look, from the first sync on that found it open.
    usable_from = again + timedelta(seconds=20)
    assert world.end(lease).charged_micros == (20 + int((world.at() - usable_from).total_seconds())) * PER_S
    assert HostEvent.objects.filter(kind="host.machine_open").count() == 1


def test_keys_that_somebody_took_away_are_put_back_and_the_lease_goes_on(world: World) -> None:
    lease = world.active()
    file = Path(f"/home/{machines.account_name(lease.public_id)}/.ssh/authorized_keys")
    file.unlink()

    pass_time(world, lease, times=1)
    assert Handover.objects.get().refusals == 1
    world.hand_over()
    assert file.exists()
    pass_time(world, lease, times=4)

    assert lease.state == State.ACTIVE
    assert Handover.objects.get().refusals == 0
    with world.enter(lease) as tenant:
        assert tenant.run("true").ok


def test_an_sshd_that_lets_everybody_in_but_the_tenant_ends_the_charge_too(world: World) -> None:
    lease = world.active()
    pass_time(world, lease, times=1)
    world.server.stop()
    world.server.options = {"DenyUsers": machines.account_name(lease.public_id)}
    world.server.start()

    for _ in range(machine_looks.SHUT_AFTER):
        pass_time(world, lease, times=1)
        world.hand_over()  # what it can put in order is in order: that does not help

    world.converge(lease)
    assert world.end(lease).charged_micros == 20 * PER_S


def test_a_machine_is_not_given_before_it_would_let_its_tenant_in(world: World) -> None:
    lease = world.lease()
    world.server.stop()
    world.server.options = {"DenyUsers": machines.account_name(lease.public_id)}
    world.server.start()

    world.hand_over()
    world.at.forward(2)
    world.sync()

    assert world.converge(lease).state == State.PROVISIONING
    assert Workload.objects.get().ready_at is None
    assert "none of his keys would be accepted" in Handover.objects.get().last_error


def test_if_not_one_of_several_machines_can_be_reached_it_is_rather_us(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = world.active()
    monkeypatch.setattr(machine_looks, "SEVERAL", 1)
    world.server.stop()
    pass_time(world, lease, times=6)
    assert lease.state == State.ACTIVE
    assert Alarm.objects.filter(kind=machine_looks.ALARM, closed_at=None).exists()
    world.server.start()

    pass_time(world, lease, times=1)

    assert not Alarm.objects.filter(kind=machine_looks.ALARM, closed_at=None).exists()


def test_another_host_key_under_a_running_lease_ends_the_charge_at_the_last_yes(world: World) -> None:
    lease = world.active()
    pass_time(world, lease, times=1)
    world.server.stop()
    world.server.start(host_key="user")

    pass_time(world, lease, times=1)

    assert world.agent.row.state == "quarantined"
    world.converge(lease)
    assert world.end(lease).charged_micros == 20 * PER_S


def test_two_loops_at_once_share_the_looks(world: World) -> None:
    world.active()
    world.at.forward(20)
    rows = machine_looks._claim(at=world.at())

    assert len(rows) == 1
    assert machine_looks._claim(at=world.at()) == []


def test_a_machine_is_not_asked_in_the_last_seconds_of_its_term(world: World) -> None:
    lease = world.active()
    Workload.objects.update(not_after=world.at() + timedelta(seconds=30))
    world.at.forward(20)

    assert machine_looks._claim(at=world.at()) == []
    assert lease.state == State.ACTIVE


def test_who_pinned_an_access_anew_is_believed_at_the_next_look(world: World) -> None:
    lease = world.active()
    MachineAccess.objects.update(port=1)
    pass_time(world, lease, times=1)
    assert Handover.objects.get().refusals == 1
    machine_access.pin(
        host_id=world.agent.row.pk, address=world.server.address, user="root",
        host_key=ssh.fetch_host_key(world.server.address), by="user:owner", at=world.at(),
    )  # fmt: skip

    pass_time(world, lease, times=1)

    assert Handover.objects.get().refusals == 0
