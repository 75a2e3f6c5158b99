"""What host and server say to each other (AGENT.md section 3): pure values, no framework, used by both sides.

    POST /agent/v1/enrol   EnrolRequest -> EnrolAnswer       (one-time token; everything after it is signed)
    POST /agent/v1/sync    SyncRequest  -> SyncAnswer        (long poll: held until the wanted list moves or `hold_s`)

Every request carries `Gpuyard-Signature: host=..;key=..;boot=..;seq=..;created=..;sig=<base64>`, an Ed25519 signature
over `signed_text(...)`; every answer carries `Gpuyard-Signature: key=..;boot=..;seq=..;sig=..` with the boot and seq of
its request, so that an old answer proves nothing. (boot, seq) only ever grows: a replay is refused.

`desired` is the *full* list of what should run (None: unchanged since `have_generation`), never a command; a lost
message, a restarted agent and a rebooted host need no code of their own.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Self

VERSION = 1
SIGNATURE_HEADER = "Gpuyard-Signature"
MAX_CLOCK_SKEW_S = 300

# Steps of one workload, as the agent sees it. `gone`: nothing of it is left (the acknowledgement of a stop).
STEPS = (
    "absent",
    "resolving",
    "pulling",
    "creating",
    "starting",
    "probing",
    "ready",
    "stopping",
    "cleaning",
    "exited",
    "stuck",
    "gone",
)
RUNNING_STEPS = frozenset({"ready"})

# Why a workload failed: AGENT.md section 11.
# Its dead-man timer ended it, since no answer had renewed it: nobody asked it to end, and it did not end by itself.
NOT_RENEWED = "not_renewed"
FAILURES = (
    "image_not_found", "image_denied", "incompatible", "disk_full", "pull_stalled", "port_exhausted", "cdi_stale",
    "gpu_invisible", "health_failed", "exited_early", "engine_error", "bad_spec", "stale_epoch", "secret_missing",
    NOT_RENEWED,
)  # fmt: skip


class ProtocolError(ValueError):
    """A message that cannot be read; the sentence says which part and what would be right."""


def canonical_json(value: Any) -> bytes:
    """Return the one spelling of a JSON value that hashes and signatures are made over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON, in hex: `spec_hash`, `inventory_hash`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def signed_text(
    *, method: str, path: str, body: bytes, host: str, key: str, boot_no: int, seq: int, created: int
) -> bytes:
    """Return the bytes that a request's signature covers. created: seconds since 1970 by the agent's clock."""
    parts = ["gpuyard-sync-v1", method, path, hashlib.sha256(body).hexdigest(), host, key]
    return "\n".join([*parts, str(boot_no), str(seq), str(created)]).encode()


def answer_text(*, status: int, body: bytes, host: str, boot_no: int, seq: int) -> bytes:
    """Return the bytes that an answer's signature covers."""
    parts = ["gpuyard-answer-v1", str(status), hashlib.sha256(body).hexdigest(), host]
    return "\n".join([*parts, str(boot_no), str(seq)]).encode()


def header_text(**parts: str | int) -> str:
    """Return the value of the signature header: `name=value;...` in the order given."""
    return ";".join(f"{name}={value}" for name, value in parts.items())


def read_header(text: str) -> dict[str, str]:
    """Return the parts of a signature header. Raises ProtocolError if one has no name, or a name comes twice."""
    parts: dict[str, str] = {}
    for part in text.split(";"):
        name, equals, value = part.strip().partition("=")  # base64 ends in "=": only the first one divides
        if not equals or not name or name in parts:
            raise ProtocolError(f"{SIGNATURE_HEADER} cannot be read")
        parts[name] = value
    return parts


def workload_key(lease: str, member: int, epoch: int) -> str:
    """Return the name of one workload in `valid_for_s` and in `acks["logs"]`."""
    return f"{lease}/{member}/{epoch}"


def silent_life_s(*, valid_for_s: int, stop_grace_s: int) -> int:
    """Return how many seconds after an answer nothing of a workload runs any more, if no further answer comes.

    The one sum behind both the agent's dead-man timer and the server's fence (which adds its margin to it).
    """
    return valid_for_s + stop_grace_s


SELFTEST_SIZE = 32


