"""Hosts of their own on one machine: network namespaces on a bridge, whose cable can be pulled and put back.

The bridge stands in a namespace too: on a machine with an engine of its own, that engine's rules would decide what may
pass between two hosts. Names and addresses are the machine's, so a second run beside this one (another worker, another
checkout) waits for it.
"""

import fcntl
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NETWORK = ipaddress.ip_network("10.213.7.0/24")
CONTROL = str(NETWORK[1])  # where hosts find the control plane, which listens on the machine's loopback
LAN, BRIDGE, TABLE = "gytest-lan", "gytest0", "gpuyard_test"  # BRIDGE: this machine's own cable to it, and the bridge
LOCK = "/run/gpuyard-test-namespaces.lock"


def why_no_namespaces() -> str | None:
    """Return why no namespaces can be made here, or None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("nft", "nftables"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install {package})"
    return None


def _run(*command: str, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Namespace:
    """One host's network: `address` on the bridge. Its cable is the bridge's side of a veth pair."""

    def __init__(self, number: int) -> None:
        self.name, self.cable = f"gytest-{number}", f"gytestv{number}"
        self.address = str(NETWORK[10 + number])

    def make(self) -> None:
        _run("ip", "netns", "add", self.name)
        _run("ip", "-n", LAN, "link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _run("ip", "-n", LAN, "link", "set", self.cable, "master", BRIDGE, "up")
        for line in (
            ["link", "set", "lo", "up"],
            ["address", "add", f"{self.address}/{NETWORK.prefixlen}", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["route", "add", "default", "via", CONTROL],
        ):
            _run("ip", "-n", self.name, *line)

    def remove(self) -> None:
        _run("ip", "netns", "del", self.name, check=False)
        _run("ip", "-n", LAN, "link", "del", self.cable, check=False)

    @property
    def inside(self) -> list[str]:
        """What to put before a command to run it there."""
        return ["nsenter", f"--net=/run/netns/{self.name}"]

    def cut(self) -> None:
        """Pull the cable: nothing gets through either way, and nobody is told."""
        _run("ip", "-n", LAN, "link", "set", self.cable, "down")

    def heal(self) -> None:
        _run("ip", "-n", LAN, "link", "set", self.cable, "up")


@contextmanager
def namespaces(count: int) -> Iterator[list[Namespace]]:
    """Make a bridge with so many hosts on it; whatever they ask of CONTROL is answered by this machine's loopback."""
    made = [Namespace(number) for number in range(count)]
    with open(LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go of it when this process ends, however it ends
        _sweep(made)
        yield from _with(made)


def _with(made: list[Namespace]) -> Iterator[list[Namespace]]:
    try:
        _run("ip", "netns", "add", LAN)
        _run("ip", "-n", LAN, "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "-n", LAN, "link", "set", BRIDGE, "up")
        _run("ip", "link", "add", BRIDGE, "type", "veth", "peer", "name", "control", "netns", LAN)
        _run("ip", "-n", LAN, "link", "set", "control", "master", BRIDGE, "up")
        _run("ip", "address", "add", f"{CONTROL}/{NETWORK.prefixlen}", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        Path(f"/proc/sys/net/ipv4/conf/{BRIDGE}/route_localnet").write_text("1")
        rule = f'iifname "{BRIDGE}" ip daddr {CONTROL} meta l4proto tcp dnat to 127.0.0.1'
        _run("nft", f"add table ip {TABLE}")
        _run("nft", f"add chain ip {TABLE} pre {{ type nat hook prerouting priority -100; }}")
        _run("nft", f"add rule ip {TABLE} pre {rule}")
        for namespace in made:
            namespace.make()
        yield made
    finally:
        _sweep(made)


def _sweep(made: list[Namespace]) -> None:
    """Take away what is there, also of a run that was killed."""
    for namespace in made:
        namespace.remove()
    with suppress(subprocess.SubprocessError):
        _run("ip", "link", "del", BRIDGE, check=False)
        _run("ip", "netns", "del", LAN, check=False)
        _run("nft", f"delete table ip {TABLE}", check=False)
