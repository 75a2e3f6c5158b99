"""The signed conversation with the control plane: outbound HTTP only, one request at a time.

A request that is held by the server can be left alone (`Bell`): when something has happened on the host, the news must
not wait for the hold to end. What the abandoned answer would have said comes with the next one.
"""

import http.client
import json
import select
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from agents import protocol
from agents.node.bell import Bell
from agents.node.identity import Identity, is_signed_by

SYNC_PATH = "/agent/v1/sync"
ENROL_PATH = "/agent/v1/enrol"
CONNECT_TIMEOUT_S = 10
FETCH_TIMEOUT_S = 60
# A request this young is not abandoned: the server is still reading it, and a burst of changes must not starve it.
LEAVE_AFTER_S = 0.1
MAX_ANSWER_BYTES = 8 * 1024 * 1024


class NoContact(Exception):
    """No answer that can be trusted; the sentence says what stood in the way."""


class Abandoned(Exception):
    """We left the held request, since there is news to tell."""


class Refused(Exception):
    """The server answered with a problem document."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status = status
        self.problem = problem
        self.slug = str(problem.get("type", "")).rstrip("/").rpartition("/")[2]
        super().__init__(f"{status} {self.slug}: {problem.get('detail') or problem.get('title') or 'refused'}")


class Wire:
    """One connection, kept open between requests and made anew after any fault."""

    def __init__(self, server: str) -> None:
        url = urlsplit(server)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"the server must be an http(s) URL, not {server!r:.80}")
        self._secure = url.scheme == "https"
        self._host, self._port = url.hostname, url.port
        self._prefix = url.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None
        self.clock_offset_s = 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def enrol(self, request: protocol.EnrolRequest) -> protocol.EnrolAnswer:
        """Trade the one-time token for an id and the pinned keys. Raises Refused or NoContact."""
        body = json.dumps(request.to_json()).encode()
        status, _, answer = self._exchange(ENROL_PATH, body, {}, timeout_s=30, leave=None)
        if status not in (200, 201):
            raise Refused(status, _problem(answer))
        try:
            return protocol.EnrolAnswer.from_json(json.loads(answer))
        except ValueError as fault:
            raise NoContact(f"the answer to the enrolment cannot be read: {fault}") from None

    def sync(
        self, *, identity: Identity, request: protocol.SyncRequest, timeout_s: float, leave: Bell | None
    ) -> protocol.SyncAnswer:
        """Send one signed request and return the answer, after its signature was checked against the pinned keys.

        Raises Refused (the server said no), NoContact (nothing we may believe), Abandoned (`leave` rang).
        """
        body = protocol.canonical_json(request.to_json())
        created = int(time.time()) + self.clock_offset_s
        text = protocol.signed_text(
            method="POST",
            path=SYNC_PATH,
            body=body,
            host=identity.host,
            key=identity.key,
            boot_no=request.boot_no,
            seq=request.seq,
            created=created,
        )
        header = protocol.header_text(
            host=identity.host,
            key=identity.key,
            boot=request.boot_no,
            seq=request.seq,
            created=created,
            sig=identity.sign(text),
        )
        headers = {protocol.SIGNATURE_HEADER: header}
        status, seal, answer = self._exchange(SYNC_PATH, body, headers, timeout_s=timeout_s, leave=leave)
        if status != 200:
            raise Refused(status, _problem(answer))
        self._check(identity, request, status=status, seal=seal, body=answer)
        try:
            read = protocol.SyncAnswer.from_json(json.loads(answer))
        except ValueError as fault:
            raise NoContact(f"the answer cannot be read: {fault}") from None
        return read

    def fetch(self, path: str, *, most: int) -> bytes:
        """Return what stands at a path, up to `most` bytes: the caller knows its hash. Raises Refused or NoContact."""
        connection = self._connect()
        connection.timeout = FETCH_TIMEOUT_S
        try:
            connection.request("GET", self._prefix + path)
            response = connection.getresponse()
            body = response.read(most + 1)
        except (OSError, http.client.HTTPException) as fault:
            raise NoContact(f"{self._host}: {fault or type(fault).__name__}") from None
        finally:
            connection.close()
        if response.status != 200:
            raise Refused(response.status, _problem(body))
        return body

    def learn_time(self, server_time: str) -> None:
        """Keep the distance to the server's clock; the machine's own clock is never set. Bad text changes nothing."""
        try:
            theirs = datetime.fromisoformat(server_time)
        except ValueError:
            return
        if theirs.tzinfo is not None:
            self.clock_offset_s = round((theirs - datetime.now(UTC)).total_seconds())

    @staticmethod
    def _check(identity: Identity, request: protocol.SyncRequest, *, status: int, seal: str, body: bytes) -> None:
        try:
            parts = protocol.read_header(seal)
        except protocol.ProtocolError:
            raise NoContact("the answer carries no signature that can be read") from None
        if (parts.get("boot"), parts.get("seq")) != (str(request.boot_no), str(request.seq)):
            raise NoContact("the answer belongs to another request")
        text = protocol.answer_text(
            status=status, body=body, host=identity.host, boot_no=request.boot_no, seq=request.seq
        )
        if not is_signed_by(keys=identity.control_keys, text=text, signature=parts.get("sig", "")):
            raise NoContact("the answer is not signed by a key that was pinned at enrolment")

    def _exchange(
        self, path: str, body: bytes, headers: dict[str, str], *, timeout_s: float, leave: Bell | None
    ) -> tuple[int, str, bytes]:
        for attempt in (1, 2):
            kept = self._connection is not None
            try:
                return self._once(path, body, headers, timeout_s=timeout_s, leave=leave)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as fault:
                self.close()
                # A connection that was kept open may have been closed meanwhile: that is no failure of the server.
                if not kept or attempt == 2:
                    raise NoContact(f"the connection broke: {fault}") from None
            except (OSError, http.client.HTTPException) as fault:
                self.close()
                raise NoContact(f"{self._host}: {fault or type(fault).__name__}") from None
        raise NoContact("the connection broke twice")

    def _once(
        self, path: str, body: bytes, headers: dict[str, str], *, timeout_s: float, leave: Bell | None
    ) -> tuple[int, str, bytes]:
        connection = self._connection or self._connect()
        self._connection = connection
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        headers = {"Content-Type": "application/json", "Accept": "application/json", **headers}
        connection.request("POST", self._prefix + path, body, headers)
        if leave is not None:
            self._wait(connection, leave, timeout_s)
        response = connection.getresponse()
        answer = response.read(MAX_ANSWER_BYTES + 1)
        if len(answer) > MAX_ANSWER_BYTES:
            self.close()
            raise NoContact("the answer is too long")
        if response.will_close:
            self.close()
        return response.status, response.headers.get(protocol.SIGNATURE_HEADER, ""), answer

    def _wait(self, connection: http.client.HTTPConnection, leave: Bell, timeout_s: float) -> None:
        """Return when the answer begins to arrive; raise Abandoned when the bell rings first."""
        started = time.monotonic()
        poll = select.poll()
        poll.register(connection.sock, select.POLLIN)
        if poll.poll(int(LEAVE_AFTER_S * 1000)):
            return
        poll.register(leave.fileno(), select.POLLIN)
        left = timeout_s - (time.monotonic() - started)
        ready = {fd for fd, _ in poll.poll(int(left * 1000))}
        if connection.sock.fileno() in ready:
            return
        self.close()
        if leave.fileno() in ready:
            raise Abandoned
        raise NoContact(f"no answer within {timeout_s:.0f} s")

    def _connect(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)


def _problem(body: bytes) -> dict[str, Any]:
    try:
        problem = json.loads(body)
    except ValueError:
        return {"detail": body[:200].decode(errors="replace")}
    return problem if isinstance(problem, dict) else {}
