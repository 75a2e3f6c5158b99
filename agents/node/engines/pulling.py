"""Fetching an image: progress in bytes, an end when nothing moves, three tries, and why it failed in one word."""

import base64
import json
import time
from typing import Any

from agents.node.engines import EngineDown, EngineError, Login, NoSuchContainer, Progress
from agents.node.engines.unix_http import Refusal, StillSilent, UnixHttp

NO_PROGRESS_S = 120.0
TRIES = 3


class Stalled(Exception):
    """No byte and no new state of a layer for NO_PROGRESS_S."""


def pull(
    http: UnixHttp, image: str, progress: Progress, *, login: Login | None = None, no_progress_s: float = NO_PROGRESS_S
) -> None:
    """Fetch `image`, or raise EngineError: image_not_found, image_denied, disk_full, pull_stalled.

    login: goes to the engine with this one request, which hands it to the registry and keeps it nowhere.
    """
    for left in reversed(range(TRIES)):
        try:
            return _once(http, image, progress, login=login, no_progress_s=no_progress_s)
        except (Stalled, StillSilent):
            if left == 0:
                raise EngineError(
                    "pull_stalled", f"{image}: no progress for {no_progress_s:.0f} s, {TRIES} times"
                ) from None
    return None


def split(image: str) -> tuple[str, str]:
    """Return (name, tag or digest) of a reference; without either the engine would fetch every tag there is."""
    name, at, digest = image.partition("@")
    if at:
        return name, digest
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return f"{head}{slash}{last}", tag or "latest"


def repository_of(image: str) -> str:
    """Return the name of a reference without its tag or digest."""
    return split(image)[0]


def _once(http: UnixHttp, image: str, progress: Progress, *, login: Login | None, no_progress_s: float) -> None:
    name, tag = split(image)
    query = {"fromImage": name, "tag": tag}
    try:
        headers = _login_header(login, name) if login is not None else {}
        with http.stream("POST", "/images/create", query=query, headers=headers, timeout_s=no_progress_s) as answer:
            meter = _Meter(progress)
            for line in answer.lines():
                if "error" in line:
                    raise EngineError(failure_of(str(line["error"])), str(line["error"])[:400])
                meter.take(line)
                if time.monotonic() - meter.moved_s > no_progress_s:
                    raise Stalled
    except NoSuchContainer as fault:
        raise EngineError("image_not_found", str(fault)) from None
    except EngineDown:
        raise  # also StillSilent: the one is tried again by the next look, the other here
    except Refusal as fault:
        raise EngineError(failure_of(str(fault)), f"{image}: {fault}") from None


def _login_header(login: Login, name: str) -> dict[str, str]:
    server = name.partition("/")[0]
    said = {"username": login.username, "password": login.password, "serveraddress": server}
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(said).encode()).decode()}


class _Meter:
    """Adds up the layers. moved_s: when last a byte came or a layer changed its state."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._layers: dict[str, tuple[str, int, int]] = {}
        self._began_s = self.moved_s = time.monotonic()

    def take(self, line: dict[str, Any]) -> None:
        layer, detail = str(line.get("id", "")), line.get("progressDetail") or {}
        known = self._layers.get(layer, ("", 0, 0))
        # Extraction counts its bytes from zero again: only the download is counted.
        downloading = line.get("status") == "Downloading"
        current = int(detail.get("current") or 0) if downloading else known[1]
        total = max(known[2], int(detail.get("total") or 0)) if downloading else known[2]
        moved = (str(line.get("status", "")), int(detail.get("current") or 0))
        if (known[0], known[1]) != moved or not downloading:
            self.moved_s = time.monotonic()
        self._layers[layer] = (moved[0], current, total)
        done = sum(row[1] for row in self._layers.values())
        elapsed_s = max(0.001, time.monotonic() - self._began_s)
        whole = sum(row[2] for row in self._layers.values())
        self._progress({"bytes": done, "total": whole, "rate": int(done / elapsed_s), "layers": len(self._layers)})


def failure_of(message: str) -> str:
    """Return which of protocol.FAILURES a registry's or engine's sentence means."""
    words = message.lower()
    if "no space left" in words:
        return "disk_full"
    if "manifest unknown" in words or "not found" in words or "no such image" in words:
        return "image_not_found"
    if "denied" in words or "unauthorized" in words or "authentication required" in words or "no basic auth" in words:
        return "image_denied"
    if "no matching manifest" in words:
        return "incompatible"
    return "engine_error"
