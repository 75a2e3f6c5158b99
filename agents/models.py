"""Machines: hosts, their devices, and what should run on them. No model here knows what a lease is."""

from django.db import models
from django.db.models import Q

from agents.execution_records import Execution
from agents.host_volumes import HostVolume
from agents.machine_records import Handover, MachineAccess, Maintenance
from agents.measurement_records import MeasuredMinute
from agents.port_records import PortCheck
from agents.records import (
    Alarm,
    CapacityChange,
    CleaningRecord,
    Enrolment,
    HostEvent,
    LogChunk,
    Receipt,
    ScoreEntry,
    SelfTest,
    Sweep,
)
from agents.release_records import AgentRelease, AgentUpgrade
from audit import ids
from catalogue.models import GpuModel, Zone
from tenants.models import Organization

__all__ = [
    "AgentRelease",
    "AgentUpgrade",
    "Alarm",
    "CapacityChange",
    "CleaningRecord",
    "Device",
    "Enrolment",
    "Execution",
    "Handover",
    "Host",
    "HostEvent",
    "HostVolume",
    "LogChunk",
    "MachineAccess",
    "Maintenance",
    "MeasuredMinute",
    "PortCheck",
    "Receipt",
    "ScoreEntry",
    "SelfTest",
    "Sweep",
    "Workload",
]


