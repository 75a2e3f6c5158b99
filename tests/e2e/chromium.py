"""Chromium without a head, steered over a pipe by its own protocol (CDP): no driver and no further package."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WITHIN_S = 30.0


class Page:
    """One tab. Addresses are opened to the end of loading; what scripts of the page complain of stands in `faults`."""

    def __init__(self, send: Callable[[str, dict[str, Any]], dict[str, Any]], faults: list[str]) -> None:
        self.send, self.faults = send, faults

    def open(self, address: str) -> None:
        self.send("Page.navigate", {"url": address})
        self.wait("document.readyState == 'complete'")

    def run(self, script: str) -> Any:
        done = self.send("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in done:
            raise AssertionError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a condition in the page's language holds, over navigations."""
        ends_at = time.monotonic() + WITHIN_S
        while time.monotonic() < ends_at:
            try:
                if self.run(f"Boolean({condition})"):
                    return
            except (AssertionError, Refused):
                pass  # between two documents
            time.sleep(0.05)
        raise AssertionError(f"never came true: {condition}; at {self.run('location.href')}: {self.text()[:400]}")

    def fill(self, **values: str) -> None:
        for name, value in values.items():
            self.run(f"document.querySelector('[name={name}]').value = {json.dumps(value)}")

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def at(self) -> str:
        return str(self.run("location.pathname"))

    def picture(self, path: Path, *, width: int = 1280, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", size)
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", {"format": "png"})["data"]))

    def add_authenticator(self) -> str:
        """Plug in a security key that holds passkeys and whose owner always says yes."""
        self.send("WebAuthn.enable", {})
        options = {
            "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True,
            "isUserVerified": True, "automaticPresenceSimulation": True,
        }  # fmt: skip
        added = self.send("WebAuthn.addVirtualAuthenticator", {"options": options})
        return str(added["authenticatorId"])


class Refused(Exception):
    """Chromium has refused a command."""


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Start chromium with an empty profile and give its tab."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    flags = [
        "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-dev-shm-usage", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(
        ["/bin/bash", "-c", script, str(PROGRAM), *flags],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        with os.fdopen(ours_out, "wb") as to, os.fdopen(ours_in, "rb") as said:
            yield _first_page(_Talk(to, said))
    finally:
        process.terminate()
        process.wait(20)


class _Talk:
    def __init__(self, to: Any, said: Any) -> None:
        self.to, self.said, self.last, self.faults = to, said, 0, list[str]()

    def send(self, method: str, values: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self.last += 1
        message: dict[str, Any] = {"id": self.last, "method": method, "params": values}
        if session:
            message["sessionId"] = session
        self.to.write(json.dumps(message).encode() + b"\0")
        self.to.flush()
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise Refused(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self._note(answer)

    def _read(self) -> bytes:
        text = bytearray()
        while (byte := self.said.read(1)) != b"\0":
            if not byte:
                raise AssertionError("chromium has ended")
            text += byte
        return bytes(text)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Log.entryAdded":
            entry = event["params"]["entry"]
            if entry["level"] == "error" and entry["source"] != "intervention":  # the browser's own act, no fault
                self.faults.append(entry["text"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.faults.append(event["params"]["exceptionDetails"]["text"])
        if event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] == "error":
            self.faults.append(str(event["params"]["args"]))


def _first_page(talk: _Talk) -> Page:
    target = talk.send("Target.createTarget", {"url": "about:blank"})["targetId"]
    session = talk.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
    page = Page(lambda method, values: talk.send(method, values, session), talk.faults)
    for domain in ("Page", "Runtime", "Log"):
        page.send(f"{domain}.enable", {})
    return page
