"""A control plane of a few lines for tests of the node: it speaks agents.protocol with real signatures, holds requests,
and remembers what it was told. What it answers is set by the test; it decides nothing.
"""

import base64
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nacl.exceptions import BadSignatureError
from nacl.public import PublicKey, SealedBox
from nacl.signing import SigningKey, VerifyKey

from agents import protocol

HOST = "host_00000000000000000000000001"


class FakeControlPlane:
    """Serves on a loopback port from `start` to `stop`. Its state may be changed by the test at any time."""

    def __init__(self, *, hold_s: int = 5) -> None:
        self.key = SigningKey.generate()
        self.signs_with = self.key
        self.hold_s, self.wait_s = hold_s, 0
        self.token: str | None = "one-time"
        self.enrolled: protocol.EnrolRequest | None = None
        self.desired: dict[tuple[str, int, int], dict[str, Any]] = {}
        self.generation = 1
        self.requests: list[protocol.SyncRequest] = []
        self.heard_at: dict[tuple[str, str], float] = {}  # (workload key, step) -> when it was first heard
        self.events: dict[int, dict[str, Any]] = {}
        self.receipts: dict[int, dict[str, Any]] = {}
        self.logs: dict[str, bytes] = {}
        self.ack_logs = True
        self.scratch: list[str] = []
        self.drop_volumes: list[str] = []
        self.wishes: list[dict[str, Any]] = []
        self.release_key = ""
        self.wheels: dict[str, bytes] = {}  # by their hashes
        self.silent = False
        self.clock_offset = timedelta()
        self.highest = (0, 0)
        self.refused: list[str] = []
        self.changed = threading.Condition()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        plane = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                plane._answer(self)

            def do_GET(self) -> None:
                wheel = plane.wheels.get(self.path.removeprefix("/agent/v1/releases/"))
                _send(self, 404 if wheel is None else 200, wheel or b"{}", "")

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Close the port: an agent finds nobody there."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    # What a test sets and asks

    def want(self, *, lease: str = "lease_1", member: int = 0, epoch: int = 1, valid_for_s: int = 60, grace_s: int = 2,
             spec_hash: str | None = None, values: dict[str, str] | None = None,
             login: tuple[str, str] | None = None, **spec: Any) -> tuple[str, int, int]:  # fmt: skip
        """Want a workload. values: its secrets; login: for its image's registry; both are sealed as the server does."""
        named = {"secrets": sorted(values or {}), "registry_login": login is not None}
        full = protocol.WorkloadSpec.from_json({"image": "pytorch_latest", "devices": [], **named, **spec}).to_json()
        row = protocol.DesiredWorkload(
            lease=lease,
            member=member,
            epoch=epoch,
            spec=full,
            spec_hash=spec_hash or protocol.digest(full),
            valid_for_s=valid_for_s,
            stop_grace_s=grace_s,
            sealed=self._sealed(lease, member, epoch, values, login),
        )
        with self.changed:
            self.desired[lease, member, epoch] = row.to_json()
            self._move()
        return lease, member, epoch

    def _sealed(
        self, lease: str, member: int, epoch: int, values: dict[str, str] | None, login: tuple[str, str] | None
    ) -> str:
        if values is None and login is None:
            return ""
        assert self.enrolled is not None
        registry = None if login is None else {"username": login[0], "password": login[1]}
        sealed = protocol.SealedValues(
            lease=lease, member=member, epoch=epoch, secrets=values or {}, registry=registry
        ).to_json()
        box = SealedBox(PublicKey(bytes.fromhex(self.enrolled.sealing_key)))
        return base64.b64encode(box.encrypt(protocol.canonical_json(sealed))).decode()

    def wish(self, verb: str, **facts: Any) -> dict[str, Any]:
        """Wish for something, and return the event that answers it; it is wished for until then, as the server does."""
        wish = {"verb": verb, "id": f"wish-{verb}-{len(self.events)}-{self.generation}", **facts}
        with self.changed:
            self.wishes.append(wish)
            self._move()
            answered = self.changed.wait_for(lambda: self._answers(wish["id"]), timeout=60)
            assert answered, f"no event answered {wish}"
            self.wishes.remove(wish)
            return self._answers(wish["id"])[0]

    def _answers(self, wish_id: str) -> list[dict[str, Any]]:
        return [event for event in self.events.values() if event.get("id") == wish_id]

    def unwant(self, key: tuple[str, int, int]) -> None:
        with self.changed:
            del self.desired[key]
            self._move()

    def _move(self) -> None:
        self.generation += 1
        self.changed.notify_all()

    def report(self, key: tuple[str, int, int]) -> dict[str, Any] | None:
        """Return what the newest request said of a workload, or None."""
        with self.changed:
            rows = self.requests[-1].workloads if self.requests else []
        return next((row for row in rows if (row["lease"], row["member"], row["epoch"]) == key), None)

    def step(self, key: tuple[str, int, int]) -> str | None:
        row = self.report(key)
        return None if row is None else str(row["step"])

    def wait_step(self, key: tuple[str, int, int], step: str | None, *, within_s: float = 20) -> dict[str, Any]:
        """Return the report that says `step`; fail with the last report when it does not come."""
        deadline = time.monotonic() + within_s
        while self.step(key) != step:
            assert time.monotonic() < deadline, f"not {step}: {self.report(key)}"
            time.sleep(0.01)
        return self.report(key) or {}

    def log(self, key: tuple[str, int, int]) -> str:
        return self.logs.get(protocol.workload_key(*key), b"").decode(errors="replace")

    # What an agent asks

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if self.silent:
            time.sleep(0.05)
            handler.connection.close()
            handler.close_connection = True
            return
        if handler.path == "/agent/v1/enrol":
            self._enrol(handler, body)
        else:
            self._sync(handler, body)

    def _enrol(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        request = protocol.EnrolRequest.from_json(json.loads(body))
        if request.token != self.token:
            _send(handler, 401, json.dumps({"type": "/problems/enrolment-token", "title": "bad token"}).encode(), "")
            return
        self.token, self.enrolled, self.highest = None, request, (0, 0)
        keys = [bytes(self.key.verify_key).hex()]
        answer = protocol.EnrolAnswer(host=HOST, key="key_1", control_keys=keys, release_key=self.release_key)
        _send(handler, 201, json.dumps(answer.to_json()).encode(), "")

    def _sync(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        parts = protocol.read_header(handler.headers[protocol.SIGNATURE_HEADER])
        boot_no, seq, created = int(parts["boot"]), int(parts["seq"]), int(parts["created"])
        assert self.enrolled is not None
        text = protocol.signed_text(
            method="POST", path=handler.path, body=body, host=parts["host"], key=parts["key"], boot_no=boot_no,
            seq=seq, created=created,
        )  # fmt: skip
        try:
            VerifyKey(bytes.fromhex(self.enrolled.signing_key)).verify(text, base64.b64decode(parts["sig"]))
        except BadSignatureError:
            self.refused.append("signature")
            _send(handler, 401, json.dumps({"type": "/problems/agent-signature"}).encode(), "")
            return
        ours = datetime.now(UTC) + self.clock_offset
        if abs(created - ours.timestamp()) > protocol.MAX_CLOCK_SKEW_S:
            self.refused.append("skew")
            problem = {"type": "/problems/agent-clock-skew", "server_time": ours.isoformat()}
            _send(handler, 401, json.dumps(problem).encode(), "")
            return
        with self.changed:
            if (boot_no, seq) <= self.highest:
                self.refused.append("replay")
                problem = {"type": "/problems/agent-replay", "boot_no": self.highest[0]}
                _send(handler, 409, json.dumps(problem).encode(), "")
                return
            self.highest = (boot_no, seq)
        request = protocol.SyncRequest.from_json(json.loads(body))
        answer = json.dumps(self._decide(request).to_json()).encode()
        signature = self.signs_with.sign(
            protocol.answer_text(status=200, body=answer, host=HOST, boot_no=boot_no, seq=seq)
        ).signature
        seal = protocol.header_text(key="c1", boot=boot_no, seq=seq, sig=base64.b64encode(signature).decode())
        _send(handler, 200, answer, seal)

    def _decide(self, request: protocol.SyncRequest) -> protocol.SyncAnswer:
        with self.changed:
            self._hear(request)
            deadline = time.monotonic() + self.hold_s
            need = [] if any(r.inventory for r in self.requests) else ["inventory"]
            while self.generation == request.have_generation and not need and self.requests[-1] is request:
                left = deadline - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    break
            same = self.generation == request.have_generation
            return protocol.SyncAnswer(
                boot_no=request.boot_no,
                seq=request.seq,
                generation=self.generation,
                desired=None if same else list(self.desired.values()),
                valid_for_s={protocol.workload_key(*key): row["valid_for_s"] for key, row in self.desired.items()},
                acks={
                    "events": max(self.events, default=0),
                    "receipts": max(self.receipts, default=0),
                    "logs": {key: len(text) for key, text in self.logs.items()} if self.ack_logs else {},
                },
                need=need,
                hold_s=self.hold_s,
                wait_s=self.wait_s,
                server_time=datetime.now(UTC).isoformat(),
                scratch=self.scratch,
                drop_volumes=self.drop_volumes,
                wishes=self.wishes,
            )

    def _hear(self, request: protocol.SyncRequest) -> None:
        self.requests.append(request)
        for row in request.workloads:
            key = protocol.workload_key(row["lease"], row["member"], row["epoch"])
            self.heard_at.setdefault((key, row["step"]), time.time())
        self.events |= {row["n"]: row for row in request.events}
        self.receipts |= {row["n"]: row for row in request.receipts}
        for row in request.logs:
            key = protocol.workload_key(row["lease"], row["member"], row["epoch"])
            have = self.logs.get(key, b"")
            if self.ack_logs and row["offset"] == len(have):
                text = row["text"].encode()
                assert len(text) == row["bytes"], "these tests write plain text only"
                self.logs[key] = have + text
        self.changed.notify_all()


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, seal: str) -> None:
    try:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        if seal:
            handler.send_header(protocol.SIGNATURE_HEADER, seal)
        handler.end_headers()
        handler.wfile.write(body)
    except (BrokenPipeError, ConnectionResetError):
        handler.close_connection = True  # the agent has left this request for a newer one
