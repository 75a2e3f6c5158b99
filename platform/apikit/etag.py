"""A version is an ETag: who changes an object says which version he saw."""

from rest_framework.request import Request

from apikit.errors import DomainError


class PreconditionFailed(DomainError):
    slug = "precondition-failed"
    title = "The object has changed since you read it"
    status = 412


class PreconditionRequired(DomainError):
    slug = "precondition-required"
    title = "Say which version you change"
    status = 428


def etag(version: int) -> str:
    return f'"{version}"'


def names(header: str, version: int) -> bool:
    """Tell whether an If-None-Match header names this version (or is `*`): the weak comparison of RFC 9110, 8.8.3.2.

    A cache that compresses makes W/"3" of "3", and for reading the version that was seen is the same.
    """
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag(version) in tags


def names_exactly(header: str, version: int) -> bool:
    """Tell whether an If-Match header names this version (or is `*`); no weak tag does: the strong comparison."""
    tags = [tag.strip() for tag in header.split(",")]
    return "*" in tags or etag(version) in tags


def check_if_match(request: Request, version: int, *, required: bool) -> None:
    """Raise PreconditionFailed when If-Match names another version, PreconditionRequired when it must be there.

    The caller holds the row's lock, or the version may change behind him.
    """
    header = request.headers.get("If-Match")
    if header is None:
        if required:
            raise PreconditionRequired("Send If-Match with the ETag that you read.")
    elif not names_exactly(header, version):
        if names(header, version):
            raise PreconditionFailed(
                "If-Match compares strongly: send the ETag without the W/ before it.", version=version
            )
        raise PreconditionFailed(f"The version is {version} now. Read it again.", version=version)