class Host(models.Model):
    """One machine with GPUs, owned by an organization and run by an enrolled agent."""

    class State(models.TextChoices):
        UNVERIFIED = "unverified"
        ONLINE = "online"
        SUSPECT = "suspect"
        LOST = "lost"
        QUARANTINED = "quarantined"
        RETIRED = "retired"

    class Scheduling(models.TextChoices):
        OPEN = "open"
        CORDONED = "cordoned"
        DRAINING = "draining"

    class Access(models.TextChoices):
        PRIVATE = "private"
        SHARED_WHEN_IDLE = "shared_when_idle"
        PUBLIC = "public"

    class Tier(models.TextChoices):
        UNVERIFIED = "unverified"
        VERIFIED = "verified"
        CERTIFIED = "certified"

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    owner = models.ForeignKey(Organization, models.PROTECT, related_name="hosts")
    name = models.CharField(max_length=64)
    zone = models.ForeignKey(Zone, models.PROTECT, related_name="hosts")
    fabric = models.CharField(max_length=64, blank=True)
    access = models.CharField(max_length=20, choices=Access, default=Access.PUBLIC)
    tier = models.CharField(max_length=12, choices=Tier, default=Tier.UNVERIFIED)
    state = models.CharField(max_length=12, choices=State, default=State.UNVERIFIED)
    state_reason = models.CharField(max_length=300, blank=True)
    scheduling = models.CharField(max_length=10, choices=Scheduling, default=Scheduling.OPEN)
    scheduling_reason = models.CharField(max_length=300, blank=True)
    drain_deadline = models.DateTimeField(null=True, blank=True)
    simulated = models.BooleanField(default=False)
    bare_metal = models.BooleanField(default=False)  # may be let as a whole machine (agents.machine_access)
    price_floor_micros = models.BigIntegerField(default=0)  # per GPU and hour; 0: the market's price will do
    # When the market may use it, [] = always: [{"days": [0..6], "from": "20:00", "to": "08:00"}], Monday is 0.
    hours = models.JSONField(default=list, blank=True)
    hours_time_zone = models.CharField(max_length=64, default="UTC")
    reliability_bp = models.PositiveIntegerField(default=10_000)

    # The key and the replay guard: (boot_no, last_seq) only ever grows.
    signing_key = models.CharField(max_length=64, blank=True)
    sealing_key = models.CharField(max_length=64, blank=True)
    key_id = models.CharField(max_length=32, blank=True)
    instance = models.CharField(max_length=64, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    boot_no = models.BigIntegerField(default=0)
    last_seq = models.BigIntegerField(default=0)
    last_created = models.BigIntegerField(default=0)  # by the agent's clock: tells a clone from a replay
    boot_heard_at = models.DateTimeField(null=True, blank=True)  # when this boot_no was heard first
    generation = models.BigIntegerField(default=1)
    last_heard_at = models.DateTimeField(null=True, blank=True)
    quiet_until = models.DateTimeField(null=True, blank=True)  # until then a sync may be taken in by agents.quiet
    last_answered_at = models.DateTimeField(null=True, blank=True)
    state_since = models.DateTimeField(null=True, blank=True)
    enrolled_at = models.DateTimeField(null=True, blank=True)
    verified_at = models.DateTimeField(null=True, blank=True)
    level = models.CharField(max_length=2, blank=True)  # the highest that its tests have shown: L0, L1, L2
    level_at = models.DateTimeField(null=True, blank=True)
    challenge_at = models.DateTimeField(null=True, blank=True)  # not before this; None: to be worked out
    fingerprint = models.JSONField(default=dict, blank=True)  # as enrolled: machine, board, GPU UUIDs, PCI ids
    declared = models.JSONField(default=dict, blank=True)  # what the owner said is in it: {"gpus": {slug: count}}

    # What the host reported (inventory), in the units of the names.
    inventory = models.JSONField(default=dict, blank=True)
    inventory_hash = models.CharField(max_length=64, blank=True)
    conditions = models.JSONField(default=list, blank=True)
    agent_version = models.CharField(max_length=32, blank=True)
    engine = models.CharField(max_length=32, blank=True)
    address = models.CharField(max_length=64, blank=True)
    driver_version = models.CharField(max_length=32, blank=True)
    cuda_version = models.CharField(max_length=16, blank=True)
    cpu_milli = models.PositiveBigIntegerField(default=0)
    ram_mib = models.PositiveBigIntegerField(default=0)
    disk_mib = models.PositiveBigIntegerField(default=0)
    volumes_mib = models.PositiveBigIntegerField(default=0)  # of that disk, what volumes take (agents.volumes)
    # The fixed share per GPU that a lease gets when it names none, recorded at verification.
    cpu_milli_per_gpu = models.PositiveBigIntegerField(default=0)
    ram_mib_per_gpu = models.PositiveBigIntegerField(default=0)
    disk_mib_per_gpu = models.PositiveBigIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        # None on last_heard_at: it moves with every sync, and an index on it would make each one rewrite all indexes.
        indexes = [models.Index(fields=["owner", "-created_at", "-id"], name="host_newest_first")]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "name"], condition=~Q(state="retired"), name="host_name_is_unique_for_its_owner"
            ),
            models.UniqueConstraint(fields=["key_id"], condition=~Q(key_id=""), name="one_host_per_key"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def public_id(self) -> str:
        return ids.encode("host", self.id)


class Device(models.Model):
    """One physical GPU on a host: a row, never a counter. Eight units; a lease holds a range of them."""

    class Health(models.TextChoices):
        UNKNOWN = "unknown"
        HEALTHY = "healthy"
        SUSPECT = "suspect"
        DEGRADED = "degraded"
        REMEDY = "remedy"
        SELFTEST = "selftest"
        LOST = "lost"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    host = models.ForeignKey(Host, models.PROTECT, related_name="devices")
    uuid = models.CharField(max_length=64)  # as the driver reports it; SIM-... when simulated
    index = models.PositiveSmallIntegerField()
    model = models.ForeignKey(GpuModel, models.PROTECT, null=True, blank=True, related_name="devices")
    reported_name = models.CharField(max_length=100, blank=True)
    pci_device_id = models.CharField(max_length=16, blank=True)
    pci_bus_id = models.CharField(max_length=32, blank=True)
    memory_mib = models.PositiveBigIntegerField(null=True, blank=True)
    nvlink_clique = models.PositiveSmallIntegerField(null=True, blank=True)
    health = models.CharField(max_length=10, choices=Health, default=Health.UNKNOWN)
    health_reason = models.CharField(max_length=300, blank=True)
    health_since = models.DateTimeField(null=True, blank=True)
    cordoned = models.BooleanField(default=False)
    readings = models.JSONField(default=dict, blank=True)
    readings_at = models.DateTimeField(null=True, blank=True)
    evidence = models.JSONField(default=dict, blank=True)  # what the health machine remembers (agents.health)
    present = models.BooleanField(default=True)  # in the last accepted inventory

    class Meta:
        ordering = ["host", "index"]
        indexes = [models.Index(fields=["uuid"], name="device_by_uuid")]
        constraints = [
            models.UniqueConstraint(fields=["host", "uuid"], name="device_once_per_host"),
        ]

    def __str__(self) -> str:
        return f"{self.uuid}"

    @property
    def public_id(self) -> str:
        return ids.encode("device", self.id)


class Workload(models.Model):
    """One container, or the whole machine, that is wanted on a host, and what the host last said of it.

    `reference` is whoever wants it (opaque here), `member` its part on this host, `epoch` the fence: the host never
    starts a lower one. `ready_at` is the second at which the server received the first sync that said `ready`.
    """

    class Kind(models.TextChoices):
        CONTAINER = "container"  # the agent starts it
        MACHINE = "machine"  # the control plane gives the whole machine over SSH (agents.machines)

    id = models.UUIDField(primary_key=True, default=ids.new, editable=False)
    host = models.ForeignKey(Host, models.PROTECT, related_name="workloads")
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.CONTAINER)
    reference = models.CharField(max_length=40)
    member = models.PositiveSmallIntegerField()
    epoch = models.BigIntegerField()
    spec = models.JSONField()
    spec_hash = models.CharField(max_length=64)
    # Its lease may come back to this host: its scratch there stays until this is taken back.
    keeps_scratch = models.BooleanField(default=False)
    sealed = models.TextField(blank=True)  # base64; the host alone can open it; empty again when it is over
    valid_for_s = models.PositiveIntegerField()
    stop_grace_s = models.PositiveIntegerField(default=30)
    not_after = models.DateTimeField(null=True, blank=True)
    notice = models.JSONField(null=True, blank=True)  # what its containers are told of an end ahead: cause, ends_at
    wanted = models.BooleanField(default=True)
    wanted_at = models.DateTimeField()
    unwanted_at = models.DateTimeField(null=True, blank=True)
    unwanted_reason = models.CharField(max_length=100, blank=True)
    unwanted_generation = models.BigIntegerField(null=True, blank=True)  # the host's first wanted list without it

    step = models.CharField(max_length=12, default="absent")
    detail = models.CharField(max_length=500, blank=True)
    failure = models.CharField(max_length=20, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    container = models.CharField(max_length=80, blank=True)
    image_digest = models.CharField(max_length=100, blank=True)
    ports = models.JSONField(default=dict, blank=True)
    progress = models.JSONField(default=dict, blank=True)
    reported_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    unusable_since = models.DateTimeField(null=True, blank=True)
    unhealthy = models.CharField(max_length=200, blank=True)  # what its health check says while it fails
    scratch_mib = models.PositiveBigIntegerField(null=True, blank=True)  # what it has on its scratch, where measured
    exited_at = models.DateTimeField(null=True, blank=True)
    gone_at = models.DateTimeField(null=True, blank=True)  # acknowledged: nothing of it is left
    # No answer sent after this may have renewed it: until + grace + margin its devices are not let again (the fence).
    last_valid_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["host"], condition=Q(gone_at__isnull=True), name="workload_live_on_host"),
            models.Index(fields=["reference"], name="workload_of_reference"),
            models.Index(fields=["host"], condition=Q(keeps_scratch=True), name="workload_keeps_scratch"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["reference", "member", "epoch"], name="workload_once_per_epoch"),
            models.CheckConstraint(
                condition=Q(wanted=True, unwanted_at__isnull=True) | Q(wanted=False, unwanted_at__isnull=False),
                name="workload_unwanted_at_iff_unwanted",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.reference}/{self.member} epoch {self.epoch}"
