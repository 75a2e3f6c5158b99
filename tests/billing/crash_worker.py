"""What a worker does to money, over and over, on a server that is killed under it: started by test_server_kills.

Reads a number or "prove" per line. A number: all acts of that round, each as idempotent as its domain function; answers
"done", or "died" where the server went away. "prove": answers with what reconcile finds, "right" when nothing.
"""

import sys
from contextlib import suppress
from uuid import UUID

PAYER, PAYEE = UUID(int=1), UUID(int=2)
START_MICROS, TOP_UP_MICROS, PAID_MINOR, PRICE = 10**12, 1_000_000, 500, 3_600_001


def main() -> None:
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import InterfaceError, OperationalError, connection

    from billing import reconcile

    call_command("migrate", "billing", verbosity=0)
    rounds = Rounds()
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            if line.strip() == "prove":
                print(str(reconcile.findings() or "right"), flush=True)
            else:
                rounds.act(int(line))
                print("done", flush=True)
        except (OperationalError, InterfaceError):
            connection.close()
            print("died", flush=True)


class Rounds:
    """One provider, which outlives the server as a real one does."""

    def __init__(self) -> None:
        from books import give, make_price
        from provider import PaperProvider

        self.provider, self.price = PaperProvider(), make_price(PRICE)
        give(PAYER, START_MICROS)

    def act(self, number: int) -> None:
        from books import after, run

        from billing import close, metering, wallets

        lease, at = f"r{number}", after(number * 60 + 40)
        run(payer=PAYER, payee=PAYEE, price=self.price, reference=lease, at=after(number * 60))
        wallets.top_up(
            owner=PAYER, currency="USD", amount_micros=TOP_UP_MICROS, key=lease, by="t", reason="r", at=at
        )  # fmt: skip
        close.close(shard=0, to=after(number * 60 + 20), at=at)
        metering.stop(reference=lease, seq=2, at=after(number * 60 + 30), cause="t", received_at=at)
        metering.finish(reference=lease, at=at, ended_by="tenant")
        self._pay(lease, number)
        self._pay_out(lease, number)

    def _pay(self, lease: str, number: int) -> None:
        from books import after

        from billing import payments

        at = after(number * 60 + 41)
        begun = payments.begin(
            owner=PAYER, currency="USD", amount_minor=PAID_MINOR, provider="paper", key=lease, at=at
        )  # fmt: skip
        payment = payments.attempt(payment_id=begun.pk, provider=self.provider, at=at)
        refund = payment.refunds.first() or payments.begin_refund(payment_id=payment.pk, amount_minor=100, at=at)
        payments.attempt_refund(refund_id=refund.pk, provider=self.provider, at=at)

    def _pay_out(self, lease: str, number: int) -> None:
        from books import after

        from billing import payouts
        from billing.models import Payout

        at = after(number * 60 + 42)
        with suppress(payouts.NothingToPayOut, payouts.PayoutInFlight):
            payouts.request(owner=PAYEE, currency="USD", period=lease, provider="paper", at=at)
        for payout in Payout.objects.filter(state__in=["created", "unknown"]):
            payouts.send(payout_id=payout.pk, provider=self.provider, at=at)


if __name__ == "__main__":
    main()
