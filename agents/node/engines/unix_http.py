"""HTTP over a UNIX socket, as container engines speak it: one connection per call, each with its own time limit."""

import http.client
import json
import resource
import socket
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from agents.node.engines import EngineDown, EngineError, NoSuchContainer

CALL_TIMEOUT_S = 30.0


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("engine", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Refusal(EngineError):
    """The engine answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__("engine_error", message)
        self.status = status


class UnixHttp:
    """Calls to one engine. `prefix` is its API version, such as "/v1.41"."""

    def __init__(self, path: str, *, prefix: str = "") -> None:
        self.path, self.prefix = path, prefix

    def nofile_limit(self) -> int:
        """Return the engine process's own hard limit of open files, or ours where it cannot be read."""
        ours = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.connect(self.path)
                raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return resource.prlimit(struct.unpack("3i", raw)[0], resource.RLIMIT_NOFILE)[1]
        except OSError:
            return ours

    def call(
        self, method: str, target: str, *, query: dict[str, Any] | None = None, body: Any = None,
        raw: bytes | None = None, timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any:  # fmt: skip
        """Return the JSON of the answer (None if it has none). Raises EngineDown, NoSuchContainer (404), Refusal."""
        with self.stream(method, target, query=query, body=body, raw=raw, timeout_s=timeout_s) as answer:
            said = answer.read()
        return json.loads(said) if said.strip() else None

    def stream(
        self, method: str, target: str, *, query: dict[str, Any] | None = None, body: Any = None,
        headers: dict[str, str] | None = None, raw: bytes | None = None, timeout_s: float = CALL_TIMEOUT_S,
    ) -> "Answer":  # fmt: skip
        """Return the open answer, to be closed by the caller. timeout_s counts between two bytes, not in all."""
        connection = _Connection(self.path, timeout_s)
        where = self.prefix + target + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body)
        try:
            kind = {"Content-Type": "application/json"} if data is not None else {}
            if raw is not None:
                kind = {"Content-Type": "application/x-tar"}
            connection.request(method, where, data if raw is None else raw, kind | (headers or {}))
            response = connection.getresponse()
            if response.status >= 400:
                message = _message(response.read())
                connection.close()
                raise NoSuchContainer(message) if response.status == 404 else Refusal(response.status, message)
        except (OSError, http.client.HTTPException) as fault:
            connection.close()
            raise EngineDown(f"{self.path}: {fault or type(fault).__name__}") from None
        return Answer(connection, response)


class Answer:
    """An answer whose body is read piece by piece; reading raises EngineDown, and StillSilent when time runs out."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def interrupt(self) -> None:
        """Make a read in another thread return at once."""
        sock = self._connection.sock
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)

    def read(self, size: int | None = None) -> bytes:
        try:
            return self._response.read() if size is None else self._response.read(size)
        except TimeoutError:
            raise StillSilent("no byte in time") from None
        except (OSError, http.client.HTTPException, ValueError) as fault:
            raise EngineDown(f"the answer broke off: {fault or type(fault).__name__}") from None

    def lines(self) -> Iterator[Any]:
        """Yield the JSON values of a body that has one a line."""
        while True:
            try:
                line = self._response.readline()
            except TimeoutError:
                raise StillSilent("no line in time") from None
            except (OSError, http.client.HTTPException, ValueError) as fault:
                raise EngineDown(f"the answer broke off: {fault or type(fault).__name__}") from None
            if not line:
                return
            if line.strip():
                yield json.loads(line)

    def frames(self) -> Iterator[bytes]:
        """Yield the output of a container: the engine wraps each piece in a head of stream number and length."""
        while head := self._exactly(8):
            (length,) = struct.unpack(">4xI", head)
            while length:
                piece = self.read(min(length, 64 * 1024))
                if not piece:
                    return
                length -= len(piece)
                yield piece

    def _exactly(self, size: int) -> bytes:
        raw = b""
        while len(raw) < size:
            piece = self.read(size - len(raw))
            if not piece:
                return b""
            raw += piece
        return raw


class StillSilent(EngineDown):
    """The answer goes on, but nothing came within the time limit."""


def _message(raw: bytes) -> str:
    try:
        parsed = json.loads(raw)
    except ValueError:
        return raw[:300].decode(errors="replace").strip()
    # Docker says `message`; podman's compatible API adds `cause`.
    return str(parsed.get("message", parsed))[:500] if isinstance(parsed, dict) else str(parsed)[:500]
