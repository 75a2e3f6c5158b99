"""Values that only one host can open: sealed to its X25519 key, for one workload of one epoch (AGENT.md section 11)."""

import base64
from collections.abc import Mapping

from nacl.public import PublicKey, SealedBox

from agents.models import Host
from agents.protocol import SealedValues, canonical_json


def seal(
    *,
    host: Host,
    reference: str,
    member: int,
    epoch: int,
    secrets: Mapping[str, str],
    registry: tuple[str, str] | None,
) -> str:
    """Return base64 of what `host` alone can open; "" for a host without a key, which then cannot start it.

    registry: user name and password for the image's registry.
    """
    if not host.sealing_key:
        return ""
    login = None if registry is None else {"username": registry[0], "password": registry[1]}
    values = SealedValues(lease=reference, member=member, epoch=epoch, secrets=dict(secrets), registry=login)
    box = SealedBox(PublicKey(bytes.fromhex(host.sealing_key)))
    return base64.b64encode(box.encrypt(canonical_json(values.to_json()))).decode()
