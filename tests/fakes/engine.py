"""FE: a container engine's API on a UNIX socket that misbehaves on demand: what a real one does only on a bad day."""

import json
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

Answer = tuple[int, Any]


class FakeEngine:
    """answers: method and path (without version) -> what to do with the handler; anything else is a 404."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[str] = []
        self.answers: dict[str, Callable[[Handler], None]] = {
            "GET /version": json_answer({"Version": "1", "ApiVersion": "1.41", "Components": []}),
            "GET /info": json_answer({}),
            "GET /networks": json_answer([]),
        }
        engine = self

        class Bound(Handler):
            fake = engine

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        self._server = Server(str(path), Bound)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    fake: FakeEngine

    def handle_any(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        name = f"{self.command} {path.removeprefix('/v1.41')}"
        self.fake.calls.append(name)
        self.fake.answers.get(name, json_answer({"message": "no such thing"}, status=404))(self)

    do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 -- the names are http.server's

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: Any) -> None:
        return


def json_answer(body: Any, *, status: int = 200) -> Callable[[Handler], None]:
    raw = json.dumps(body).encode()

    def answer(handler: Handler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    return answer


def lines(*rows: Any, then_s: float = 0) -> Callable[[Handler], None]:
    """Write one JSON value a line, then stay silent for `then_s` before the end."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for row in rows:
            handler.wfile.write(json.dumps(row).encode() + b"\n")
            handler.wfile.flush()
        time.sleep(then_s)

    return answer
