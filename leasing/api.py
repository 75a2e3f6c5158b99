"""Doors: what a lease may start, and what may be given to it: images and secrets."""

from typing import Any, ClassVar

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from apikit import pagination, strict_query
from apikit.instants import instant, instant_or_none
from apikit.strict_fields import Choice, DisplayText, Integer, ListOf, Name, StrictSerializer, Text, fault
from leasing import images, volume_rendering, volumes
from leasing.models import Image
from leasing.volume_models import Volume
from tenants import vault
from tenants.access import OrganizationView
from tenants.models import Secret

SECRET_LIMIT = 16_384  # characters: a private key or a registry's JSON file fits
IMAGE_VERSION = 1  # an image is never edited: it is deleted and made again


class Ssh(StrictSerializer):
    port = Integer(min_value=1, max_value=65_535)


class Jupyter(StrictSerializer):
    port = Integer(min_value=1, max_value=65_535)
    command = ListOf(child=Text(max_length=4096), min_length=1, max_length=256)


class Services(StrictSerializer):
    """What the image serves to people; it must take the keys or the token from where README of images says."""

    ssh = Ssh(required=False)
    jupyter = Jupyter(required=False)


class HealthCheckBody(StrictSerializer):
    """By HTTP (port, and a path that answers 200 to 399) or by a command inside that ends with 0."""

    port = Integer(min_value=1, max_value=65_535, required=False)
    path = Text(max_length=500, pattern=r"/[!-~]*", required=False)
    command = ListOf(child=Text(max_length=4096), min_length=1, max_length=64, required=False)
    start_period_s = Integer(min_value=1, max_value=7200, required=False)
    interval_s = Integer(min_value=1, max_value=3600, required=False)
    timeout_s = Integer(min_value=1, max_value=60, required=False)
    failures = Integer(min_value=1, max_value=20, required=False)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        if ("port" in values) == ("command" in values):
            raise fault("exactly_one_of", "Name port (and path) or command.", pointer="/port")
        if "path" in values and "port" not in values:
            raise fault("exactly_one_of", "A path goes with a port.", pointer="/path")
        return values


class ImageBody(StrictSerializer):
    slug = Text(min_length=1, max_length=64)
    name = Name(required=False)
    reference = Text(min_length=1, max_length=300)
    description = DisplayText(max_length=1000, required=False)
    min_cuda = Text(max_length=16, pattern=r"[0-9]{1,2}\.[0-9]{1,2}", required=False)
    vendor = Choice(choices=["nvidia", "amd", ""], required=False)
    ports = ListOf(child=Integer(min_value=1, max_value=65_535), max_length=32, required=False)
    command = ListOf(child=Text(max_length=4096), min_length=1, max_length=256, required=False)
    services = Services(required=False)
    health = HealthCheckBody(required=False)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        return {"name": values["slug"], **values}


