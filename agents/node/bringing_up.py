"""From `absent` to `ready`: resolve, pull, create, start, and look from the inside whether the GPUs are there."""

import threading
import time
from typing import TYPE_CHECKING, Any

from agents import protocol
from agents.node import cleaning, health_check, sealed_values, tenant_files
from agents.node.engines import (
    LABEL_AGENT,
    LABEL_DEVICES,
    LABEL_EPOCH,
    LABEL_HOST,
    LABEL_LEASE,
    LABEL_MEMBER,
    LABEL_SIMULATED,
    LABEL_SPEC,
    Container,
    EngineDown,
    EngineError,
    Login,
    Plan,
    VolumeMount,
)
from agents.node.engines.pulling import repository_of
from agents.node.workload import Workload

if TYPE_CHECKING:
    from agents.node.reconciler import Reconciler

PROBE_FOR_S = 20.0
PROBE_EVERY_S = 0.1
HEALTH_AT_START_S = 0.5
NO_DISK_QUOTA = (
    "the engine's storage cannot keep containers to their share of the disk (overlay2 on xfs with pquota can, and zfs"
    " and btrfs): only disk_pressure protects the host"
)
PULLS_AT_ONCE = threading.BoundedSemaphore(2)
# The tenant's environment may not reach the loader or the driver's hook (AGENT.md section 14).
REFUSED_ENV = ("LD_", "NVIDIA_", "GPUYARD_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


class Cancelled(Exception):
    """The workload is not wanted any more."""


class BringUp:
    """One attempt. `cancel` may be called from another thread; it takes effect before the next step."""

    def __init__(self, reconciler: "Reconciler", workload: Workload) -> None:
        self._r = reconciler
        self._w = workload
        self._cancelled = threading.Event()
        self._spec = protocol.WorkloadSpec.from_json(workload.spec)
        self._told_s = 0.0

    def cancel(self) -> None:
        self._cancelled.set()

    def run(self) -> None:
        """Bring it up, or leave it `exited` with the failure; an engine that is down is tried again later."""
        try:
            self._run()
        except Cancelled:
            return
        except EngineDown as fault:
            self._r.move(self._w, self._w.step, detail=f"the engine does not answer: {fault}")
        except EngineError as fault:
            self._fail(fault.failure, str(fault))

    def _run(self) -> None:
        secrets, login = sealed_values.opened(self._w, self._spec, self._r.unseal)
        digest = self._image(login)
        self._w.image_digest = digest
        self._w.idle_mib = cleaning.idle_memory(self._r, self._w)
        self._step("creating")
        container = self._r.engine.create(self._plan(tenant_files.put(self._r, self._w, self._spec, secrets)))
        self._w.container = container
        if self._spec.disk_mib is not None and self._r.engine.disk_quota is False:
            self._r.say_once("no_disk_quota", NO_DISK_QUOTA)
        self._step("starting")
        if not self._r.heard_lately(self._r.now_s()):
            raise EngineError("engine_error", "the control plane fell silent before the start")
        if not self._r.engine.inspect(container).running:
            self._r.engine.start(container)
        self._w.ports = self._r.engine.ports(container)
        self._step("probing")
        self._probe(container)

    def probe_again(self) -> None:
        """Look from the inside again; lost GPUs end the tenant's seconds (`unusable`)."""
        container = self._w.container or self._w.name
        try:
            seen = self._visible(container)
        except EngineError:
            return
        lost = seen is not None and set(seen) != set(self._w.devices)
        if lost != self._w.unusable:
            self._w.unusable, self._w.visible = lost, seen
            detail = f"sees {len(seen or [])} of {len(self._w.devices)} GPUs from the inside" if lost else ""
            self._r.move(self._w, "ready", detail=detail, failure="gpu_invisible" if lost else None)

    def _image(self, login: Login | None) -> str:
        """Return the image's digest. One that came with a login is there only for who has logged in as well; one that
        came without is there for all."""
        self._step("resolving")
        repository = repository_of(self._spec.image)
        seen_by = self._r.journal.private_to(repository)
        is_ours = not seen_by or self._w.lease in seen_by
        digest = self._r.engine.image_digest(self._spec.image) if is_ours else None
        if digest is not None:
            return digest
        self._step("pulling", detail="waits for another pull to end")
        with PULLS_AT_ONCE:
            self._step("pulling", detail=self._spec.image)
            if login is not None and not seen_by:
                self._r.journal.keep_private(repository, lease="")  # nobody's yet, and private from its first byte
            digest = self._r.engine.pull(self._spec.image, self._progress, login=login)
        if login is not None:
            self._r.journal.keep_private(repository, lease=self._w.lease)
        return digest

    def _progress(self, progress: dict[str, Any]) -> None:
        if self._cancelled.is_set():
            raise Cancelled
        self._w.progress = progress
        if time.monotonic() - self._told_s >= 1.0:
            self._told_s = time.monotonic()
            self._r.told.ring()

    def _probe(self, container: str) -> None:
        """Wait until the container sees exactly its GPUs. Raises EngineError: gpu_invisible or exited_early."""
        deadline = time.monotonic() + PROBE_FOR_S
        seen: list[str] | None = None
        while True:
            state = self._r.engine.inspect(container)
            if not state.running:
                self._ended_early(state)
                return
            try:
                seen = self._visible(container)
            except EngineDown:
                raise
            except EngineError:
                seen = None  # it may end between the look and the exec: the next inspect says so
            if seen is not None and sorted(seen) == sorted(self._w.devices):
                # It may have ended while we looked, or not have begun: neither was ever ready.
                state = self._r.engine.inspect(container)
                if state.running and state.begun:
                    break
            if time.monotonic() > deadline:
                raise self._never_ready(state, seen)
            self._check()
            time.sleep(PROBE_EVERY_S)
        self._w.visible = seen
        if not self._wait_until_healthy(container):
            return
        self._check()
        self._w.progress = {}
        self._r.event(
            "started", f"sees its {len(seen)} GPUs", lease=self._w.lease, member=self._w.member, epoch=self._w.epoch
        )
        self._r.move(self._w, "ready")

    def _never_ready(self, state: Container, seen: list[str] | None) -> EngineError:
        if not state.begun:
            return EngineError("engine_error", f"its program had not begun after {PROBE_FOR_S:.0f} s")
        wanted = ", ".join(self._w.devices)
        return EngineError("gpu_invisible", f"the container sees {seen or 'no GPU'}, and was to see {wanted}")

    def _wait_until_healthy(self, container: str) -> bool:
        """Wait for its health check to pass once; return False if it ended first. Raises EngineError: health_failed."""
        check = health_check.of(self._spec)
        if check is None:
            return True
        deadline = time.monotonic() + check.start_period_s
        while (said := health_check.ask(self._r.engine, container, check)) is not None:
            state = self._r.engine.inspect(container)
            if not state.running:
                self._ended_early(state)
                return False
            if time.monotonic() > deadline:
                raise EngineError("health_failed", f"not well within {check.start_period_s} s: {said}")
            if self._w.detail != said:
                self._step("probing", detail=said)
            self._check()
            time.sleep(min(check.interval_s, HEALTH_AT_START_S))
        return True

    def _visible(self, container: str) -> list[str] | None:
        if not self._w.devices:
            return []
        code, output = self._r.engine.exec(container, self._r.driver.visible_command(), timeout_s=10)
        return self._r.driver.visible_in(output) if code == 0 else None

    def _ended_early(self, state: Container) -> None:
        self._w.exit_code = state.exit_code
        code = state.exit_code
        tail = self._r.engine.logs(state.id, offset=0, limit=4096).decode(errors="replace").strip().splitlines()
        last = f": {tail[-1][:200]}" if tail else ""
        self._fail("exited_early", f"ended with code {code} before it was seen to be ready{last}", keep=True)

    def _fail(self, failure: str, detail: str, *, keep: bool = False) -> None:
        """Leave it `exited`. keep: the container stays, for its logs; else nothing of it stays."""
        if not keep:
            try:
                self._r.engine.stop(self._w.name, grace_s=self._w.stop_grace_s)
                self._r.engine.remove(self._w.name)
            except EngineError as fault:
                detail = f"{detail}; and then: {fault}"
        self._w.progress = {}
        self._r.move(self._w, "exited", detail=detail, failure=failure)

    def _step(self, step: str, *, detail: str = "") -> None:
        self._check()
        self._r.move(self._w, step, detail=detail)

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def _plan(self, files: tenant_files.Put) -> Plan:
        spec, workload, driver = self._spec, self._w, self._r.driver
        tenant = {name: value for name, value in spec.env.items() if not name.startswith(REFUSED_ENV)}
        mounts = [VolumeMount(v["place"], v["path"], v["size_mib"]) for v in spec.volumes]
        lease = {
            "GPUYARD_LEASE": workload.lease,
            "GPUYARD_MEMBER": str(workload.member),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            **files.platform_env,
            "GPUYARD_SCRATCH": self._r.engine.scratch_inside(workload.scratch),
            **{
                f"GPUYARD_VOLUME_{volume['name'].upper().replace('-', '_')}": self._seen_at(mount)
                for volume, mount in zip(spec.volumes, mounts, strict=True)
            },
        }
        labels = {
            LABEL_HOST: self._r.host,
            LABEL_LEASE: workload.lease,
            LABEL_MEMBER: str(workload.member),
            LABEL_EPOCH: str(workload.epoch),
            LABEL_SPEC: workload.spec_hash,
            LABEL_DEVICES: ",".join(spec.devices),
            LABEL_AGENT: str(protocol.VERSION),
        }
        if driver.simulated:
            labels[LABEL_SIMULATED] = "1"
        return Plan(
            name=workload.name,
            image=spec.image,
            labels=labels,
            env={**files.tenant_env, **tenant, **spec.rendezvous, **lease, **driver.environment(spec.devices)},
            devices=spec.devices,
            command=spec.command,
            ports=spec.ports,
            port_range=self._r.port_range,
            cpu_milli=spec.cpu_milli,
            ram_mib=spec.ram_mib,
            disk_mib=spec.disk_mib,
            pids=spec.pids,
            shm_mib=spec.shm_mib,
            read_only=spec.read_only,
            device_requests=driver.device_requests(spec.devices),
            fixed_ports={int(port): outside for port, outside in spec.fixed_ports.items()},
            device_nodes=driver.device_nodes(spec.devices),
            files=files.folder,
            scratch=workload.scratch,
            volumes=mounts,
        )

    def _seen_at(self, mount: VolumeMount) -> str:
        """Return where a container sees a volume: at its path, or where nothing is mounted, on the host."""
        return mount.path if self._r.engine.mounts else self._r.engine.scratch_inside(mount.place)
