"""A Docker-compatible engine over its UNIX socket (Docker 20.10 or newer; podman's compatible API)."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from agents.node.engines import (
    LABEL_HOST,
    LABEL_SPEC,
    Container,
    EngineDown,
    EngineError,
    Login,
    NoSuchContainer,
    Plan,
    Progress,
    container_processes,
    refusals,
)
from agents.node.engines.belongings import Belongings
from agents.node.engines.container_body import container_body
from agents.node.engines.following import Following
from agents.node.engines.pulling import pull
from agents.node.engines.running_inside import RunningInside
from agents.node.engines.unix_http import Refusal, UnixHttp

NEWEST_API = (1, 45)  # newer ones may change what we rely on; every engine still answers this one
KILL_WAIT_S = 60.0
CREATE_TIMEOUT_S = 60.0
EVENTS_AGAIN_S = 5.0


class DockerEngine(Belongings, RunningInside):
    """The Engine behind a UNIX socket. It is asked for its version when first used, and again after it was away."""

    mounts = True

    def __init__(self, socket_path: str, *, host: str | None = None) -> None:
        self._http = UnixHttp(socket_path)
        self._about: dict[str, Any] | None = None
        self._logs: dict[str, Following] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.name = "docker"
        self.disk_quota: bool | None = None

    def version(self) -> str:
        return str(self._known()["Version"])

    def runc_version(self) -> str:
        """Return the version of runc beneath the engine, "" if it does not say."""
        return str(self._known()["runc"])

    def image_digest(self, image: str) -> str | None:
        try:
            found = self._call("GET", f"/images/{quote(image, safe='/:@')}/json")
        except NoSuchContainer:
            return None
        digests = found.get("RepoDigests") or []
        return str(digests[0].rpartition("@")[2] if digests else found["Id"])

    def pull(self, image: str, progress: Progress, *, login: Login | None = None) -> str:
        self._known()
        pull(self._http, image, progress, login=login)
        digest = self.image_digest(image)
        if digest is None:
            raise EngineError("image_not_found", f"{image} is not there after its pull")
        return digest

    def remove_images(self, repository: str) -> None:
        filters = json.dumps({"reference": [repository]})
        for row in self._call("GET", "/images/json", query={"filters": filters}):
            untagged = [f"{repository}@{row['Id']}"] if not row.get("RepoDigests") else []
            for name in [*(row.get("RepoTags") or []), *(row.get("RepoDigests") or untagged)]:
                if name.rpartition("@")[0] == repository or name.rpartition(":")[0] == repository:
                    with contextlib.suppress(NoSuchContainer):  # it went with another of its names
                        self._call("DELETE", f"/images/{quote(name, safe='/:@')}", timeout_s=CREATE_TIMEOUT_S)

    def create(self, plan: Plan) -> str:
        about = self._known()
        image = self._call("GET", f"/images/{quote(plan.image, safe='/:@')}/json")
        body = container_body(
            plan,
            image_user=str((image.get("Config") or {}).get("User") or ""),
            user_namespaces=about["user_namespaces"],
            init=about["init"],
            nofile_limit=about["nofile_limit"],
        )
        self.make_network(plan)
        for volume in plan.volumes:
            self.make_volume(volume, host=plan.labels.get(LABEL_HOST, ""))
        if plan.read_only:
            self.open_beside(plan, body)
        made = self._create(plan, body)
        if not plan.read_only:
            self.open_all(plan, made)
        return made

    def _create(self, plan: Plan, body: dict[str, Any]) -> str:
        if plan.disk_mib is not None and self.disk_quota is not False:
            body["HostConfig"]["StorageOpt"] = {"size": f"{plan.disk_mib}M"}
        try:
            made = self._call(
                "POST", "/containers/create", query={"name": plan.name}, body=body, timeout_s=CREATE_TIMEOUT_S
            )
        except Refusal as refusal:
            if refusal.status == 409:
                return self._adopt(plan)
            if "StorageOpt" in body["HostConfig"] and refusals.has_no_quota(str(refusal)):
                self.disk_quota = False
                del body["HostConfig"]["StorageOpt"]
                return self._create(plan, body)
            raise EngineError(refusals.failure_of(str(refusal), "bad_spec"), str(refusal)) from None
        if "StorageOpt" in body["HostConfig"]:
            self.disk_quota = True
        return str(made["Id"])

    def _adopt(self, plan: Plan) -> str:
        """Return the container that has the name already, if it was made from the same spec."""
        there = self._call("GET", f"/containers/{plan.name}/json")
        if (there["Config"].get("Labels") or {}).get(LABEL_SPEC) != plan.labels[LABEL_SPEC]:
            raise EngineError("engine_error", f"a container {plan.name} exists, made from something else")
        return str(there["Id"])

    def start(self, container: str) -> None:
        container_processes.end(container, within_s=KILL_WAIT_S)  # of a start that the engine has forgotten
        try:
            self._call("POST", f"/containers/{container}/start", timeout_s=CREATE_TIMEOUT_S)
        except Refusal as refusal:
            raise EngineError(refusals.failure_of(str(refusal), "exited_early"), str(refusal)) from None

    def containers(self, host: str) -> list[Container]:
        filters = json.dumps({"label": [f"{LABEL_HOST}={host}"]})
        rows = self._call("GET", "/containers/json", query={"all": "1", "filters": filters})
        found = []
        for row in rows:
            if row["State"] == "running":
                name = row["Names"][0].lstrip("/")
                found.append(Container(id=row["Id"], name=name, labels=row["Labels"], running=True))
                continue
            try:
                found.append(self.inspect(row["Id"]))
            except NoSuchContainer:
                continue  # removed between the two calls
        return found

    def inspect(self, container: str) -> Container:
        row = self._call("GET", f"/containers/{container}/json")
        state = row["State"]
        running = bool(state["Running"]) and not state.get("Dead")
        started = state["Status"] != "created"
        return Container(
            id=row["Id"],
            name=row["Name"].lstrip("/"),
            labels=row["Config"].get("Labels") or {},
            running=running,
            exit_code=None if running or not started else state["ExitCode"],
            pid=state.get("Pid") or None,
            detail="killed for memory" if state.get("OOMKilled") else str(state.get("Error") or ""),
            begun=not running or container_processes.has_begun(state.get("Pid") or None),
        )

    def exec(self, container: str, argv: list[str], *, timeout_s: float) -> tuple[int, str]:
        wanted = {"Cmd": argv, "AttachStdout": True, "AttachStderr": False}
        try:
            made = self._call("POST", f"/containers/{container}/exec", body=wanted)["Id"]
            start = {"Detach": False, "Tty": False}
            with self._http.stream("POST", f"/exec/{made}/start", body=start, timeout_s=timeout_s) as answer:
                output = b"".join(answer.frames())
        except Refusal as refusal:
            if "not running" in str(refusal):
                raise NoSuchContainer(str(refusal)) from None
            # An engine says in words that the program is not in the image.
            return (127, "") if "not found" in str(refusal) or "no such file" in str(refusal) else (126, str(refusal))
        code = self._call("GET", f"/exec/{made}/json").get("ExitCode")
        return (126 if code is None else int(code)), output.decode(errors="replace")

    def stop(self, container: str, *, grace_s: int) -> bool:
        before = self.inspect(container)
        if not before.running:
            return container_processes.end(before.id, within_s=KILL_WAIT_S)
        try:
            self._call("POST", f"/containers/{container}/stop", query={"t": grace_s}, timeout_s=grace_s + KILL_WAIT_S)
        except Refusal as refusal:
            # It could not be killed in the engine's own time: what counts is whether it ends within ours.
            if not refusals.cannot_be_killed(str(refusal)):
                raise
        return self._ends(before, within_s=KILL_WAIT_S)

    def remove(self, container: str) -> None:
        with self._lock:
            following = self._logs.pop(container, None)
        if following is not None:
            following.stop()
        try:
            self._call("DELETE", f"/containers/{container}", query={"v": "1", "force": "1"}, timeout_s=CREATE_TIMEOUT_S)
        except Refusal as refusal:
            if refusal.status != 409:  # its removal is under way
                raise

    def logs(self, container: str, *, offset: int, limit: int) -> bytes:
        state = self.inspect(container)
        is_over = not state.running and state.exit_code is not None
        with self._lock:
            following = self._logs.get(state.id)
            # One that was opened before the end may have ended before it too: a container that is not started yet has
            # no more to say than one that is over, and an engine that dies ends every stream.
            if following is None or not following.covers(offset) or (following.ended and not following.to_the_end):
                if following is not None:
                    following.stop()
                following = Following(lambda: self._open_log(state.id), offset=offset, to_the_end=is_over)
                self._logs[state.id] = following
        if is_over:
            following.wait_for_end()
        return following.read(offset=offset, limit=limit)

    def ports(self, container: str) -> dict[str, int]:
        bound = self._call("GET", f"/containers/{container}/json")["NetworkSettings"].get("Ports") or {}
        return {name.partition("/")[0]: int(rows[0]["HostPort"]) for name, rows in bound.items() if rows}

    def address(self, container: str, port: int) -> tuple[str, int]:
        networks = self._call("GET", f"/containers/{container}/json")["NetworkSettings"].get("Networks") or {}
        for network in networks.values():
            if network.get("IPAddress"):
                return str(network["IPAddress"]), port
        raise NoSuchContainer(f"{container} has no address: it does not run")

    def watch(self, ring: Callable[[], None]) -> None:
        threading.Thread(target=self._listen, args=(ring,), name="engine-events", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _listen(self, ring: Callable[[], None]) -> None:
        filters = json.dumps({"type": ["container"], "event": ["die", "destroy", "oom"]})
        while not self._closed.is_set():
            try:
                with self._http.stream("GET", "/events", query={"filters": filters}, timeout_s=3600) as answer:
                    ring()
                    for _ in answer.lines():
                        ring()
            except EngineError:
                self._about = None
            ring()
            self._closed.wait(EVENTS_AGAIN_S)

    def _open_log(self, container: str) -> Any:
        query = {"follow": "1", "stdout": "1", "stderr": "1"}
        return self._http.stream("GET", f"/containers/{container}/logs", query=query, timeout_s=24 * 3600)

    def _ends(self, container: Container, *, within_s: float) -> bool:
        """Return whether the container has ended by the engine's word and by the kernel's."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                running = self.inspect(container.id).running
            except NoSuchContainer:
                running = False
            if not running and not container_processes.is_alive(container.pid):
                return container_processes.end(container.id, within_s=max(0, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)

    def _known(self) -> dict[str, Any]:
        """Return what the engine says of itself, asked once."""
        if self._about is None:
            self._http.prefix = ""
            about = self._http.call("GET", "/version")
            api = tuple(int(part) for part in about["ApiVersion"].split("."))
            self._http.prefix = "/v{}.{}".format(*min(api, NEWEST_API))
            parts = {part["Name"]: part for part in about.get("Components") or []}
            self.name = "podman" if any("podman" in name.lower() for name in parts) else "docker"
            options = self._http.call("GET", "/info").get("SecurityOptions") or []
            self._about = {
                "Version": about["Version"],
                "runc": parts.get("runc", {}).get("Version", ""),
                "init": "docker-init" in parts,
                "nofile_limit": self._http.nofile_limit(),
                "user_namespaces": any("name=userns" in option or "name=rootless" in option for option in options),
            }
        return self._about

    def _call(self, method: str, target: str, **options: Any) -> Any:
        self._known()
        try:
            return self._http.call(method, target, **options)
        except EngineDown:
            self._about = None
            raise
