"""Images: what a lease starts. A bare word is a slug of the catalogue; anything with `/`, `:` or `@` is a reference."""

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from apikit.errors import InvalidInput
from leasing.image_reference import ImageReferenceError, is_slug, parse
from leasing.models import Image

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


# A quote may be asked for before the image is known; the lease that redeems it must name one.
NONE_YET = Resolved(asked="", reference="", needs={}, command=None, env={}, ports=[])


def resolve(*, text: str, organization_id: UUID, pointer: str = "/image") -> Resolved:
    """Return the image that `text` names for this organization. Raises InvalidInput with position and nearest."""
    if is_slug(text):
        return _from_catalogue(text, organization_id, pointer)
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


def _from_catalogue(slug: str, organization_id: UUID, pointer: str) -> Resolved:
    visible = Q(organization=None) | Q(organization_id=organization_id)
    # An organization's own image of that name goes before the platform's.
    image = Image.objects.filter(visible, slug=slug, enabled=True).order_by("organization").first()
    if image is None:
        known = list(Image.objects.filter(visible, enabled=True).values_list("slug", flat=True))
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
        asked=slug, reference=image.reference, needs=needs, command=image.command, env=image.env, ports=image.ports
    )


@transaction.atomic
def load_catalogue(path: Path = CATALOGUE_FILE) -> int:
    """Write the platform's images from the file; what an operator added stays. Returns how many the file has."""
    entries = json.loads(path.read_text())["images"]
    for entry in entries:
        Image.objects.update_or_create(organization=None, slug=entry["slug"], defaults=entry)
    return len(entries)
