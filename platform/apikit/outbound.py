"""Calls to addresses that tenants name, guarded against server-side request forgery (RELIABILITY.md section 5).

https on port 443, no credentials, no redirects, no proxies. The name is resolved once per call, *every* address must be
public by the table below, and the connection goes to the address that was checked, so a name that turns afterwards
gains nothing. The table is our own: `ipaddress.is_global` lets NAT64, multicast and 6to4 relays through.
"""

import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

from apikit.errors import DomainError

PORT = 443
URL_LIMIT = 500
LOOKUP_S = 2
ANSWER_LIMIT = 16 * 1024  # bytes of status line and headers; a body is never read

# IANA special-purpose address registries (IPv4 and IPv6), and multicast and reserved space.
_IPV4_FORBIDDEN = [
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    )
]  # fmt: skip
# Only global unicast is let through, which leaves out mapped addresses, NAT64, link-local, ULA and multicast; and of it
# not: IETF protocol assignments with Teredo and ORCHID, documentation (two), 6to4, AS112.
_IPV6_GLOBAL = ipaddress.IPv6Network("2000::/3")
_IPV6_FORBIDDEN = [
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
]
_URL = re.compile(r"https://[\x21-\x7e]+", re.ASCII)
_NAME = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")


class ForbiddenUrl(DomainError):
    """The address is not one that may be called."""

    slug = "validation-error"
    title = "The request was read and refused"
    status = 422

    def __init__(self, detail: str) -> None:
        super().__init__(detail, errors=[{"pointer": "/url", "code": "forbidden_url", "detail": detail}])


class CallFailed(Exception):
    """No answer came: the text says why, for the delivery log."""


@dataclass(frozen=True)
class Target:
    host: str  # lower case; an IPv6 address without brackets
    path: str  # with the query


@dataclass(frozen=True)
class Wire:
    """How names are resolved and connections made; a test passes its own."""

    resolve: Callable[[str], list[str]]  # name -> addresses; raises OSError
    connect: Callable[[str, float], socket.socket]  # address, time-out in seconds
    tls: Callable[[], ssl.SSLContext]


def is_public(address: str) -> bool:
    """Tell whether packets to this address leave for the public Internet, and nowhere else."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _IPV4_FORBIDDEN)
    return (
        parsed.scope_id is None and parsed in _IPV6_GLOBAL and not any(parsed in network for network in _IPV6_FORBIDDEN)
    )


def read_url(url: str) -> Target:
    """Return what to call, or raise ForbiddenUrl. Looks at the text alone: names are resolved at each call."""
    if len(url) > URL_LIMIT or not _URL.fullmatch(url) or "\\" in url:
        raise ForbiddenUrl(f"An https URL of at most {URL_LIMIT} ASCII characters is expected.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ForbiddenUrl("The URL cannot be read.") from None
    if "@" in parts.netloc or parts.fragment or port not in {None, PORT}:
        raise ForbiddenUrl("No credentials, no fragment, and no port but 443.")
    host = (parts.hostname or "").lower()
    literal = parts.netloc.startswith("[") or host.replace(".", "").isdigit()
    if literal and not is_public(host):
        raise ForbiddenUrl("This address is not on the public Internet.")
    if not literal and not (_NAME.fullmatch(host) and len(host) <= 253):
        raise ForbiddenUrl("The host must be a full name, such as hooks.example.com.")
    return Target(host, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def check(url: str, *, wire: Wire | None = None) -> None:
    """Raise ForbiddenUrl if the URL leads anywhere but the public Internet today.

    A name that does not resolve, or not in time, passes: it is looked up again at each call, which is the real guard.
    """
    target = read_url(url)
    try:
        addresses = _lookups.submit((wire or INTERNET).resolve, target.host).result(timeout=LOOKUP_S)
    except OSError:  # TimeoutError is one
        return
    if not all(is_public(address) for address in addresses):
        raise ForbiddenUrl("The name leads to an address that is not on the public Internet.")


def post(url: str, *, body: bytes, headers: Mapping[str, str], timeout_s: float, wire: Wire | None = None) -> int:
    """POST `body` and return the status of the answer, within `timeout_s` in all, however slowly it drips.

    A redirect is returned like any other status, and never followed. Raises ForbiddenUrl, CallFailed.
    """
    wire = wire or INTERNET
    deadline = time.monotonic() + timeout_s
    target = read_url(url)
    address = _checked_address(target.host, wire)
    try:
        with wire.connect(address, _left(deadline)) as plain:
            plain.settimeout(_left(deadline))
            with wire.tls().wrap_socket(plain, server_hostname=target.host) as secure:
                secure.settimeout(_left(deadline))
                secure.sendall(_request(target, body, headers))
                return _status(secure, deadline)
    except (OSError, ValueError) as exc:
        raise CallFailed(_reason(exc)) from exc


def _checked_address(host: str, wire: Wire) -> str:
    try:
        addresses = wire.resolve(host)
    except OSError:
        raise CallFailed("the name does not resolve") from None
    if not addresses or not all(is_public(address) for address in addresses):
        raise ForbiddenUrl("The name leads to an address that is not on the public Internet.")
    return addresses[0]


def _request(target: Target, body: bytes, headers: Mapping[str, str]) -> bytes:
    host = f"[{target.host}]" if ":" in target.host else target.host
    fields = {"Host": host, "Content-Length": str(len(body)), "Connection": "close", **headers}
    lines = [f"POST {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


def _status(secure: ssl.SSLSocket, deadline: float) -> int:
    received = b""
    while b"\n" not in received:
        secure.settimeout(_left(deadline))
        chunk = secure.recv(4096)
        received += chunk
        if not chunk or len(received) > ANSWER_LIMIT:
            raise ValueError("no HTTP answer")
    match = _STATUS.match(received)
    if match is None:
        raise ValueError("no HTTP answer")
    return int(match[1])


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reason(exc: Exception) -> str:
    """Return a fixed phrase: what the other side or the library says may hold anything."""
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    if isinstance(exc, ssl.SSLError):
        return "the TLS handshake failed"
    return "the answer is no HTTP" if isinstance(exc, ValueError) else "the connection failed"


def _resolve(host: str) -> list[str]:
    found = socket.getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def _connect(address: str, timeout_s: float) -> socket.socket:
    return socket.create_connection((address, PORT), timeout=timeout_s)


# The resolver of the C library cannot be told to hurry; a thread can be left behind.
_lookups = ThreadPoolExecutor(max_workers=8, thread_name_prefix="lookup")
INTERNET = Wire(resolve=_resolve, connect=_connect, tls=ssl.create_default_context)
