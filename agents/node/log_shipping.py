"""The containers' output on its way to the server: in order, by byte offset, and never more than a sync can carry.

The server's acknowledged offset is the only position that counts: after a restart on either side, sending goes on
there. What a removed container had still to say lies in the journal (`log_tail`).
"""

from typing import Any

from agents.node.engines import EngineError
from agents.node.reconciler import Reconciler
from agents.node.workload import Key, Workload

BYTES_PER_SYNC = 64 * 1024
BYTES_PER_WORKLOAD = 16 * 1024


class LogShipping:
    """Chunks for one sync (`chunks`), and what the server has of them (`acknowledge`)."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._r = reconciler

    def chunks(self) -> list[dict[str, Any]]:
        """Return {lease, member, epoch, offset, text} rows. Bytes that are no UTF-8 are replaced one for one."""
        room = BYTES_PER_SYNC
        rows: list[dict[str, Any]] = []
        for key, first, text in self._r.journal.log_tails():
            if room > 0:
                rows.append(_row(key, first, text[:room]))
                room -= len(text[:room])
        tails = {(row["lease"], row["member"], row["epoch"]) for row in rows}
        for workload in self._speaking():
            if room <= 0:
                break
            if workload.key in tails:
                continue
            try:
                text = self._r.engine.logs(
                    workload.container or workload.name,
                    offset=workload.log_offset,
                    limit=min(room, BYTES_PER_WORKLOAD),
                )
            except EngineError:
                continue
            if text:
                rows.append(_row(workload.key, workload.log_offset, text))
                room -= len(text)
        return rows

    def acknowledge(self, acks: dict[str, Any]) -> None:
        """Move on to the offsets that the server wants next."""
        with self._r.lock:
            by_text = {workload.text_key: workload for workload in self._r.workloads.values()}
        for text_key, offset in acks.items():
            if isinstance(offset, int) and text_key in by_text:
                by_text[text_key].log_offset = max(0, offset)
        for key, first, text in self._r.journal.log_tails():
            offset = acks.get(f"{key[0]}/{key[1]}/{key[2]}")
            if not isinstance(offset, int) or offset <= first:
                continue
            if offset >= first + len(text):
                self._r.journal.drop_log_tail(key)
            else:
                self._r.journal.keep_log_tail(key, first=offset, text=text[offset - first :])

    def _speaking(self) -> list[Workload]:
        with self._r.lock:
            steps = ("starting", "probing", "ready", "exited")
            found = [workload for workload in self._r.workloads.values() if workload.step in steps]
        # Whoever was behind least long ago goes last, so that one talker cannot silence the others.
        found.sort(key=lambda workload: workload.log_offset)
        return found


def _row(key: Key, offset: int, text: bytes) -> dict[str, Any]:
    cut = _whole_characters(text)
    return {
        "lease": key[0],
        "member": key[1],
        "epoch": key[2],
        "offset": offset,
        "bytes": len(cut),
        "text": cut.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}"),
    }


def _whole_characters(text: bytes) -> bytes:
    """Return `text` without a UTF-8 character that is cut off at its end, unless nothing else is there."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0x80:
            continue
        needs = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return text[:-back] if needs > back and len(text) > back else text
    return text
