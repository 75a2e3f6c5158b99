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


@dataclass(frozen=True)
class Opened:
    """A payment that its payer confirms with the provider himself; `client_secret` lets him, and nothing else."""

    ref: str
    client_secret: str


class Provider(Protocol):
    """Each call carries our key, the same at every attempt. Any of them may raise ProviderSilent."""

    name: str

    def charge(self, *, key: str, amount_minor: int, currency: str) -> Answer: ...

    def refund(self, *, key: str, charge_ref: str, amount_minor: int, currency: str) -> Answer: ...

    def pay_out(self, *, key: str, amount_minor: int, currency: str, to: str) -> Answer: ...

    def find(self, *, key: str, charge_ref: str = "") -> Answer | None:
        """Return what the provider's own record says about a key, or None if it has none (yet).

        charge_ref: of a refund, the provider's id of the payment that it is of.
        """
        ...


class OpensPayments(Provider, Protocol):
    """A provider whose payments the payer confirms: we open, he pays, a notification or our question settles."""

    def takes(self, currency: str) -> bool: ...

    def open(self, *, key: str, amount_minor: int, currency: str, payment: str, ref: str = "") -> Opened | Answer:
        """Return the open payment: that of `ref`, else the one of this key; an Answer where it is refused."""
        ...

    def look(self, *, ref: str) -> Answer | None:
        """Return how an open payment ended, or None while it is open."""
        ...

    def cancel(self, *, ref: str) -> Answer | None:
        """End an open payment; None where it can no longer be cancelled, and `look` will say why."""
        ...
