"""One way to speak SSH from the control plane: the host key is pinned, and every wait has an end.

A paramiko client of its own can hang in the banner, in authentication, in a command that prints more than a window on
the stream nobody reads, or on a peer that is gone. So: 10 s each for connecting, banner and authentication, keepalive
every 15 s, both streams drained, and a deadline that closes the transport.
"""

import base64
import hashlib
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import paramiko

from apikit.errors import DomainError

WAIT_S = 10
KEEPALIVE_S = 15
OUTPUT_LIMIT = 1024 * 1024  # bytes kept of each stream; the rest is read and dropped
# Nothing with SHA-1 or in CBC mode is spoken.
DISABLED: Mapping[str, list[str]] = {
    "ciphers": ["aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"],
    "macs": ["hmac-sha1", "hmac-sha1-96", "hmac-md5", "hmac-md5-96"],
    "kex": ["diffie-hellman-group1-sha1", "diffie-hellman-group14-sha1", "diffie-hellman-group-exchange-sha1"],
    "keys": ["ssh-rsa", "ssh-dss", "ssh-rsa-cert-v01@openssh.com"],
    "pubkeys": ["ssh-rsa", "ssh-dss", "ssh-rsa-cert-v01@openssh.com"],
}


class Unreachable(DomainError):
    slug = "ssh-unreachable"
    title = "The machine cannot be reached over SSH"


class HostKeyChanged(DomainError):
    """`key`: the one that it shows."""

    slug = "ssh-host-key-changed"
    title = "The machine shows another host key than the pinned one"

    def __init__(self, detail: str, *, key: "HostKey") -> None:
        super().__init__(detail, shown=key.fingerprint)
        self.key = key


class NotLetIn(DomainError):
    slug = "ssh-not-let-in"
    title = "The machine refuses these credentials"


class TookTooLong(DomainError):
    slug = "ssh-deadline"
    title = "A command on the machine did not end in time"


@dataclass(frozen=True)
class Address:
    host: str
    port: int = 22

    @property
    def name(self) -> str:
        """How known_hosts spells it."""
        return self.host if self.port == 22 else f"[{self.host}]:{self.port}"


