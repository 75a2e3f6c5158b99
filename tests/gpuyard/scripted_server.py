"""A real HTTP server on loopback that answers what a test tells it to, and remembers what it was asked."""

import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: Any


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: Any = None  # JSON, or bytes as they are
    headers: dict[str, str] = field(default_factory=dict)
    broken: bool = False  # hang up without an answer


def problem(status: int, slug: str, *, headers: dict[str, str] | None = None, **members: Any) -> Answer:
    body = {"type": f"https://gpuyard.example/problems/{slug}", "title": slug, "status": status, **members}
    return Answer(status, body, {"Content-Type": "application/problem+json", **(headers or {})})


Script = Answer | Callable[[Asked], Answer]


class ScriptedServer:
    """`on` sets the answers to one route in order; the last of them is repeated. `asked` is what came in."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.url = ""
        self._scripts: dict[tuple[str, str], list[Script]] = defaultdict(list)
        self._lock = threading.Lock()

    def on(self, method: str, path: str, *answers: Script | dict[str, Any]) -> None:
        scripts = [Answer(body=answer) if isinstance(answer, dict) else answer for answer in answers]
        self._scripts[method, "/api/v1" + path] = scripts

    def requests(self, method: str, path: str) -> list[Asked]:
        return [asked for asked in self.asked if (asked.method, asked.path) == (method, "/api/v1" + path)]

    def answer(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            scripts = self._scripts.get((asked.method, asked.path))
            if not scripts:
                return problem(404, "not-found", detail=f"The test answers no {asked.method} {asked.path}.")
            script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        return script(asked) if callable(script) else script


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what went wrong, but not that a client went away: tests do that on purpose."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            url = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = scripted.answer(
                Asked(
                    self.command,
                    url.path,
                    dict(parse_qsl(url.query, keep_blank_values=True)),
                    {name.lower(): value for name, value in self.headers.items()},
                    json.loads(raw) if raw else None,
                )
            )
            if answer.broken:
                self.close_connection = True
                return
            content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            content = b"" if answer.status in (204, 304) else content
            self.send_response(answer.status)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815 -- http.server looks for these names

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: the test's own output is what counts."""

    http = _Server(("127.0.0.1", 0), Handler)
    scripted.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield scripted
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def lease(state: str = "pending", **members: Any) -> dict[str, Any]:
    """Return a lease as the server sends it."""
    return {
        "id": "lease_01k00000000000000000000001",
        "version": 1,
        "state": state,
        "request": "A100_80G x4",
        "image": "pytorch_latest",
        "term": {"kind": "on_demand"},
        "name": None,
        "labels": {},
        "created_at": "2026-11-30T12:00:00Z",
        "state_since": "2026-11-30T12:00:00Z",
        "ended_at": None,
        "end_reason": None,
        "actions": ["cancel"],
        "why_waiting": None,
        "queue_place": None,
        "eta": None,
        "price": {"amount": "12.500000", "currency": "XTS", "per": "gpu_hour"},
        "cost": {"billable_seconds": 0, "charged": {"amount": "0.000000", "currency": "XTS"}, "running": False},
        "members": [],
        "simulated": True,
        **members,
    }