def selftest_proof(*, seed: str, device: str) -> str:
    """Return what a device must answer to a self-test: SHA-256 of a seeded product, in hex.

    Two 32 x 32 matrices of bytes are expanded from the seed (hex) and the device's UUID by SHAKE-128, first A, then B,
    row by row; their product in exact integers is written row by row, each entry as 4 bytes, big-endian. Integers, so
    that every make of GPU, and a plain CPU where devices are simulated, comes to the same bytes.
    """
    size = SELFTEST_SIZE
    stream = hashlib.shake_128(f"gpuyard-selftest-v1\n{seed}\n{device}".encode()).digest(2 * size * size)
    rows = [stream[i : i + size] for i in range(0, size * size, size)]
    columns = [stream[size * size + i :: size] for i in range(size)]
    product = hashlib.sha256()
    for row in rows:
        for column in columns:
            product.update(sum(a * b for a, b in zip(row, column, strict=True)).to_bytes(4, "big"))
    return product.hexdigest()


def scratch_place(lease: str, member: int) -> str:
    """Return what an engine calls the scratch of a member: the same for every epoch."""
    return f"gy-scratch-{re.sub(r'[^A-Za-z0-9_.-]', '-', lease)}-{member}"


class Message:
    """A frozen dataclass that is read from JSON strictly by name and type of its fields, and written back whole.

    LATER: fields that came after the first version. They are left out while they say nothing, so that an agent of a
    version before can read the rest, and refuses only what it cannot do.
    """

    LATER: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Raise ProtocolError when a field is missing, unknown or not of its kind; nested lists stay plain JSON."""
        name = cls.__name__
        if not isinstance(data, dict):
            raise ProtocolError(f"{name} must be an object")
        known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
        for key, value in data.items():
            if key not in known:
                raise ProtocolError(f"{name} has no field {key!r:.40}")
            kind = known[key].metadata.get("kind")
            # bool is an int in Python, and never one here.
            if kind is not None and (
                not isinstance(value, kind) or (isinstance(value, bool) and bool not in _kinds(kind))
            ):
                raise ProtocolError(f"{name}.{key} is a {type(value).__name__}")
        try:
            return cls(**data)
        except TypeError as fault:
            raise ProtocolError(f"{name}: {fault}") from None

    def to_json(self) -> dict[str, Any]:
        whole: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {name: value for name, value in whole.items() if value or name not in self.LATER}


def _kinds(kind: Any) -> tuple[Any, ...]:
    return kind if isinstance(kind, tuple) else (kind,)


def _of(*kind: Any, **options: Any) -> Any:
    return field(metadata={"kind": kind if len(kind) > 1 else kind[0]}, **options)


NONE = type(None)


@dataclass(frozen=True, kw_only=True)
class EnrolRequest(Message):
    token: str = _of(str)
    signing_key: str = _of(str)  # Ed25519 public key, 64 hex digits
    sealing_key: str = _of(str)  # X25519 public key, 64 hex digits
    fingerprint: dict[str, Any] = _of(dict)  # machine_id_hash, dmi_uuid, gpu_uuids, pci_ids
    hostname: str = _of(str)
    simulated: bool = _of(bool, default=False)
    version: str = _of(str, default="")


@dataclass(frozen=True, kw_only=True)
class EnrolAnswer(Message):
    host: str = _of(str)  # public id, host_...
    key: str = _of(str)  # id of the key just registered
    control_keys: list[str] = _of(list)  # Ed25519 public keys, hex: the answer's signature is one of them
    release_key: str = _of(str, default="")  # Ed25519 public key, hex: the root of what signs releases of the agent

    LATER = frozenset({"release_key"})


@dataclass(frozen=True, kw_only=True)
class DesiredWorkload(Message):
    """One container that should run on this host, known by (lease, member, epoch); same epoch, other hash: an error."""

    lease: str = _of(str)  # opaque reference, e.g. lease_01k...
    member: int = _of(int)  # rank in its gang, from 0
    epoch: int = _of(int)  # fence: higher wins; lower is never started
    spec_hash: str = _of(str)
    spec: dict[str, Any] = _of(dict)  # WorkloadSpec as JSON
    valid_for_s: int = _of(int)  # how long it may run on after this answer, if no further one comes
    stop_grace_s: int = _of(int, default=30)
    notice: dict[str, Any] | None = _of(dict, NONE, default=None)  # of an end ahead: cause, ends_at (ISO), detail
    expires_at: str = _of(str, default="")  # ISO; "" while nobody knows an end: GPUYARD_EXPIRES_AT at the start
    sealed: str = _of(str, default="")  # base64: SealedValues, for this host's X25519 key alone

    LATER = frozenset({"notice", "expires_at", "sealed"})


@dataclass(frozen=True, kw_only=True)
class SealedValues(Message):
    """What is sealed to a host for one workload; its names make a value that was moved to another one worthless."""

    lease: str = _of(str)
    member: int = _of(int)
    epoch: int = _of(int)
    secrets: dict[str, str] = _of(dict, default_factory=dict)
    registry: dict[str, str] | None = _of(dict, NONE, default=None)  # username, password: for the pull alone


@dataclass(frozen=True, kw_only=True)
class WorkloadSpec(Message):
    """What to start. Devices by the UUID the driver reports; nothing here may widen what the container can do."""

    image: str = _of(str)
    devices: list[str] = _of(list)  # UUIDs of whole GPUs
    command: list[str] | None = _of(list, NONE, default=None)
    env: dict[str, str] = _of(dict, default_factory=dict)
    ports: list[int] = _of(list, default_factory=list)  # container ports to publish
    cpu_milli: int | None = _of(int, NONE, default=None)
    ram_mib: int | None = _of(int, NONE, default=None)
    disk_mib: int | None = _of(int, NONE, default=None)
    pids: int = _of(int, default=4096)
    shm_mib: int = _of(int, default=64)
    ssh_keys: list[str] = _of(list, default_factory=list)
    rendezvous: dict[str, str] = _of(dict, default_factory=dict)  # MASTER_ADDR, NODE_RANK, ... (AGENT.md section 12)
    units: dict[str, list[int]] = _of(
        dict, default_factory=dict
    )  # device UUID -> [first, end) of eight, when not whole
    secrets: list[str] = _of(list, default_factory=list)  # names whose values come sealed beside the spec
    registry_login: bool = _of(bool, default=False)  # the pull needs what is sealed beside the spec

    health: dict[str, Any] | None = _of(dict, NONE, default=None)  # HealthCheck
    fixed_ports: dict[str, int] = _of(dict, default_factory=dict)  # container port -> the host port it must have
    # {name, place, path, size_mib}: what the engine calls it, where it is seen inside, and how much it may hold.
    volumes: list[dict[str, Any]] = _of(list, default_factory=list)
    read_only: bool = _of(bool, default=False)  # its root file system; /tmp is in memory then, /scratch as ever

    LATER = frozenset({"secrets", "registry_login", "health", "fixed_ports", "volumes", "read_only"})


@dataclass(frozen=True, kw_only=True)
class HealthCheck(Message):
    """How a workload is seen to be well: HTTP on one of its ports (200 to 399), or a command inside that ends with 0.

    It is `ready` when the check has passed once, within start_period_s; afterwards `failures` in a row are unhealthy.
    """

    port: int | None = _of(int, NONE, default=None)
    path: str = _of(str, default="/")
    command: list[str] | None = _of(list, NONE, default=None)
    start_period_s: int = _of(int, default=300)
    interval_s: int = _of(int, default=30)
    timeout_s: int = _of(int, default=5)
    failures: int = _of(int, default=3)


@dataclass(frozen=True, kw_only=True)
class WorkloadReport(Message):
    lease: str = _of(str)
    member: int = _of(int)
    epoch: int = _of(int)
    spec_hash: str = _of(str)
    step: str = _of(str)  # one of STEPS
    detail: str = _of(str, default="")  # for people; at most 500 characters
    failure: str | None = _of(str, NONE, default=None)  # one of FAILURES
    exit_code: int | None = _of(int, NONE, default=None)
    container: str | None = _of(str, NONE, default=None)  # engine's id
    image_digest: str | None = _of(str, NONE, default=None)
    visible_devices: list[str] | None = _of(list, NONE, default=None)  # what the probe inside the container saw
    ports: dict[str, int] = _of(dict, default_factory=dict)  # container port -> host port
    progress: dict[str, Any] = _of(dict, default_factory=dict)  # bytes, total, rate while pulling
    unusable: bool = _of(bool, default=False)  # use was lost (gpu_access_lost, ...): seconds end
    handover: dict[str, Any] | None = _of(dict, NONE, default=None)  # with `gone`: agents.node.cleaning.clean
    unhealthy: str = _of(str, default="")  # what the health check last said, while it fails; ends no seconds
    volumes_mib: dict[str, int] = _of(dict, default_factory=dict)  # what its scratch and volumes hold, by their places

    LATER = frozenset({"unhealthy", "handover", "volumes_mib"})


@dataclass(frozen=True, kw_only=True)
class DeviceReport(Message):
    """One device with its readings; what the driver does not support is None, never 0."""

    uuid: str = _of(str)
    state: str = _of(str, default="ok")  # ok | lost | reset_required | unresponsive
    age_s: int = _of(int, default=0)  # of the readings
    readings: dict[str, Any] = _of(dict, default_factory=dict)
    xids: list[int] = _of(list, default_factory=list)  # since the last accepted sync


@dataclass(frozen=True, kw_only=True)
class SyncRequest(Message):
    boot_no: int = _of(int)  # +1 per start of the agent, kept on disk
    seq: int = _of(int)
    instance: str = _of(str)  # random per process: two agents with one key are seen
    boot_id: str = _of(str)  # the kernel's
    have_generation: int = _of(int)
    workloads: list[dict[str, Any]] = _of(list)  # WorkloadReport, in full
    devices: list[dict[str, Any]] = _of(list)  # DeviceReport, in full
    inventory_hash: str = _of(str)
    inventory: dict[str, Any] | None = _of(dict, NONE, default=None)  # when asked for by `need`
    events: list[dict[str, Any]] = _of(list, default_factory=list)  # {n, kind, detail, ...}
    receipts: list[dict[str, Any]] = _of(list, default_factory=list)
    logs: list[dict[str, Any]] = _of(list, default_factory=list)  # {lease, member, epoch, offset, bytes, text}
    conditions: list[str] = _of(list, default_factory=list)  # driver_mismatch, engine_down, disk_pressure, ...
    version: str = _of(str, default="")
    rss_mib: int | None = _of(int, NONE, default=None)
    probe: str = _of(str, default="ok")


@dataclass(frozen=True, kw_only=True)
class SyncAnswer(Message):
    boot_no: int = _of(int)
    seq: int = _of(int)
    generation: int = _of(int)
    desired: list[dict[str, Any]] | None = _of(list, NONE)  # DesiredWorkload in full; None: unchanged
    valid_for_s: dict[str, int] = _of(
        dict, default_factory=dict
    )  # "lease/member/epoch" -> renewed deadline, always all
    acks: dict[str, Any] = _of(dict, default_factory=dict)  # events: highest n; logs: {"lease/member/epoch": offset}
    need: list[str] = _of(list, default_factory=list)  # "inventory"
    hold_s: int = _of(int, default=5)  # the next request may be held so long
    wait_s: int = _of(int, default=0)  # pause before the next request, where nothing can be held
    suspect_after_s: int = _of(int, default=15)
    silence_limit_s: int = _of(int, default=30)
    server_time: str = _of(str, default="")
    wishes: list[dict[str, Any]] = _of(list, default_factory=list)  # fixed verbs: selftest, collect_logs, diagnose
    # With `desired`: leases that have nothing here to run and whose scratch is to be kept all the same.
    scratch: list[str] = _of(list, default_factory=list)
    # With `desired`: places of volumes that are to be removed; each removal is told by an event. No other is touched.
    drop_volumes: list[str] = _of(list, default_factory=list)

    LATER = frozenset({"scratch", "drop_volumes"})


# The inventory document (hashed as a whole): hostname, os, kernel, simulated, engine {name, version}, driver_version,
# cuda_version "12.4", cpu_count, cpu_model, ram_mib, disk_mib, disk_free_mib, ports [first, end), gpus [{uuid, index,
# name, pci_device_id "10de:20b2", pci_bus_id, memory_mib, compute_capability, nvlink_peers [uuid], mig {...} | null,
# vbios, serial, slug (simulated only)}], toolkit {...} | null.
#
# The readings of one device (DeviceReport.readings; a figure that the driver does not give is left out or null, never
# 0): temperature_c, memory_temperature_c, power_mw, power_limit_mw, power_default_limit_mw, energy_mj,
# utilization_percent, memory_utilization_percent, memory_used_mib, memory_total_mib, sm_clock_mhz, memory_clock_mhz,
# fan_percent, ecc_corrected, ecc_uncorrected, ecc_mode, ecc_pending, rows_remapped_corrected,
# rows_remapped_uncorrected, row_remap_pending, row_remap_failed, retired_pages_pending, recovery_action, slowdown_bits,
# pcie_generation, pcie_width, pcie_width_max, pcie_replays, pcie_tx_bytes, nvlinks_up, compute_mode, persistence,
# mig_mode, processes [{pid, memory_mib}].
#
# An event: {n, kind, at (agent's clock, ISO), detail, ...}; n only grows, and an event is sent until acks["events"] >=
# n. Kinds: xid {xid, device, line}, started, exited {lease, member, epoch, exit_code}, deadline_stop {lease, member,
# epoch}, stuck, adopted, refused_epoch, foreign_use, probe_restarted, agent_started {reason}, orphan_stopped
# {container}.
#
# A volume that was ordered to be removed, and is: {n, kind "volume_gone", place}; told again by each life of the agent
# that is ordered so.
#
# A receipt (AGENT.md section 6): {n, lease, member, epoch, prev, kind start|beat|stop|gap, boot_id, t_boot_s,
# container, image_digest, devices [uuid], energy_mj, busy_s, sig}; sig: base64 Ed25519 over canonical_json of all but
# `sig`; prev: SHA-256 of the canonical JSON of the receipt before it in the same (lease, member, epoch), "" for the
# first; n counts over the host, and a receipt is sent until acks["receipts"] >= n.
#
# acks: {"events": n, "receipts": n, "logs": {workload_key: next offset wanted}}. A workload that is `gone` and no
# longer wanted is reported until one answer to such a report has arrived. A log offset counts bytes of the container's
# output. Refusals are problem documents: 401 agent-clock-skew carries `server_time` (ISO); 409 agent-replay carries
# `boot_no`, the highest the server has accepted. Signatures are standard base64; keys are hex.
#
# A log item may carry `bytes`: how many bytes of output its text stands for, where decoding changed their number;
# without it that is the length of the text in UTF-8. Text never holds a NUL or a lone surrogate (the agent replaces
# them).
#
# A self-test: the wish {verb "selftest", id, level "L0", seed, devices [uuid], answer_within_s} stays in every answer
# until the host has answered it with an event {n, kind "selftest", id, seed, simulated, checks [{check, passed,
# detail}], devices [{uuid, proof, figures {...}}]}, once per id; proof is selftest_proof(seed, uuid), computed on the
# device where the host has the means. Figures, where measured: h2d_mib_per_s, d2h_mib_per_s, memory_mib_per_s,
# fp16_gflops, memory_tested_mib; of a simulated device they are simulated, and the event says so. A device that a
# workload holds is not measured; one that is measured and does not do what it is told has an empty proof and a `fault`
# in words. `host_figures` {disk_write_mib_per_s, disk_read_mib_per_s, control_connect_us} are the machine's own, also
# where its GPUs are simulated. Level L0 asks for no figures. Checks of the agent's own: engine, disk, clock,
# foreign_processes, driver.
#
# An upgrade: the wish {verb "upgrade", id, version, release}; release as agents.release_text has it. Its wheel stands
# at /agent/v1/releases/SHA256. Told of it are upgrade_begun {version}, then upgraded {version} or upgrade_failed
# {version}, the last also by the agent that goes on where the release did not prove itself.
#
# An exec: the wish {verb "exec", id, lease, member, epoch, argv [word], timeout_s, limit_bytes} is a tenant's command
# in his ready workload, done once per id over all lives of the agent, and answered by an event {n, kind "exec", id,
# lease, member, epoch, exit_code | null, output, truncated, failure}. output: what it wrote, errors among it, as text
# without NUL; at most 64 KiB. exit_code null: `failure` says why, or `truncated` (ended for saying too much).
