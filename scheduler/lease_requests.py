"""What POST /leases and POST /quotes read: the fields of API.md section 3, strictly, each fault with its pointer."""

import re
from typing import Any

from django.conf import settings

from agents import public_keys
from apikit.strict_fields import (
    Boolean,
    Choice,
    Either,
    Instant,
    Integer,
    ListOf,
    MapOf,
    MoneyField,
    Name,
    PublicId,
    StrictSerializer,
    Text,
    fault,
)
from audit import ids
from leasing.api import HealthCheckBody, VolumeName
from leasing.requesting import CONTAINER
from leasing.states import OnInterrupt
from leasing.terms import PERIODS

MAX_SECONDS = 2**31
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_RESERVED = ("LD_", "NVIDIA_", "DOCKER_", "GPUYARD_")
_SSH_KIND = r"ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)|sk-ssh-ed25519@openssh\.com"
_SSH_KEY = re.compile(rf"({_SSH_KIND}) ([A-Za-z0-9+/]+={{0,2}})(?: ([ -~]{{1,100}}))?", re.ASCII)
_VERSION = r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}"


class Memory(StrictSerializer):
    min = Integer(min_value=1, max_value=1024)
    max = Integer(min_value=1, max_value=1024, allow_null=True)


class RequestOption(StrictSerializer):
    nodes = Integer(min_value=1, max_value=256, required=False)
    count = Integer(min_value=1, max_value=16, required=False)
    model = Text(max_length=64, required=False)
    slice = Text(max_length=32, required=False)
    memory_gib = Memory(required=False)
    region = Text(max_length=40, required=False)


class RequestStructure(StrictSerializer):
    options = ListOf(child=RequestOption(), min_length=1, max_length=8)


class TermStructure(StrictSerializer):
    kind = Choice(choices=["on_demand", "spot", "reserved"], required=False)
    period = Choice(choices=list(PERIODS), required=False)
    renew = Boolean(required=False)
    start_at = Instant(required=False)
    end_at = Instant(required=False)
    duration_s = Integer(min_value=60, max_value=366 * 86_400, required=False)


class Constraints(StrictSerializer):
    max_price = MoneyField(required=False)
    min_cuda = Text(max_length=16, pattern=_VERSION, required=False)
    min_driver = Text(max_length=24, pattern=_VERSION, required=False)
    same = Choice(choices=["zone", "fabric"], required=False)
    nvlink = Choice(choices=["wanted", "required"], required=False)
    whole_machine = Boolean(required=False)
    min_cpu_cores = Integer(min_value=1, max_value=1024, required=False)
    min_ram_gib = Integer(min_value=1, max_value=65_536, required=False)
    min_disk_gib = Integer(min_value=1, max_value=1_048_576, required=False)
    min_reliability = Text(max_length=8, pattern=r"0(\.[0-9]{1,4})?|1(\.0{1,4})?", required=False)
    regions = ListOf(child=Text(max_length=40), max_length=32, required=False)
    exclude_hosts = ListOf(child=PublicId("host", decode=ids.decode), max_length=64, required=False)
    exclude_owners = ListOf(child=PublicId("org", decode=ids.decode), max_length=64, required=False)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the constraints in the units that the rest of the house uses."""
        same = ("min_cuda", "min_driver", "same", "nvlink", "whole_machine", "regions")
        read: dict[str, Any] = {name: values[name] for name in same if name in values}
        if "max_price" in values:
            read["max_price"] = values["max_price"].to_json() | {"amount_micros": values["max_price"].amount_micros}
        for name, unit, factor in (
            ("min_cpu_cores", "min_cpu_milli", 1000),
            ("min_ram_gib", "min_ram_mib", 1024),
            ("min_disk_gib", "min_disk_mib", 1024),
        ):  # fmt: skip
            if name in values:
                read[unit] = values[name] * factor
        if "min_reliability" in values:
            whole, _, part = values["min_reliability"].partition(".")
            read["min_reliability_bp"] = int(whole) * 10_000 + int(part.ljust(4, "0") or 0)
        for name in ("exclude_hosts", "exclude_owners"):
            if name in values:
                read[name] = [str(value) for value in values[name]]
        return read


class EnvName(Text):
    def read(self, data: Any) -> str:
        name = super().read(data)
        if not _ENV_NAME.fullmatch(name):
            raise fault("bad_name", "A name has letters, digits and _, and does not begin with a digit.")
        if name.startswith(_RESERVED) or name == "CUDA_VISIBLE_DEVICES":
            raise fault(
                "reserved_name", "LD_*, NVIDIA_*, DOCKER_*, GPUYARD_* and CUDA_VISIBLE_DEVICES are the platform's."
            )
        return name


class SshKey(Text):
    """One public key without options."""

    def read(self, data: Any) -> str:
        text = super().read(data)
        found = _SSH_KEY.fullmatch(text)
        if found is None:
            raise fault("bad_value", "One public key without options is expected, such as: ssh-ed25519 AAAA… name")
        if wrong := public_keys.fault(text):
            raise fault("bad_value", wrong)
        return text


class SecretName(Text):
    """A name in the organization's vault; what it stands for is looked up by the domain."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min_length=1, max_length=64, pattern=r"[A-Za-z_][A-Za-z0-9_]*", **options)


