"""One host that may be let whole over a real sshd, its tenant, and what both do."""

import fcntl
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko

from agents import machine_access, machine_looks, machines, ssh
from agents.machine_records import Handover
from leasing.models import Allocation, Lease
from leasing.states import EndReason, State
from scheduler import converging, recovery
from tests.agents.conftest import Clock
from tests.agents.fake_agent import FakeAgent, make_online_agent
from tests.agents.sshd import Server
from tests.factories import make_lease, make_tenant, place, price

LOCK = "/run/gpuyard-test-accounts.lock"


@contextmanager
def a_machine(folder: Path) -> Iterator[Server]:
    """Run an sshd that lets the platform in; afterwards nothing of any tenant is left.

    One at a time on this machine: accounts are the machine's, and each looks for any that were left.
    """
    with open(LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go of it when this process ends, however it ends
        Path("/run/sshd").mkdir(exist_ok=True)
        server = Server(folder)
        server.let_in(machine_access.management_line())
        server.start()
        try:
            yield server
        finally:
            server.stop()
            for name in (entry.pw_name for entry in pwd.getpwall() if entry.pw_name.startswith("gy-")):
                subprocess.run(["pkill", "-KILL", "-u", name], check=False)
                subprocess.run(["userdel", "--force", "--remove", name], check=False, stderr=subprocess.DEVNULL)


class World:
    """One host that may be let whole, one tenant with a key, and everything's clock."""

    def __init__(self, server: Server, at: Clock) -> None:
        self.server, self.at = server, at
        self.agent: FakeAgent = make_online_agent()
        price()
        machine_access.pin(
            host_id=self.agent.row.pk, address=server.address, user="root",
            host_key=ssh.fetch_host_key(server.address), by="user:owner", at=at(),
        )  # fmt: skip
        self.key = (server.folder / "other.pub").read_text().strip()

    def lease(self, **asked: Any) -> Lease:
        """A bare lease that is being given."""
        terms = {"bare": True, "image": None, "ssh_keys": [self.key], "term": {"kind": "on_demand", "duration_s": 3600}}
        lease = make_lease(make_tenant(), "A100_80G x2", at=self.at(), **(terms | asked))
        place(at=self.at())
        return lease

    def hand_over(self) -> None:
        machines.hand_over(now=self.at)

    def look(self) -> int:
        return machine_looks.look(now=self.at)

    def sync(self) -> None:
        self.agent.clock_s = int(self.at().timestamp())
        answer = self.agent.sync()
        if answer["wishes"]:
            self.agent.sync(events=[self.agent.selftest_event(answer["wishes"][0])])

    def converge(self, lease: Lease) -> Lease:
        converging.converge(at=self.at())
        lease.refresh_from_db()
        return lease

    def active(self, **asked: Any) -> Lease:
        lease = self.lease(**asked)
        self.hand_over()
        self.at.forward(2)
        self.sync()
        assert self.converge(lease).state == State.ACTIVE, Handover.objects.values("state", "last_error")
        return lease

    def end(self, lease: Lease) -> Lease:
        recovery.end_now(lease=lease, reason=EndReason.TENANT, at=self.at())
        return self.converge(lease)

    def enter(self, lease: Lease) -> ssh.Session:
        who = ssh.Credentials(
            machines.account_name(lease.public_id), key=paramiko.PKey.from_path(self.server.folder / "other")
        )
        return ssh.Session(self.server.address, host_key=ssh.fetch_host_key(self.server.address), credentials=who)

    @property
    def held(self) -> int:
        return Allocation.objects.filter(released_at=None).count()
