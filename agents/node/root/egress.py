"""Which addresses a tenant's container reaches: the internet, and not the owner's own network (AGENT.md section 14).

One nftables table of our own, replaced as a whole. Its chains speak only of what comes in by bridges named gy... (each
container has one, see Belongings.make_network) and come before the engine's own. Answers on connections that others
opened pass. Refused are new connections to this machine itself (but to its name servers), to link-local (metadata
services), private, CGNAT, loopback, multicast and reserved addresses, and to mail servers' ports; but for what the
members of a container's own gang publish for it.
"""

import ipaddress
import subprocess
from collections.abc import Iterable
from pathlib import Path

from agents.node.engines.belongings import bridge_of
from agents.node.root.orders import Orders

TABLE = "gpuyard"
CLOSED_4 = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
)  # fmt: skip
CLOSED_6 = ("::/8", "64:ff9b::/96", "fc00::/7", "fe80::/10", "ff00::/8")
MAIL_PORTS = (25, 465, 587)
RESOLV_CONF = Path("/etc/resolv.conf")
NFT_WAIT_S = 20


class NoRules(Exception):
    """The rules could not be set; the sentence says why."""


def rules(orders: Orders, *, name_servers: Iterable[str]) -> str:
    """Return the table as a script for `nft -f`: a whole replacement, in one transaction. Pure."""
    names = [_accept_names(address) for address in name_servers]
    peers = [rule for order in orders.workloads for rule in _accept_peers(order.name, order.peers)]
    closed = [
        f"ip daddr {{ {', '.join(CLOSED_4)} }} drop",
        f"ip6 daddr {{ {', '.join(CLOSED_6)} }} drop",
        f"tcp dport {{ {', '.join(map(str, MAIL_PORTS))} }} drop",
    ]
    answers = "ct state established,related accept"
    lines = [f"table inet {TABLE} {{}}", f"delete table inet {TABLE}", f"table inet {TABLE} {{"]
    lines += _chain("outward", [answers, *names, *peers, *closed])
    lines += _chain("to_this_machine", [answers, *names, "drop"])
    lines += _chain("forward", ['iifname "gy*" jump outward'], hook="forward")
    lines += _chain("input", ['iifname "gy*" jump to_this_machine'], hook="input")
    return "\n".join([*lines, "}", ""])


def _chain(name: str, body: list[str], *, hook: str = "") -> list[str]:
    head = [f"    type filter hook {hook} priority -10; policy accept;"] if hook else []
    return [f"  chain {name} {{", *head, *(f"    {line}" for line in body), "  }"]


def _accept_names(address: str) -> str:
    return f"{_family(address)} daddr {address} meta l4proto {{ tcp, udp }} th dport 53 accept"


def _accept_peers(container: str, peers: Iterable[tuple[str, int, int]]) -> list[str]:
    bridge = bridge_of(container)
    return [
        f'iifname "{bridge}" {_family(address)} daddr {ipaddress.ip_address(address)} tcp dport {first}-{last} accept'
        for address, first, last in peers
        if _is_address(address)
    ]


def _is_address(text: str) -> bool:
    """Say whether nft can read it as an address: one with a zone (fe80::1%eth0) would lose us the whole table."""
    if "%" in text:
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _family(address: str) -> str:
    return "ip6" if ":" in address else "ip"


def name_servers(path: Path = RESOLV_CONF) -> list[str]:
    """Return the addresses that containers may ask for names: those of this machine."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    words = [line.split() for line in lines if line.startswith("nameserver")]
    return [row[1] for row in words if len(row) > 1 and _is_address(row[1])]


def put(script: str) -> None:
    """Set the table. Raises NoRules."""
    try:
        done = subprocess.run(["nft", "-f", "-"], input=script, capture_output=True, text=True, timeout=NFT_WAIT_S,
                              check=False)  # fmt: skip
    except FileNotFoundError:
        raise NoRules("nft is not installed (apt-get install nftables)") from None
    except subprocess.TimeoutExpired:
        raise NoRules(f"nft did not end within {NFT_WAIT_S} s") from None
    if done.returncode != 0:
        raise NoRules(f"nft: {done.stderr.strip()[:300]}")
