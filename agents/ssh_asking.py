"""Would a machine let somebody in with his key? Asked without his private key, as SSH allows (RFC 4252, section 7).

A client may name an account and a public key and ask whether a signature by it would be accepted. The machine's sshd
then looks at all that it looks at for a login: the account, who may log in at all, the file of keys and who could have
written it, the end of the term that stands in it. So the control plane sees what the tenant would see.
"""

import base64
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import paramiko
from paramiko.auth_handler import AuthOnlyHandler
from paramiko.common import MSG_USERAUTH_INFO_REQUEST, cMSG_SERVICE_REQUEST, cMSG_USERAUTH_REQUEST
from paramiko.message import Message
from paramiko.transport import ServiceRequestingTransport

from agents.ssh import DISABLED, WAIT_S, Address, HostKey, HostKeyChanged, NotLetIn, Unreachable

KEYS_ASKED = 5  # sshd hangs up after six refusals (MaxAuthTries)
_RSA = ("rsa-sha2-512", "rsa-sha2-256")


class _Asking(AuthOnlyHandler):
    """Asks; never signs. The answer "would be accepted" (60) has the number of a message of other methods."""

    accepted = False

    @property
    def _client_handler_table(self) -> dict[int, Any]:
        table: dict[int, Any] = super()._client_handler_table  # type: ignore[misc]
        return table | {MSG_USERAUTH_INFO_REQUEST: self._would_be_accepted}

    def _would_be_accepted(self, message: Message) -> None:
        self.accepted = True
        if self.auth_event is not None:
            self.auth_event.set()

    def ask(self, user: str, algorithm: str, blob: bytes) -> bool:
        """Return whether this key would do. Raises what `wait_for_response` does when the connection ends."""
        self.auth_method, self.username, self.accepted = "publickey", user, False
        self.auth_event = threading.Event()  # before the question: the answer may be there at once
        message = Message()
        message.add_byte(cMSG_USERAUTH_REQUEST)
        for text in (user, "ssh-connection", "publickey"):
            message.add_string(text)
        message.add_boolean(False)  # a question, with no signature
        message.add_string(algorithm)
        message.add_string(blob)
        self.transport._send_message(message)  # type: ignore[attr-defined]
        try:
            self.wait_for_response(self.auth_event)
        except paramiko.AuthenticationException as fault:
            if str(fault).startswith("Authentication timeout"):
                raise TimeoutError("no answer to the question about a key") from None
        return self.accepted


class _Transport(ServiceRequestingTransport):
    def get_auth_handler(self) -> _Asking:
        return _Asking(self)

    def asking(self) -> _Asking:
        """As the parent begins to authenticate, with an end to the wait."""
        message = Message()
        message.add_byte(cMSG_SERVICE_REQUEST)
        message.add_string("ssh-userauth")
        self._send_message(message)  # type: ignore[attr-defined]
        until = time.monotonic() + WAIT_S
        while not self._service_userauth_accepted:  # type: ignore[attr-defined]
            if time.monotonic() > until or not self.is_active():
                raise TimeoutError("it does not begin to authenticate anybody")
            time.sleep(0.02)
        handler = self.get_auth_handler()
        self.auth_handler = handler
        return handler


def would_let_in(address: Address, *, host_key: HostKey, user: str, keys: Sequence[str]) -> None:
    """Return if the machine would let `user` in with one of `keys` (lines of public keys).

    Raises Unreachable, HostKeyChanged, or NotLetIn, and waits for at most some 40 s.
    """
    try:
        with socket.create_connection((address.host, address.port), timeout=WAIT_S) as connection:
            transport = _Transport(connection, disabled_algorithms=dict(DISABLED))
            transport.banner_timeout = transport.auth_timeout = WAIT_S
            transport.get_security_options().key_types = _algorithms(host_key.kind)
            try:
                transport.start_client(timeout=WAIT_S)
                _check_key(transport, address, host_key)
                handler = transport.asking()
                accepted = any(_ask(handler, user, line) for line in keys[:KEYS_ASKED])
            finally:
                transport.close()
    except (OSError, EOFError, paramiko.SSHException) as fault:
        raise Unreachable(f"{address.name}: {fault}") from None
    if not accepted:
        raise NotLetIn(f"{user} at {address.name}: none of his keys would be accepted.")


def _check_key(transport: paramiko.Transport, address: Address, pinned: HostKey) -> None:
    key = transport.get_remote_server_key()
    shown = HostKey(key.get_name(), key.get_base64())
    if shown != pinned:
        raise HostKeyChanged(f"{address.name} shows {shown.fingerprint}; pinned is {pinned.fingerprint}.", key=shown)


def _ask(handler: _Asking, user: str, line: str) -> bool:
    kind, body = line.split()[:2]
    blob = base64.b64decode(body)
    return any(handler.ask(user, algorithm, blob) for algorithm in _algorithms(kind))


def _algorithms(kind: str) -> tuple[str, ...]:
    """Return by which a key of this kind signs."""
    return _RSA if kind == "ssh-rsa" else (kind,)
