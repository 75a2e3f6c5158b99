"""Images: what a lease starts. A bare word is a slug of the catalogue; anything with `/`, `:` or `@` is a reference."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from apikit import statements
from apikit.errors import InvalidInput
from apikit.statements import Statement, columns_of
from audit import ids, log
from leasing.image_reference import ImageReferenceError, is_slug, parse
from leasing.models import Image
from tenants.models import Organization

OWN_LIMIT = 200  # images per organization
CATALOGUE_FILE = Path(__file__).parent / "data" / "images.json"


@dataclass(frozen=True)
class Resolved:
    """What the host is told to start, and what it needs: `needs` is frozen on the lease."""

    asked: str
    reference: str
    needs: dict[str, Any]
    command: list[str] | None
    env: dict[str, str]
    ports: list[int]
    services: dict[str, Any] = field(default_factory=dict)  # as Image.services
    health: dict[str, Any] | None = None


# A quote may be asked for before the image is known; the lease that redeems it must name one.
NONE_YET = Resolved(asked="", reference="", needs={}, command=None, env={}, ports=[])


def resolve(*, text: str, organization_id: UUID, pointer: str = "/image") -> Resolved:
    """Return the image that `text` names for this organization. Raises InvalidInput with position and nearest."""
    (rows,) = statements.run(question(text, organization_id))
    return answered(rows, text=text, organization_id=organization_id, pointer=pointer)


def question(text: str, organization_id: UUID) -> Statement:
    """Return what asks for the image of this name: an organization's own goes before the platform's."""
    columns = columns_of(Image, "i")
    return Statement(
        f"SELECT {columns.sql} FROM leasing_image i WHERE i.enabled"  # noqa: S608 -- names of columns only
        " AND (i.organization_id IS NULL OR i.organization_id = %s) AND (i.slug = %s OR i.id = %s)"
        " ORDER BY i.organization_id NULLS LAST LIMIT 1",
        [organization_id, text if is_slug(text) else None, ids.decode("image", text)],
    )


def answered(rows: list[tuple[Any, ...]], *, text: str, organization_id: UUID, pointer: str) -> Resolved:
    """Return what `resolve` does, from the answer to `question`."""
    if is_slug(text):
        image = columns_of(Image, "i").read(rows[0]) if rows else None
        return _from_catalogue(text, image, organization_id, pointer)
    try:
        reference = parse(text)
    except ImageReferenceError as fault:
        error = {"pointer": pointer, "code": "bad_value", "detail": fault.detail, "position": fault.position}
        raise InvalidInput("The image is neither in the catalogue nor an image reference.", errors=[error]) from None
    if reference.registry not in settings.IMAGE_REGISTRIES:
        detail = f"Images come from {', '.join(settings.IMAGE_REGISTRIES)}; {reference.registry} is not among them."
        error = {"pointer": pointer, "code": "registry_not_allowed", "detail": detail[:300]}
        raise InvalidInput("The image's registry is not allowed.", errors=[error])
    return Resolved(asked=text, reference=str(reference), needs={}, command=None, env={}, ports=[])


def _from_catalogue(slug: str, image: Image | None, organization_id: UUID, pointer: str) -> Resolved:
    if image is None:
        known = list(visible(organization_id=organization_id).values_list("slug", flat=True))
        near = difflib.get_close_matches(slug, known, n=3, cutoff=0.5)
        error = {
            "pointer": pointer, "code": "unknown_image", "nearest": near,
            "detail": f"No image is called {slug[:64]!r}; a reference has a '/', ':' or '@' in it.",
        }  # fmt: skip
        raise InvalidInput("There is no such image.", errors=[error])
    needs = {
        "min_cuda": image.min_cuda,
        "architectures": image.architectures,
        "vendor": image.vendor,
        "size_mib": image.size_mib,
    }
    return Resolved(
        asked=slug, reference=image.reference, needs=needs, command=image.command, env=image.env, ports=image.ports,
        services=image.services, health=image.health,
    )  # fmt: skip


def visible(*, organization_id: UUID) -> QuerySet[Image]:
    """Return the images that an organization may start by name: the platform's and its own."""
    return Image.objects.filter(Q(organization=None) | Q(organization_id=organization_id), enabled=True)


@transaction.atomic
def register(
    *, organization: Organization, values: Mapping[str, Any], at: datetime, actor: str, request_id: str = ""
) -> Image:
    """Keep an organization's own image under a name. values: columns of Image. Raises InvalidInput.

    Its reference follows the same rules as one that a lease names: form, and registries that are allowed.
    """
    slug = values["slug"]
    if not is_slug(slug):
        raise _refused("/slug", "bad_value", "Letters, digits and . _ - between them; a name, not a reference.")
    if is_slug(values["reference"]):
        raise _refused("/reference", "bad_value", "A reference names a registry's image, such as ghcr.io/me/it:1.")
    resolved = resolve(text=values["reference"], organization_id=organization.pk, pointer="/reference")
    Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
    own = Image.objects.filter(organization=organization)
    if own.filter(slug=slug).exists():
        raise _refused("/slug", "bad_value", "An image of yours has this name; delete it first.")
    if own.count() >= OWN_LIMIT:
        raise _refused("/slug", "too_many", f"At most {OWN_LIMIT} images; delete one first.")
    image = Image.objects.create(organization=organization, **{**values, "reference": resolved.reference})
    _record("image.created", image, at=at, actor=actor, request_id=request_id)
    return image


@transaction.atomic
def forget(*, image: Image, at: datetime, actor: str, request_id: str = "") -> None:
    """Take an organization's own image off its list. Leases that were made with it keep what they start."""
    _record("image.deleted", image, at=at, actor=actor, request_id=request_id)
    image.delete()


def _record(action: str, image: Image, *, at: datetime, actor: str, request_id: str) -> None:
    log.record(
        actor=actor, organization=image.organization_id, action=action, target=image.public_id,
        after={"slug": image.slug, "reference": image.reference}, request_id=request_id, at=at,
    )  # fmt: skip


def _refused(pointer: str, code: str, detail: str) -> InvalidInput:
    return InvalidInput("The image was refused.", errors=[{"pointer": pointer, "code": code, "detail": detail}])


@transaction.atomic
def load_catalogue(path: Path = CATALOGUE_FILE) -> int:
    """Write the platform's images from the file; what an operator added stays. Returns how many the file has."""
    entries = json.loads(path.read_text())["images"]
    for entry in entries:
        Image.objects.update_or_create(organization=None, slug=entry["slug"], defaults=entry)
    return len(entries)