@dataclass(frozen=True)
class HostKey:
    """A public host key: its kind (ssh-ed25519) and its base64 body."""

    kind: str
    body: str

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen prints it: SHA256:..., for a person to compare."""
        digest = hashlib.sha256(base64.b64decode(self.body)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@dataclass(frozen=True)
class Credentials:
    """Of one user; kept in memory only, and never shown."""

    user: str
    password: str | None = None
    key: paramiko.PKey | None = None

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r})"


@dataclass(frozen=True)
class Result:
    exit_code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def fetch_host_key(address: Address) -> HostKey:
    """Return the key that the machine shows, by a bare key exchange: no credential is sent. Raises Unreachable."""
    try:
        with socket.create_connection((address.host, address.port), timeout=WAIT_S) as connection:
            transport = paramiko.Transport(connection, disabled_algorithms=dict(DISABLED))
            transport.banner_timeout = WAIT_S
            try:
                transport.start_client(timeout=WAIT_S)
                key = transport.get_remote_server_key()
            finally:
                transport.close()
    except (OSError, EOFError, paramiko.SSHException) as fault:
        raise Unreachable(f"{address.name}: {fault}") from None
    return HostKey(key.get_name(), key.get_base64())


class Session:
    """A connection to one machine whose key was confirmed. Use it in `with`."""

    def __init__(self, address: Address, *, host_key: HostKey, credentials: Credentials) -> None:
        self._address, self._pinned, self._credentials = address, host_key, credentials
        self._client = paramiko.SSHClient()
        key = paramiko.PKey.from_type_string(host_key.kind, base64.b64decode(host_key.body))
        self._client.get_host_keys().add(address.name, host_key.kind, key)
        self._client.set_missing_host_key_policy(paramiko.RejectPolicy())

    def __enter__(self) -> Self:
        who = self._credentials
        try:
            self._client.connect(
                self._address.host, port=self._address.port, username=who.user, password=who.password, pkey=who.key,
                timeout=WAIT_S, banner_timeout=WAIT_S, auth_timeout=WAIT_S, channel_timeout=WAIT_S,
                allow_agent=False, look_for_keys=False, disabled_algorithms=dict(DISABLED),
            )  # fmt: skip
        except paramiko.BadHostKeyException as fault:
            self._client.close()
            shown = HostKey(fault.key.get_name(), fault.key.get_base64())
            raise HostKeyChanged(
                f"{self._address.name} shows {shown.fingerprint}; pinned is {self._pinned.fingerprint}.", key=shown
            ) from None
        except paramiko.AuthenticationException as fault:
            self._client.close()
            raise NotLetIn(f"{who.user} at {self._address.name}: {fault}") from None
        except (OSError, EOFError, paramiko.SSHException) as fault:
            self._client.close()
            raise Unreachable(f"{self._address.name}: {fault}") from None
        self._transport.set_keepalive(KEEPALIVE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def run(self, command: str, *, given: bytes = b"", within_s: float = 60) -> Result:
        """Run one shell line and return its end with both streams. `given` goes to its standard input.

        Raises TookTooLong after `within_s` (the connection is closed then), Unreachable when it breaks.
        """
        try:
            channel = self._transport.open_session(timeout=WAIT_S)
            channel.exec_command(command)
            if given:
                channel.settimeout(within_s)
                channel.sendall(given)
            channel.shutdown_write()
            return self._drain(channel, command, time.monotonic() + within_s)
        except (OSError, EOFError, paramiko.SSHException) as fault:
            raise Unreachable(f"{self._address.name} while it ran {command[:60]!r}: {fault}") from None

    def put(self, content: bytes, path: str, *, mode: int = 0o600) -> None:
        """Write a file whole, or leave the old one: it is renamed into place."""
        try:
            with self._client.open_sftp() as sftp:
                channel = sftp.get_channel()
                if channel is not None:
                    channel.settimeout(60)
                with sftp.open(f"{path}.new", "wb") as file:
                    sftp.chmod(f"{path}.new", mode)
                    file.write(content)
                sftp.posix_rename(f"{path}.new", path)
        except (OSError, EOFError, paramiko.SSHException) as fault:
            raise Unreachable(f"{self._address.name} while {path} was written: {fault}") from None

    @property
    def _transport(self) -> paramiko.Transport:
        transport = self._client.get_transport()
        if transport is None:
            raise Unreachable(f"{self._address.name}: the connection is closed.")
        return transport

    def _drain(self, channel: paramiko.Channel, command: str, deadline: float) -> Result:
        out, err = bytearray(), bytearray()
        ended_at: float | None = None
        while True:
            while channel.recv_ready():
                _keep(out, channel.recv(65536))
            while channel.recv_stderr_ready():
                _keep(err, channel.recv_stderr(65536))
            if channel.exit_status_ready():
                # What it printed last may come after its status; a daemon that it left behind may keep the stream open.
                ended_at = ended_at or time.monotonic()
                unread = channel.recv_ready() or channel.recv_stderr_ready()
                if not unread and (channel.eof_received or channel.closed or time.monotonic() > ended_at + 1):
                    break
            if channel.closed and not channel.exit_status_ready():
                raise Unreachable(f"{self._address.name} closed the connection while it ran {command[:60]!r}.")
            if time.monotonic() > deadline:
                self._client.close()
                raise TookTooLong(f"{command[:60]!r} on {self._address.name} did not end in time.")
            select.select([channel], [], [], 0.1)
        return Result(channel.recv_exit_status(), out.decode(errors="replace"), err.decode(errors="replace"))


def _keep(kept: bytearray, piece: bytes) -> None:
    kept += piece[: max(0, OUTPUT_LIMIT - len(kept))]
