"""A payment provider on paper: it remembers keys for a while and keeps its own record for ever."""

from datetime import UTC, datetime, timedelta

from billing.models.payments import IntentState
from billing.providers import Answer, ProviderSilent


class PaperProvider:
    """silent: how many of the next calls do their work and then give no answer."""

    name = "paper"

    def __init__(self, *, silent: int = 0, key_memory_h: int = 24, refuses: bool = False) -> None:
        self.silent = silent
        self.refuses = refuses
        self.key_memory = timedelta(hours=key_memory_h)
        self.now = datetime(2000, 1, 1, tzinfo=UTC)
        self.keys: dict[str, tuple[datetime, Answer]] = {}
        self.record: dict[str, list[int]] = {}
        self.hidden = False

    def _do(self, key: str, amount_minor: int) -> Answer:
        known = self.keys.get(key)
        if known is not None and self.now - known[0] < self.key_memory:
            answer = known[1]
        elif self.refuses:
            answer = Answer(IntentState.REFUSED, "", "declined")
            self.record.setdefault(key, [])
        else:
            self.record.setdefault(key, []).append(amount_minor)
            answer = Answer(IntentState.SETTLED, f"ref_{key}_{len(self.record[key])}")
            self.keys[key] = (self.now, answer)
        if self.silent:
            self.silent -= 1
            raise ProviderSilent("timeout")
        return answer

    def charge(self, *, key: str, amount_minor: int, currency: str) -> Answer:
        return self._do(key, amount_minor)

    def refund(self, *, key: str, charge_ref: str, amount_minor: int, currency: str) -> Answer:
        return self._do(key, amount_minor)

    def pay_out(self, *, key: str, amount_minor: int, currency: str, to: str) -> Answer:
        return self._do(key, amount_minor)

    def find(self, *, key: str, charge_ref: str = "") -> Answer | None:
        if self.hidden or key not in self.record:
            return None
        done = self.record[key]
        return Answer(IntentState.SETTLED, f"ref_{key}_1") if done else Answer(IntentState.REFUSED, "", "declined")

    def moved_minor(self) -> int:
        return sum(sum(amounts) for amounts in self.record.values())

    def count(self) -> int:
        return sum(len(amounts) for amounts in self.record.values())
