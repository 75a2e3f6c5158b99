"""Receipts of use, signed by the agent and chained per (reference, member, epoch): they bound what is charged and feed
disputes. The host's owner has root, so a chain that holds proves that the story is one story, not that it is true."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from agents.models import Host, Receipt, Workload
from agents.protocol import canonical_json

KINDS = frozenset({"start", "beat", "stop", "gap"})
LIMIT = 200


def accept(*, host: Host, items: Iterable[Any], at: datetime) -> int:
    """Keep each receipt once, with what is wrong with it; return the highest number taken. The host is locked."""
    highest = 0
    for item in list(items)[:LIMIT]:
        n = item.get("n") if isinstance(item, dict) else None
        if not isinstance(n, int) or isinstance(n, bool) or not 0 < n < 2**63:
            continue
        highest = max(highest, n)
        if not Receipt.objects.filter(host=host, key_id=host.key_id, n=n).exists():
            _keep(host, n, item, at)
    return highest


def _keep(host: Host, n: int, item: Mapping[str, Any], at: datetime) -> None:
    reference, member, epoch = str(item.get("lease", ""))[:40], item.get("member"), item.get("epoch")
    if not (isinstance(member, int) and isinstance(epoch, int) and 0 <= member < 2**15 and 0 <= epoch < 2**31):
        return
    chain = Receipt.objects.filter(host=host, key_id=host.key_id, reference=reference, member=member, epoch=epoch)
    last = chain.order_by("-n").first()
    Receipt.objects.create(
        host=host,
        key_id=host.key_id,
        n=n,
        reference=reference,
        member=member,
        epoch=epoch,
        kind=str(item.get("kind", ""))[:10],
        body=dict(item),
        sha256=hashlib.sha256(canonical_json(item)).hexdigest(),
        faults=_faults(host, item, last),
        received_at=at,
    )


def _faults(host: Host, item: Mapping[str, Any], last: Receipt | None) -> list[str]:
    faults = []
    if not _is_signed(host, item):
        faults.append("signature")
    if item.get("kind") not in KINDS:
        faults.append("kind")
    if item.get("prev") != (last.sha256 if last else ""):
        faults.append("chain")
    ours = {"reference": str(item.get("lease", "")), "member": item["member"], "epoch": item["epoch"]}
    if not Workload.objects.filter(host=host, **ours).exists():
        faults.append("workload")
    return faults


def _is_signed(host: Host, item: Mapping[str, Any]) -> bool:
    body = {name: value for name, value in item.items() if name != "sig"}
    try:
        signature = base64.b64decode(str(item.get("sig", "")), validate=True)
        VerifyKey(bytes.fromhex(host.signing_key)).verify(canonical_json(body), signature)
    except (BadSignatureError, ValueError):
        return False
    return True
