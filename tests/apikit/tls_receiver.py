"""A TLS server on loopback that plays the public Internet: names resolve to what the test says, and end here."""

import contextlib
import datetime
import socket
import ssl
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from apikit.outbound import Wire


class Receiver:
    """Answers every POST with `answer`; keeps what it received and which addresses were connected to."""

    def __init__(self, names: tuple[str, ...] = ("hook.test", "rebind.test", "redirect.test")) -> None:
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        self.answers: dict[str, bytes] = {}  # by Host, before `answer`
        self.drip_s = 0.0
        self.endless = False
        self.hang: threading.Event | None = None  # answers wait for it
        self.received: list[bytes] = []
        self.connected: list[str] = []
        self._stop = threading.Event()
        self._folder = tempfile.TemporaryDirectory()
        self._pem = Path(self._folder.name) / "server.pem"
        self._pem.write_bytes(_certificate(names))

    def __enter__(self) -> Self:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self._pem)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self.hang is not None:
            self.hang.set()
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.getsockname(), timeout=1).close()
        self._thread.join(5)
        self._listener.close()
        self._folder.cleanup()

    def wire(self, addresses: dict[str, list[str]]) -> Wire:
        """The world as this test wants it. An address list that is emptied from the front gives rebinding names."""

        def resolve(host: str) -> list[str]:
            if host not in addresses:
                raise OSError("unknown name")
            return addresses[host]

        return self.wire_of(resolve)

    def wire_of(self, resolve: "object") -> Wire:
        def connect(address: str, timeout_s: float) -> socket.socket:
            self.connected.append(address)
            return socket.create_connection(self._listener.getsockname(), timeout=timeout_s)

        return Wire(resolve=resolve, connect=connect, tls=lambda: ssl.create_default_context(cafile=str(self._pem)))  # type: ignore[arg-type]

    def _serve(self) -> None:
        while not self._stop.is_set():
            plain, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(plain,), daemon=True).start()

    def _answer(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), self._context.wrap_socket(plain, server_side=True) as secure:
            request = _read_request(secure)
            self.received.append(request)
            host = request.partition(b"Host: ")[2].partition(b"\r\n")[0].decode()
            if self.hang is not None:
                self.hang.wait(30)
            self._send(secure, self.answers.get(host, self.answer))

    def _send(self, secure: ssl.SSLSocket, answer: bytes) -> None:
        if not self.drip_s:
            secure.sendall(answer)
        else:
            for byte in answer:
                secure.sendall(bytes([byte]))
                if self._stop.wait(self.drip_s):
                    return
        while self.endless and not self._stop.is_set():
            secure.sendall(b"x" * 65536)


def _read_request(secure: ssl.SSLSocket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += secure.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += secure.recv(65536)
    return head + b"\r\n\r\n" + body


def _certificate(names: tuple[str, ...]) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