class PlacedRequest(StrictSerializer):
    """What leases and quotes are asked for alike."""

    needs_image = True
    request = Either(text=Text(), structure=RequestStructure(), required=False)
    gpu_model = Text(max_length=256, required=False)
    node_count = Integer(min_value=1, max_value=256, required=False)
    gpu_count = Integer(min_value=1, max_value=16, required=False)
    image = Text(max_length=300, min_length=1, required=False)
    image_id = Text(max_length=300, min_length=1, required=False)
    bare = Boolean(required=False)  # a whole machine over SSH, without an image
    term = Either(text=Text(max_length=32), structure=TermStructure(), required=False)
    lease_term = Either(text=Text(max_length=32), structure=TermStructure(), required=False)
    constraints = Constraints(required=False)
    env = MapOf(name=EnvName(max_length=128), child=Text(max_length=4096), max_length=64, required=False)
    command = ListOf(child=Text(max_length=4096), min_length=1, max_length=256, required=False)
    ports = ListOf(child=Integer(min_value=1, max_value=65_535), max_length=32, required=False)
    ssh_keys = ListOf(child=SshKey(max_length=2048), max_length=16, required=False)
    secrets = ListOf(child=SecretName(), max_length=32, required=False)
    registry_secret = SecretName(required=False)
    jupyter = Boolean(required=False)
    health = HealthCheckBody(required=False)
    read_only = Boolean(required=False)  # type: ignore[assignment]
    on_interrupt = Choice(choices=[policy.value for policy in OnInterrupt], required=False)
    on_exit = Choice(choices=["end", "restart"], required=False)
    notice_s = Choice(choices=[0, 120, 600], required=False)
    may_move = Boolean(required=False)
    name = Name(required=False)
    labels = MapOf(
        name=Text(max_length=64, pattern=r"[a-z0-9][a-z0-9._/-]*"),
        child=Text(max_length=128),
        max_length=32,
        required=False,
    )

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        if "request" in values:
            self._alone(values, "request", ("gpu_model", "node_count", "gpu_count"))
        elif "gpu_model" not in values:
            missing = "gpu_model" if "node_count" in values or "gpu_count" in values else "request"
            raise fault("required", "Say what is wanted, such as: A100_80G x4", pointer=f"/{missing}")
        if self.needs_image and not values.get("bare") and "image" not in values and "image_id" not in values:
            raise fault("required", "Say which image to start.", pointer="/image")
        self._alone(values, "image", ("image_id",))
        self._alone(values, "term", ("lease_term",))
        return values

    @staticmethod
    def _alone(values: dict[str, Any], name: str, others: tuple[str, ...]) -> None:
        for other in others:
            if name in values and other in values:
                raise fault("exactly_one_of", f"Name {name} or {other}, not both.", pointer=f"/{other}")


class MountedVolume(StrictSerializer):
    """A volume by its name, and where the container sees it; size_gib: have it made if there is none."""

    name = VolumeName()
    path = Text(max_length=200, pattern=r"(/[A-Za-z0-9._-]{1,64}){1,8}")
    size_gib = Integer(min_value=1, max_value=settings.VOLUME_MOST_GIB, required=False)


class LeaseRequest(PlacedRequest):
    volumes = ListOf(child=MountedVolume(), max_length=8, required=False)
    if_no_capacity = Choice(choices=["queue", "refuse"], required=False)
    quote = PublicId("quote", decode=ids.decode, required=False)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        return self._redeems(values) if "quote" in values else super().validate(values)

    def _redeems(self, values: dict[str, Any]) -> dict[str, Any]:
        # What was quoted is settled; only what the price does not depend on may still be said.
        free = {"quote", "name", "labels", "image", "image_id", *CONTAINER}
        for name in values:
            if name not in free:
                raise fault("exactly_one_of", "The quote settles this; leave it out.", pointer=f"/{name}")
        self._alone(values, "image", ("image_id",))
        return values


class QuoteRequest(PlacedRequest):
    needs_image = False  # the lease that redeems the quote may name it
    ttl_s = Integer(min_value=10, max_value=900, required=False)


class EndRequest(StrictSerializer):
    pass


class ParkRequest(StrictSerializer):
    keep = Choice(choices=["hold", "queue"], required=False)


class ChangeEnd(StrictSerializer):
    """Relative or absolute, never both."""

    by_s = Integer(min_value=60, max_value=366 * 86_400, required=False)
    end_at = Instant(required=False)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        if len(values) != 1:
            raise fault("exactly_one_of", "Say by_s or end_at.", pointer="/by_s")
        return values


class ChangeStart(StrictSerializer):
    """Relative or absolute, never both."""

    by_s = Integer(min_value=60, max_value=365 * 86_400, required=False)
    start_at = Instant(required=False)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        if len(values) != 1:
            raise fault("exactly_one_of", "Say by_s or start_at.", pointer="/by_s")
        return values


class RenewRequest(StrictSerializer):
    periods = Integer(min_value=1, max_value=104, required=False)


class ResizeRequest(StrictSerializer):
    request = Either(text=Text(), structure=RequestStructure())


class LeaseEdit(StrictSerializer):
    name = Name(required=False)
    labels = MapOf(
        name=Text(max_length=64, pattern=r"[a-z0-9][a-z0-9._/-]*"),
        child=Text(max_length=128),
        max_length=32,
        required=False,
    )
    ssh_keys = ListOf(child=SshKey(max_length=2048), max_length=16, required=False)
    on_interrupt = Choice(choices=[policy.value for policy in OnInterrupt], required=False)
