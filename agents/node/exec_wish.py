"""`gpuyard exec`: a tenant's command inside what he leases here, once, with a limit of time and of output.

It runs as what the container runs as, with nothing that the container lacks. What came of it is an event; whether a
command ran that was begun before the agent died is not known, and is said so: it is never run twice.
"""

import threading
from typing import TYPE_CHECKING, Any

from agents.node.engines import EngineError, NoSuchContainer

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler

MAX_WORDS, MAX_TEXT = 256, 16 * 1024
MAX_TIMEOUT_S, MAX_OUTPUT = 300, 64 * 1024
AT_ONCE = threading.BoundedSemaphore(4)


class BadWish(ValueError):
    """The wish cannot be read."""


def run(reconciler: "Reconciler", wish: dict[str, Any]) -> dict[str, Any]:
    """Return the event that answers the wish: see protocol.py."""
    names = {name: wish.get(name) for name in ("id", "lease", "member", "epoch")}
    try:
        argv, timeout_s, limit = _read(wish)
    except BadWish as fault:
        return names | _failed(str(fault))
    if not reconciler.journal.begin_once(str(wish.get("id"))):
        return names | _failed("the agent was restarted meanwhile; whether the command ran is not known")
    with reconciler.lock:
        named = (w for w in reconciler.workloads.values() if [w.lease, w.member, w.epoch] == list(names.values())[1:])
        workload = next(named, None)
    if workload is None or workload.step != "ready":
        return names | _failed("it does not run here")
    try:
        with AT_ONCE:
            container = workload.container or workload.name
            ran = reconciler.engine.run_inside(container, argv, timeout_s=timeout_s, limit=limit)
    except NoSuchContainer:
        return names | _failed("it does not run here")
    except EngineError as fault:
        return names | _failed(str(fault))
    text = ran.output.decode(errors="replace").replace("\0", "\ufffd")
    failure = f"not over after {timeout_s} s: killed" if ran.timed_out else ""
    return names | {"exit_code": ran.exit_code, "output": text, "truncated": ran.truncated, "failure": failure}


def _failed(why: str) -> dict[str, Any]:
    return {"exit_code": None, "output": "", "truncated": False, "failure": why[:300]}


def _read(wish: dict[str, Any]) -> tuple[list[str], int, int]:
    """Return argv, seconds and bytes. Raises BadWish."""
    argv, timeout_s, limit = wish.get("argv"), wish.get("timeout_s", 60), wish.get("limit_bytes", MAX_OUTPUT)
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
        raise BadWish("argv is a list of words")
    if len(argv) > MAX_WORDS or sum(map(len, argv)) > MAX_TEXT:
        raise BadWish(f"argv has at most {MAX_WORDS} words and {MAX_TEXT} characters")
    if not isinstance(timeout_s, int) or not isinstance(limit, int) or timeout_s < 1 or limit < 1:
        raise BadWish("timeout_s and limit_bytes are whole numbers from 1")
    return argv, min(timeout_s, MAX_TIMEOUT_S), min(limit, MAX_OUTPUT)