class VolumeName(Text):
    def __init__(self, **options: Any) -> None:
        super().__init__(min_length=1, max_length=63, pattern=r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", **options)


class VolumeBody(StrictSerializer):
    """region: where it is to live; without one it lives where its first lease is."""

    name = VolumeName(code="bad_name")
    size_gib = Integer(min_value=1, max_value=settings.VOLUME_MOST_GIB)
    region = Text(max_length=60, required=False)


class SecretBody(StrictSerializer):
    name = Text(min_length=1, max_length=64, pattern=r"[A-Za-z_][A-Za-z0-9_]*", code="bad_name")
    value = Text(min_length=1, max_length=SECRET_LIMIT)


def render_image(image: Image) -> dict[str, Any]:
    return {
        "id": image.public_id,
        "version": IMAGE_VERSION,
        "actions": [],
        "slug": image.slug,
        "name": image.name,
        "reference": image.reference,
        "description": image.description,
        "min_cuda": image.min_cuda or None,
        "vendor": image.vendor or None,
        "architectures": image.architectures,
        "ports": image.ports,
        "services": image.services,
        "health": image.health,
        "command": image.command,
        "size_mib": image.size_mib,
        "own": image.organization_id is not None,
        "created_at": instant(image.created_at),
    }


def render_secret(secret: Secret) -> dict[str, Any]:
    """Return a secret as it is shown: never its value, nor how long it is."""
    return {
        "id": secret.public_id,
        "version": secret.version,
        "actions": [],
        "name": secret.name,
        "created_at": instant(secret.created_at),
        "replaced_at": instant_or_none(secret.replaced_at),
    }


class ImageCollection(OrganizationView):
    """The platform's images and one's own."""

    policy: ClassVar = {"get": "leases:read", "post": "leases:write"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(images.visible(organization_id=self.organization.pk), render_image)

    def post(self, request: Request) -> Response:
        image = images.register(
            organization=self.organization, values=self.read(ImageBody), at=self.at, actor=self.principal.actor,
            request_id=self.request_id,
        )  # fmt: skip
        return self.created(render_image(image), version=IMAGE_VERSION, location=f"/images/{image.public_id}")


class ImageItem(OrganizationView):
    """One image; only one's own can be deleted."""

    policy: ClassVar = {"get": "leases:read", "delete": "leases:write"}

    def get(self, request: Request, id: str) -> Response:
        image = self.found(images.visible(organization_id=self.organization.pk), "image", id)
        return self.one(render_image(image), version=IMAGE_VERSION)

    def delete(self, request: Request, id: str) -> Response:
        image = self.found(self.mine(Image).select_for_update(no_key=True), "image", id)
        self.check_version(IMAGE_VERSION)
        images.forget(image=image, at=self.at, actor=self.principal.actor, request_id=self.request_id)
        return Response(status=204)


class SecretCollection(OrganizationView):
    """Names under which values are kept. A value is never shown."""

    policy: ClassVar = {"get": "leases:read", "post": "leases:write"}
    query: ClassVar = {"get": pagination.PARAMETERS}

    def get(self, request: Request) -> Response:
        return self.page(self.mine(Secret), render_secret)

    def post(self, request: Request) -> Response:
        """Keep a value under a new name (201), or replace the value of a known one (200)."""
        asked = self.read(SecretBody)
        secret, is_new = vault.store(
            organization=self.organization, **asked, at=self.at, actor=self.principal.actor, request_id=self.request_id
        )
        if not is_new:
            return self.one(render_secret(secret), version=secret.version)
        return self.created(render_secret(secret), version=secret.version, location=f"/secrets/{secret.public_id}")


class SecretItem(OrganizationView):
    policy: ClassVar = {"get": "leases:read", "delete": "leases:write"}

    def get(self, request: Request, id: str) -> Response:
        secret = self.found(self.mine(Secret), "secret", id)
        return self.one(render_secret(secret), version=secret.version)

    def delete(self, request: Request, id: str) -> Response:
        secret = self.found(self.mine(Secret).select_for_update(no_key=True), "secret", id)
        self.check_version(secret.version)
        vault.forget(secret=secret, at=self.at, actor=self.principal.actor, request_id=self.request_id)
        return Response(status=204)


class VolumeCollection(OrganizationView):
    """Storage that outlives leases. A lease mounts it by its name; it is charged by GiB and hour until its end."""

    policy: ClassVar = {"get": "leases:read", "post": "leases:write"}
    query: ClassVar = {
        "get": {**pagination.PARAMETERS, "state": strict_query.choices(*Volume.State.values)}
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        """Those that are there; with `state` also those that were."""
        states = self.parameters.get("state", (*Volume.LIVE, Volume.State.DELETING))
        rows = self.mine(Volume).filter(state__in=states).select_related("host__zone__region", "lease")
        return self.page(rows, volume_rendering.volume)

    def post(self, request: Request) -> Response:
        asked = self.read(VolumeBody)
        made = volumes.create(
            organization_id=self.organization.pk, name=asked["name"], size_gib=asked["size_gib"],
            region=asked.get("region"), at=self.at, actor=self.principal.actor, request_id=self.request_id,
        )  # fmt: skip
        return self.created(volume_rendering.volume(made), version=made.version, location=f"/volumes/{made.public_id}")


class VolumeItem(OrganizationView):
    policy: ClassVar = {"get": "leases:read", "delete": "leases:write"}

    def get(self, request: Request, id: str) -> Response:
        volume = self._found(id)
        return self.one(volume_rendering.volume(volume), version=volume.version)

    def delete(self, request: Request, id: str) -> Response:
        """Destroy it with all that is in it; charged until now. Its host confirms the removal."""
        volume = self._found(id)
        self.check_version(volume.version)
        gone = volumes.delete(volume_id=volume.pk, at=self.at, actor=self.principal.actor, request_id=self.request_id)
        return self.one(volume_rendering.volume(gone), version=gone.version)

    def _found(self, id: str) -> Volume:
        return self.found(self.mine(Volume).select_related("host__zone__region", "lease"), "volume", id)
