"""Opening what the control plane has sealed for one workload on this host; the values live in memory alone."""

import base64
import binascii
import json
from collections.abc import Callable

from nacl.exceptions import CryptoError

from agents.node.engines import EngineError, Login
from agents.node.workload import Workload
from agents.protocol import ProtocolError, SealedValues, WorkloadSpec


def opened(
    workload: Workload, spec: WorkloadSpec, unseal: Callable[[bytes], bytes] | None
) -> tuple[dict[str, str], Login | None]:
    """Return the values of the spec's secrets by name, and the login for its image.

    Raises EngineError: `bad_spec` if it was not sealed for this workload on this host, `secret_missing` if a name of
    the spec has no value any more.
    """
    if not spec.secrets and not spec.registry_login:
        return {}, None
    values = _unsealed(workload, unseal)
    missing = [name for name in spec.secrets if name not in values.secrets]
    if missing:
        raise EngineError("secret_missing", f"no value is kept under {', '.join(missing)} any more")
    if not spec.registry_login:
        return values.secrets, None
    login = values.registry or {}
    if not {"username", "password"} <= set(login):
        raise EngineError("secret_missing", "the login for the image's registry is not kept any more")
    return values.secrets, Login(username=login["username"], password=login["password"])


def _unsealed(workload: Workload, unseal: Callable[[bytes], bytes] | None) -> SealedValues:
    try:
        if unseal is None:
            raise CryptoError
        raw = unseal(base64.b64decode(workload.sealed, validate=True))
        values = SealedValues.from_json(json.loads(raw))
    except (CryptoError, binascii.Error, ProtocolError, ValueError):
        # Whatever went wrong: nothing of the text may stand in a message.
        raise EngineError("bad_spec", "what was sealed for it cannot be opened with this host's key") from None
    if (values.lease, values.member, values.epoch) != workload.key:
        raise EngineError("bad_spec", "what was sealed belongs to another workload")
    return values
