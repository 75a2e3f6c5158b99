"""What an image serves to people beside the tenant's own program: SSH and Jupyter. Which ports and which command."""

from collections.abc import Mapping
from typing import Any

from apikit.errors import InvalidInput
from leasing.images import Resolved

SSH_PORT = 22
# The secret with the token of a notebook server: Jupyter reads the file that JUPYTER_TOKEN_FILE names.
JUPYTER_TOKEN = "JUPYTER_TOKEN"  # noqa: S105 -- a name, no token


def check(*, image: Resolved, asked: Mapping[str, Any]) -> None:
    """Raise InvalidInput if Jupyter is asked for and the image has none, or nobody could log in to it."""
    if not asked.get("jupyter"):
        return
    faults = []
    if "jupyter" not in image.services:
        detail = f"The image {image.asked or '(none yet)'} does not say how it serves Jupyter."
        faults.append({"pointer": "/jupyter", "code": "bad_value", "detail": detail})
    if asked.get("command") is not None:
        detail = "Jupyter has its own command; name one or the other."
        faults.append({"pointer": "/command", "code": "exactly_one_of", "detail": detail})
    if JUPYTER_TOKEN not in (asked.get("secrets") or []):
        detail = f"Store the notebook's token as a secret named {JUPYTER_TOKEN} and name it here."
        faults.append({"pointer": "/secrets", "code": "required", "detail": detail})
    if faults:
        raise InvalidInput.of(faults)


def named_ports(image: Resolved, container: Mapping[str, Any]) -> dict[str, int]:
    """Return the port of each service that this lease opens: SSH where keys are given, Jupyter where asked for.

    Of an image that is no entry of a catalogue nothing is known: with keys, SSH is taken to be on its usual port.
    """
    if not image.reference:
        return {}
    services = image.services if image.needs else {"ssh": {"port": SSH_PORT}, **image.services}
    open_to = {"ssh": bool(container.get("ssh_keys")), "jupyter": bool(container.get("jupyter"))}
    return {name: services[name]["port"] for name, wanted in open_to.items() if wanted and name in services}


def ports_of(image: Resolved, container: Mapping[str, Any]) -> list[int]:
    """Return the ports to publish: those asked for, or else the image's, and those of its services."""
    asked: list[int] = container.get("ports", image.ports)
    return list(dict.fromkeys([*asked, *named_ports(image, container).values()]))


def command_of(image: Resolved, container: Mapping[str, Any]) -> list[str] | None:
    if container.get("jupyter") and "jupyter" in image.services:
        return list(image.services["jupyter"]["command"])
    command: list[str] | None = container.get("command", image.command)
    return command
