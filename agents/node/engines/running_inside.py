"""Part of DockerEngine: a tenant's own command inside his running container, with a limit of time and of output."""

import threading
from pathlib import Path
from typing import Any

from agents.node.engines import EngineDown, NoSuchContainer, Ran
from agents.node.engines.unix_http import Refusal, UnixHttp

KILL_S = 10.0


class RunningInside:
    _http: UnixHttp

    def _call(self, method: str, target: str, **options: Any) -> Any:
        raise NotImplementedError

    def exec(self, container: str, argv: list[str], *, timeout_s: float) -> tuple[int, str]:
        raise NotImplementedError

    def run_inside(self, container: str, argv: list[str], *, timeout_s: float, limit: int) -> Ran:
        wanted = {"Cmd": argv, "AttachStdout": True, "AttachStderr": True}
        try:
            made = self._call("POST", f"/containers/{container}/exec", body=wanted)["Id"]
            output, is_late = self._read(made, timeout_s=timeout_s, limit=limit)
        except Refusal as refusal:
            if "not running" in str(refusal):
                raise NoSuchContainer(str(refusal)) from None
            return Ran(exit_code=_code(126, str(refusal).encode()), output=str(refusal).encode()[:limit])
        state = self._call("GET", f"/exec/{made}/json")
        if state.get("Running"):
            self._kill(container, state.get("Pid"))
        return Ran(
            exit_code=None if state.get("Running") else _code(state.get("ExitCode"), output),
            output=output[:limit],
            truncated=len(output) > limit,
            timed_out=is_late,
        )

    def _read(self, made: str, *, timeout_s: float, limit: int) -> tuple[bytes, bool]:
        """Return the output, a little over `limit` where there is more, and whether time ran out."""
        late = threading.Event()
        output = bytearray()
        start = {"Detach": False, "Tty": False}
        with self._http.stream("POST", f"/exec/{made}/start", body=start, timeout_s=timeout_s + KILL_S) as answer:

            def end() -> None:
                late.set()
                answer.interrupt()

            timer = threading.Timer(timeout_s, end)
            timer.start()
            try:
                for piece in answer.frames():
                    output += piece
                    if len(output) > limit:
                        break
            except EngineDown:
                if not late.is_set():
                    raise
            finally:
                timer.cancel()
        return bytes(output), late.is_set()

    def _kill(self, container: str, pid: int | None) -> None:
        """Kill what still runs. An engine has no verb for it, so it is done from the inside, by the pid that it has
        there; where the image has no shell, it runs on until the container ends."""
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return
        inner = next((line.split()[-1] for line in lines if line.startswith("NSpid:")), "")
        if inner:
            self.exec(container, ["sh", "-c", f"kill -9 {inner}"], timeout_s=KILL_S)


def _code(code: int | None, output: bytes) -> int | None:
    """Return 127 for a program that is not there: some engines call that 126, and say it in words."""
    missing = any(words in output for words in (b"executable file not found", b"no such file or directory"))
    return 127 if code == 126 and missing else code
