"""What a payment provider must be able to do: the one interface behind which stripe, a bank file or a fake stands."""

from dataclasses import dataclass
from typing import Protocol

from billing.models.payments import IntentState


class ProviderSilent(Exception):
    """No answer came: the call may have worked or not."""


@dataclass(frozen=True)
class Answer:
    """state: settled or refused, with the provider's id of what it did."""

    state: IntentState
    ref: str = ""
    detail: str = ""


class Provider(Protocol):
    """Each call carries our key, the same at every attempt. Any of them may raise ProviderSilent."""

    name: str

    def charge(self, *, key: str, amount_minor: int, currency: str) -> Answer: ...

    def refund(self, *, key: str, charge_ref: str, amount_minor: int, currency: str) -> Answer: ...

    def pay_out(self, *, key: str, amount_minor: int, currency: str, to: str) -> Answer: ...

    def find(self, *, key: str) -> Answer | None:
        """Return what the provider's own record says about a key, or None if it has none (yet)."""
        ...
