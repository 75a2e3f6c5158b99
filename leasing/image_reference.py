"""Image references: `registry/path[:tag][@sha256:...]`, by the grammar of the OCI distribution specification. Pure.

A bare word is a slug of the catalogue and never a reference: `pytorch_latest` must not become an image of a public
registry because an operator took it out of the catalogue.
"""

import re
from dataclasses import dataclass

DEFAULT_REGISTRY = "docker.io"
_LIBRARY = "library/"  # where the default registry keeps what has no owner
MAX_NAME_CHARACTERS = 255
MAX_TAG_CHARACTERS = 128
MAX_SLUG_CHARACTERS = 64
MAX_CHARACTERS = MAX_NAME_CHARACTERS + 1 + MAX_TAG_CHARACTERS + len("@sha256:") + 64

_SLUG = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_NO_PART = re.compile(r"[^A-Za-z0-9._\-/:@\[\]+]")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*")
_IPV6 = re.compile(r"\[[A-Fa-f0-9:.]+\]")
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_HEXADECIMAL = re.compile(r"[a-f0-9]*")


class ImageReferenceError(ValueError):
    """The text is no image reference. `position` counts code points of the text; `detail` says what would be right."""

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(detail)
        self.position = position
        self.detail = detail


@dataclass(frozen=True)
class ImageReference:
    """A reference in full. Without a digest, the tag (`latest` if none is given) may mean another image tomorrow."""

    registry: str  # host, in lower case, with its port if one is given
    path: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.path}{tag}{digest}"


def is_slug(text: str) -> bool:
    """Return whether the text is a bare word, which names an image of the catalogue."""
    return len(text) <= MAX_SLUG_CHARACTERS and _SLUG.fullmatch(text) is not None


def parse(text: str) -> ImageReference:
    """Read a reference. Raises ImageReferenceError with the position of the first fault."""
    if len(text) > MAX_CHARACTERS:
        raise ImageReferenceError(MAX_CHARACTERS, f"An image reference has at most {MAX_CHARACTERS} characters.")
    if not text:
        raise ImageReferenceError(0, "An image is missing, such as ghcr.io/owner/name:tag.")
    strange = _NO_PART.search(text)
    if strange:
        raise ImageReferenceError(strange.start(), f"The character U+{ord(strange.group()):04X} has no place here.")
    if not set(text) & {"/", ":", "@"}:
        raise ImageReferenceError(0, "A bare word is an image of the catalogue; a reference has '/', ':' or '@' in it.")
    named, at, digest = text.partition("@")
    registry, path_at = _registry(named)
    # A colon before the last slash is the registry's port, and behind it the tag's.
    last = named.rfind("/")
    colon = named.find(":", max(last, path_at - 1) + 1)
    path_end = colon if colon >= 0 else len(named)
    path = _path(named[:path_end], path_at)
    tag = _tag(named, colon + 1) if colon >= 0 else None
    if "/" not in path and registry == DEFAULT_REGISTRY:
        path = _LIBRARY + path
    if len(registry) + 1 + len(path) > MAX_NAME_CHARACTERS:
        raise ImageReferenceError(path_end, f"Registry and path have at most {MAX_NAME_CHARACTERS} characters.")
    if at:
        return ImageReference(registry, path, tag, _digest(digest, len(named) + 1))
    return ImageReference(registry, path, tag or "latest")


def _registry(named: str) -> tuple[str, int]:
    """Return the registry and where the path starts. The first part is one if it has a dot, a port or is localhost."""
    slash = named.find("/")
    first = named[:slash] if slash > 0 else ""
    if not ({".", ":", "["} & set(first) or first == "localhost"):
        return DEFAULT_REGISTRY, 0
    host = _IPV6.match(first) or _HOST.match(first)
    if host is None:
        raise ImageReferenceError(0, "A registry is a host name such as ghcr.io, or an address.")
    rest = host.end()
    if rest < len(first):
        port = first[rest + 1 :]
        if first[rest] != ":":
            raise ImageReferenceError(rest, "This cannot stand in the host name of a registry.")
        if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
            raise ImageReferenceError(rest + 1, "A port from 1 to 65535 would be right.")
    return first.lower(), slash + 1


def _path(text: str, start: int) -> str:
    """Return text[start:] if it is a path of components; a position counts from the start of the text."""
    at = start
    for component in text[start:].split("/"):
        matched = _COMPONENT.match(component)
        end = matched.end() if matched else 0
        if end < len(component) or not component:
            raise ImageReferenceError(
                at + end, "A path has parts of lower-case letters and digits, joined by '.', '_', '__' or '-'."
            )
        at += len(component) + 1
    return text[start:]


def _tag(text: str, start: int) -> str:
    matched = _TAG.match(text, start)
    end = matched.end() if matched else start
    if end < len(text) or end == start:
        raise ImageReferenceError(end, "A tag has letters, digits, '_', '.' and '-', none of the last two first.")
    if end - start > MAX_TAG_CHARACTERS:
        raise ImageReferenceError(start + MAX_TAG_CHARACTERS, f"A tag has at most {MAX_TAG_CHARACTERS} characters.")
    return text[start:]


def _digest(text: str, start: int) -> str:
    algorithm, colon, digits = text.partition(":")
    if algorithm != "sha256" or not colon:
        raise ImageReferenceError(start, "A digest is sha256: and 64 hexadecimal digits in lower case.")
    matched = _HEXADECIMAL.match(digits)
    valid = matched.end() if matched else 0
    if valid < len(digits) or valid != 64:
        position = start + len("sha256:") + min(valid, 64)
        raise ImageReferenceError(position, "A digest is sha256: and 64 hexadecimal digits in lower case.")
    return text
