"""Stripe on this machine: an HTTP server that keeps its own record and answers in the shapes of its API reference."""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KINDS = {"/v1/payment_intents": "payment_intent", "/v1/refunds": "refund", "/v1/transfers": "transfer"}
PREFIXES = {"payment_intent": "pi", "refund": "re", "transfer": "tr"}


class FakeStripe(ThreadingHTTPServer):
    """`faults` of the next calls: "drop" (does it, and hangs up), 500 (does nothing), "declined", "pending"."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.faults: list[Any] = []
        self.objects: list[dict[str, Any]] = []
        self.kept: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str, dict[str, str], str]] = []
        self.counter = itertools.count(1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def intent(self, ref: str) -> dict[str, Any]:
        return next(found for found in self.made("payment_intent") if found["id"] == ref)

    def pay(self, ref: str) -> None:
        """The payer confirms it, at the provider's own page."""
        self.intent(ref).update(status="succeeded", amount_received=self.intent(ref)["amount"])

    def made(self, kind: str) -> list[dict[str, Any]]:
        return [found for found in self.objects if found["object"] == kind]


class _Handler(BaseHTTPRequestHandler):
    server: FakeStripe

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.server.calls.append(("GET", parts.path, asked, ""))
        if parts.path.startswith("/v1/payment_intents/pi_"):
            self._answer(200, self.server.intent(parts.path.split("/")[3]))
            return
        kind = KINDS[parts.path.removesuffix("/search")]
        found = self.server.made(kind)
        if "transfer_group" in asked:
            found = [row for row in found if row["transfer_group"] == asked["transfer_group"]]
        if "query" in asked:
            found = [row for row in found if f"'{row['metadata']['key']}'" in asked["query"]]
        if "payment_intent" in asked:
            found = [row for row in found if row["payment_intent"] == asked["payment_intent"]]
        self._answer_page(found[::-1], asked)

    def _answer_page(self, found: list[dict[str, Any]], asked: dict[str, str]) -> None:
        """Newest first, `limit` (10) of them, after the one that `starting_after` names."""
        if "starting_after" in asked:
            found = found[[row["id"] for row in found].index(asked["starting_after"]) + 1 :]
        limit = int(asked.get("limit", 10))
        self._answer(200, {"object": "list", "data": found[:limit], "has_more": len(found) > limit})

    def do_POST(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        form = {name: values[0] for name, values in body.items()}
        key = self.headers["Idempotency-Key"]
        self.server.calls.append(("POST", self.path, form, key))
        fault = self.server.faults.pop(0) if self.server.faults else None
        if fault == 500:
            self._answer(500, {"error": {"type": "api_error", "message": "try again"}})
            return
        if fault == "declined":
            self._answer(402, {"error": {"type": "card_error", "code": "card_declined", "message": "declined"}})
            return
        if self.path.endswith("/cancel"):
            self._cancel(self.server.intent(self.path.split("/")[3]))
            return
        status = "processing" if fault == "pending" else "succeeded"
        made = self.server.kept.get(key) or self._make(form, status if "confirm" in form else None)
        self.server.kept[key] = made
        if fault == "drop":
            self.close_connection = True
            return
        self._answer(200, made)

    def _cancel(self, intent: dict[str, Any]) -> None:
        if intent["status"] == "succeeded":
            self._answer(400, {"error": {"type": "invalid_request_error", "code": "payment_intent_unexpected_state"}})
            return
        intent["status"] = "canceled"
        self._answer(200, intent)

    def _make(self, form: dict[str, str], status: str | None) -> dict[str, Any]:
        kind = KINDS[self.path]
        made: dict[str, Any] = {
            "id": f"{PREFIXES[kind]}_{next(self.server.counter)}", "object": kind, "amount": int(form["amount"]),
            "currency": form.get("currency", "usd"), "metadata": {"key": form["metadata[key]"]},
        }  # fmt: skip
        if kind == "payment_intent" and status is None:  # for its payer to confirm
            made["metadata"]["payment"] = form["metadata[payment]"]
            made |= {"client_secret": f"{made['id']}_secret_x", "amount_received": 0}
            status = "requires_payment_method"
        if kind == "transfer":
            made |= {"destination": form["destination"], "transfer_group": form["transfer_group"], "reversed": False}
        else:
            made |= {"status": status or "succeeded"}
        if kind == "refund":
            made |= {"payment_intent": form["payment_intent"]}
        self.server.objects.append(made)
        return made

    def _answer(self, status: int, said: dict[str, Any]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running() -> Iterator[FakeStripe]:
    server = FakeStripe()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
