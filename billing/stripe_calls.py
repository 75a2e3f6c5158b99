"""Calls to Stripe: charges, refunds and transfers to owners, each under our own key, and what its record says of a key.

Shapes as in Stripe's API reference (PaymentIntents, Refunds, Transfers, Idempotent requests). No answer, an answer of
its 5xx and a state that is still moving are all ProviderSilent: the record, or its notification, settles them later.
"""

from collections.abc import Mapping
from typing import Any

import httpx2

from billing.models.payments import IntentState
from billing.providers import Answer, Opened, ProviderSilent

TIMEOUT_S = 20
PAGE = 100  # the most that one answer lists
# Amounts of these do not mean at Stripe what ISO 4217 says (ISK is given in hundredths), or there is no such money.
NOT_TAKEN = frozenset({"ISK", "XTS"})
# Of a payment that its payer confirms: one whose card was refused may be tried again, so only these are ends.
ENDS = {"succeeded": IntentState.SETTLED, "canceled": IntentState.REFUSED}
PAYMENT_STATES = {
    "succeeded": IntentState.SETTLED,
    "canceled": IntentState.REFUSED,
    "requires_payment_method": IntentState.REFUSED,
}
REFUND_STATES = {
    "succeeded": IntentState.SETTLED,
    "failed": IntentState.REFUSED,
    "canceled": IntentState.REFUSED,
}


class Stripe:
    """One account at Stripe. `accounts`: the connected account of each owner of hosts, by organization id."""

    name = "stripe"

    def __init__(
        self, *, api_key: str, accounts: Mapping[str, str] | None = None, url: str = "https://api.stripe.com"
    ) -> None:
        self._client = httpx2.Client(base_url=url, auth=(api_key, ""), timeout=TIMEOUT_S)
        self._accounts = accounts or {}

    def charge(self, *, key: str, amount_minor: int, currency: str) -> Answer:
        form = {"amount": amount_minor, "currency": currency.lower(), "confirm": "true", "metadata[key]": key}
        return _payment(self._post("/v1/payment_intents", form, key=key))

    def takes(self, currency: str) -> bool:
        return currency not in NOT_TAKEN

    def open(self, *, key: str, amount_minor: int, currency: str, payment: str, ref: str = "") -> Opened | Answer:
        form = {
            "amount": amount_minor, "currency": currency.lower(), "automatic_payment_methods[enabled]": "true",
            "metadata[key]": key, "metadata[payment]": payment,
        }  # fmt: skip
        # By its own id once we know it: keys are forgotten after a day, and a second intent could be paid as well.
        said = self._get(f"/v1/payment_intents/{ref}", {}) if ref else self._post("/v1/payment_intents", form, key=key)
        if (refused := _refusal(said)) is not None:
            return refused
        if not said.get("id") or not said.get("client_secret"):
            raise ProviderSilent("the answer is no open payment")
        return Opened(str(said["id"]), str(said["client_secret"]))

    def look(self, *, ref: str) -> Answer | None:
        return _ended(self._get(f"/v1/payment_intents/{ref}", {}))

    def cancel(self, *, ref: str) -> Answer | None:
        return _ended(self._post(f"/v1/payment_intents/{ref}/cancel", {}, key=f"cancel:{ref}"))

    def refund(self, *, key: str, charge_ref: str, amount_minor: int, currency: str) -> Answer:
        form = {"payment_intent": charge_ref, "amount": amount_minor, "metadata[key]": key}
        return _refund(self._post("/v1/refunds", form, key=key))

    def pay_out(self, *, key: str, amount_minor: int, currency: str, to: str) -> Answer:
        destination = self._accounts.get(to)
        if destination is None:
            return Answer(IntentState.REFUSED, "", "the owner has no account at the provider")
        form = {
            "amount": amount_minor, "currency": currency.lower(), "destination": destination, "transfer_group": key,
            "metadata[key]": key,
        }  # fmt: skip
        return _transfer(self._post("/v1/transfers", form, key=key))

    def find(self, *, key: str, charge_ref: str = "") -> Answer | None:
        """Return what the record says about a key; None where it has nothing, or nothing that is final."""
        kind = key.partition(":")[0]
        if kind == "payout":
            return _first(self._get("/v1/transfers", {"transfer_group": key}), key, _transfer)
        if kind == "refund":
            return self._find_refund(key, {"payment_intent": charge_ref} if charge_ref else {})
        query = f"metadata['key']:'{key}'"
        return _first(self._get("/v1/payment_intents/search", {"query": query}), key, _payment)

    def _find_refund(self, key: str, of: Mapping[str, str]) -> Answer | None:
        """Look through the refunds (of one payment), newest first, page by page: refunds cannot be searched."""
        query: dict[str, Any] = {**of, "limit": PAGE}
        while True:
            said = self._get("/v1/refunds", query)
            rows = said.get("data", [])
            if any(row.get("metadata", {}).get("key") == key for row in rows) or not (said.get("has_more") and rows):
                return _first(said, key, _refund)
            query["starting_after"] = rows[-1]["id"]

    def _post(self, path: str, form: Mapping[str, Any], *, key: str) -> Mapping[str, Any]:
        return self._said("POST", path, data=dict(form), headers={"Idempotency-Key": key})

    def _get(self, path: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._said("GET", path, params=dict(query))

    def _said(self, method: str, path: str, **what: Any) -> Mapping[str, Any]:
        try:
            response = self._client.request(method, path, **what)
            said = response.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise ProviderSilent(f"{method} {path}: {type(error).__name__}") from error
        # Only these say that it was not done. 401: our key is wrong; 409: it is being done; 429, 5xx: it may be done.
        if response.status_code not in (200, 400, 402, 404) or not isinstance(said, dict):
            raise ProviderSilent(f"{method} {path}: {response.status_code}")
        return said


def _refusal(said: Mapping[str, Any]) -> Answer | None:
    error = said.get("error")
    if not isinstance(error, dict):
        return None
    return Answer(IntentState.REFUSED, "", str(error.get("code") or error.get("message") or "refused")[:300])


def _by_state(said: Mapping[str, Any], states: Mapping[str, IntentState]) -> Answer:
    status = str(said.get("status"))
    if status not in states:
        raise ProviderSilent(f"{said.get('object')} is {status}")
    return Answer(states[status], str(said.get("id", "")), status)


def _payment(said: Mapping[str, Any]) -> Answer:
    return _refusal(said) or _by_state(said, PAYMENT_STATES)


def _ended(said: Mapping[str, Any]) -> Answer | None:
    """Return how an open payment ended; None while it is open, and where the answer is about something else."""
    if said.get("object") != "payment_intent" or said.get("status") not in ENDS:
        return None
    if said["status"] == "succeeded" and said.get("amount_received") != said.get("amount"):
        raise ProviderSilent("another amount came in than was asked for")
    return Answer(ENDS[said["status"]], str(said["id"]), str(said["status"]))


def _refund(said: Mapping[str, Any]) -> Answer:
    return _refusal(said) or _by_state(said, REFUND_STATES)


def _transfer(said: Mapping[str, Any]) -> Answer:
    if (refused := _refusal(said)) is not None:
        return refused
    if said.get("object") != "transfer":
        raise ProviderSilent("the answer is no transfer")
    return Answer(IntentState.SETTLED, str(said.get("id", "")), "transferred")


def _first(said: Mapping[str, Any], key: str, read: Any) -> Answer | None:
    found = [row for row in said.get("data", []) if row.get("metadata", {}).get("key") == key]
    if not found:
        return None
    try:
        answer: Answer = read(found[0])
    except ProviderSilent:
        return None
    return answer
