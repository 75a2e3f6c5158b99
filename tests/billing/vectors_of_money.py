"""How the worked figures on balances, credits, idempotency, tax, payouts and budgets are put to billing."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import vectors_at_doors
from books import LONG_AGO, NOON, after, give, killed_at, make_owner, make_price, run
from django.db import IntegrityError, connection, transaction
from provider import PaperProvider
from vectors_of_time import RICH, Adapter, close_at

from billing import (
    budgets,
    close,
    contracts,
    currencies,
    downtime,
    exchange,
    exhaustion,
    grants,
    holds,
    invoicing,
    ledger,
    metering,
    payments,
    payouts,
    pricing,
    reconcile,
    wallets,
)  # fmt: skip
from billing.models import Account, AccountBalance, BillingRun, Budget, Journal


def in_account(kind: str, owner: Any = None, currency: str = "USD") -> int:
    return sum(ledger.balance_micros(a) for a in Account.objects.filter(kind=kind, owner=owner, currency=currency))


def wallet(owner: Any, at: datetime = NOON, currency: str = "USD") -> wallets.Balance:
    return wallets.balance(owner=owner, currency=currency, at=at)


def b01(given: dict[str, Any]) -> dict[str, Any]:
    door = vectors_at_doors.tenant(given["balance_u"])
    payer = vectors_at_doors.owner_of(door)
    leases = [run(payer=payer, price=make_price(rate)) for rate in given["rates_u_per_hour"]]
    found = wallet(payer)
    burn = found.burn_micros_per_hour
    left_s = pricing.seconds_left(available_micros=found.available_micros, burn_micros_per_hour=burn) or 0
    dry_at = after(min(left_s, exhaustion.HORIZON_S))
    assert found.exhausts_at == (dry_at if left_s <= exhaustion.HORIZON_S else None)
    assert vectors_at_doors.exhausts_at(door, NOON) == found.exhausts_at
    costs = sum(metering.cost(reference=lease, at=dry_at).charged_micros for lease in leases)
    exact = pricing.charge(burn * min(left_s, exhaustion.HORIZON_S))
    assert 0 <= exact - costs < len(leases)
    return {
        "burn_u_per_hour": found.burn_micros_per_hour,
        "seconds_left": left_s,
        "charge_at_that_second_u": pricing.charge(burn * left_s),
        "one_second_later_u": pricing.charge(found.burn_micros_per_hour * (left_s + 1)),
    }


def b02(given: dict[str, Any]) -> dict[str, Any]:
    door = vectors_at_doors.tenant(given["balance_u"])
    payer = vectors_at_doors.owner_of(door)
    run(payer=payer, price=make_price(given["burn_u_per_hour"]))
    close_at(after(given["topup_after_s"] // 2))
    at = after(given["topup_after_s"])
    if given["topup_u"] % currencies.get("USD").micros_per_minor:
        give(payer, given["topup_u"], at=at)  # finer than what comes in from outside
    else:
        wallets.top_up(
            owner=payer, currency="USD", amount_micros=given["topup_u"], key="t", by="test", reason="test", at=at
        )
    exhausts_at = wallet(payer, at).exhausts_at
    assert exhausts_at is not None
    assert vectors_at_doors.exhausts_at(door, at) == exhausts_at
    return {
        "seconds_left_after_topup": int((exhausts_at - at).total_seconds()),
        "seconds_from_start": int((exhausts_at - NOON).total_seconds()),
    }


def b04(given: dict[str, Any]) -> dict[str, Any]:
    payer, payee, bp = make_owner(given["balance_u"]), uuid4(), given["commission_bp"]
    lease = run(payer=payer, payee=payee, price=make_price(given["burn_u_per_hour"]), commission_bp=bp)
    close_at(after(given["ran_s"] // 2))
    exact = metering.finish(reference=lease, at=after(given["ran_s"]), ended_by="balance")
    left = wallet(payer, after(given["ran_s"])).balance_micros
    commission, net = in_account("commission"), in_account("host_earnings", payee)
    return {
        "exact_u": exact,
        "customer_charged_u": given["balance_u"] - left,
        "overrun_expense_u": -in_account("overrun_expense", payer),
        "wallet_after_u": left,
        "host_gross_u": commission + net,
        "commission_u": commission,
        "host_net_u": net,
    }


def b05(given: dict[str, Any]) -> dict[str, Any]:
    owner = make_owner(given["balance_u"])

    def place(number: int) -> bool:
        try:
            holds.place(
                owner=owner,
                currency="USD",
                amount_micros=given["hold_u"],
                reference=f"lease_{number}",
                expires_at=after(600),
                at=NOON,
            )
        except holds.InsufficientFunds:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(given["concurrent_starts"]) as pool:
        accepted = list(pool.map(place, range(given["concurrent_starts"])))
    held = wallet(owner)
    found = {
        "accepted": accepted.count(True),
        "refused": accepted.count(False),
        "held_u": held.held_micros,
        "available_u": held.available_micros,
    }
    at_door = vectors_at_doors.starts_at_once(
        balance_micros=given["balance_u"], hold_micros=given["hold_u"], count=given["concurrent_starts"]
    )
    assert at_door == found
    return found


def b08(given: dict[str, Any]) -> dict[str, Any]:
    owner = make_owner(given["balance_u"])
    to = ledger.account(kind=ledger.AccountKind.COMMISSION, currency="USD", at=NOON)
    holds.place(
        owner=owner, currency="USD", amount_micros=given["hold_u"], reference="r", expires_at=after(600), at=NOON
    )

    def capture(key: str) -> str:
        try:
            holds.capture(reference="r", amount_micros=given["captured_u"], to=to, key=key, at=NOON)
        except holds.HoldSettled:
            return "refused"
        return "captured"

    capture("first")
    second = capture("second")
    found = wallet(owner)
    return {
        "balance_after_u": found.balance_micros,
        "held_after_u": found.held_micros,
        "second_capture": second,
    }


def b09(given: dict[str, Any]) -> dict[str, Any]:
    owner, usage = make_owner(RICH), given["usage"]
    made = {
        name: grants.give(
            owner=owner,
            currency="USD",
            amount_micros=amount,
            key=name,
            priority=priority,
            promotional=kind == "promo",
            expires_at=datetime.fromisoformat(f"{NOON.year}-{expires}T00:00:00Z"),
            effective_at=LONG_AGO,
            at=LONG_AGO,
        )
        for name, priority, expires, kind, amount in given["grants"]
    }
    run(payer=owner, price=make_price(usage * 3600), at=after(-1))
    close_at(NOON)
    left = {name: ledger.balance_micros(grant.account) for name, grant in made.items()}
    drawn = {name: grant.amount_micros - left[name] for name, grant in made.items()}
    return {"drawn": {name: n for name, n in drawn.items() if n}, "left": left}


def b10(given: dict[str, Any]) -> dict[str, Any]:
    start = datetime.fromisoformat(f"{given['period']}-01T00:00:00Z")
    effective = datetime.fromisoformat(f"{given['effective']}T00:00:00Z")
    owner = make_owner(RICH)
    lease = run(payer=owner, price=make_price(given["usage_u"]), at=start)
    metering.stop(reference=lease, seq=2, at=start + timedelta(hours=1), cause="tenant")
    grant = grants.give(
        owner=owner, currency="USD", amount_micros=given["grant_u"], key="g", effective_at=effective, at=effective
    )
    metering.finish(reference=lease, at=effective, ended_by="tenant")
    close_at(effective + timedelta(days=30))
    left = ledger.balance_micros(grant.account)
    return {
        "credit_used_u": given["grant_u"] - left,
        "due_u": RICH - wallet(owner, effective + timedelta(days=30)).balance_micros,
        "grant_left_u": left,
    }


def i01(given: dict[str, Any]) -> dict[str, Any]:
    reference, start, end = given["job"]
    owner = make_owner(RICH)
    run(payer=owner, price=make_price(given["price_u_per_hour"]), reference=reference, at=datetime.fromisoformat(start))
    for _ in range(given["runs"]):
        close_at(datetime.fromisoformat(end))
    charged = RICH - wallet(owner, datetime.fromisoformat(end)).balance_micros
    return {"journals": Journal.objects.filter(key__startswith="usage:").count(), "posted_u": charged}


def i03(given: dict[str, Any]) -> dict[str, Any]:
    owner, provider = make_owner(), PaperProvider()
    payment = payments.begin(
        owner=owner, currency="USD", amount_minor=given["amount_minor"], provider="paper", key="k", at=NOON
    )
    # The answer is lost with our process: nothing of ours was written after the provider's success.
    provider.charge(key=payment.key, amount_minor=payment.amount_minor, currency="USD")
    for _ in range(given["retries"]):
        payments.attempt(payment_id=payment.pk, provider=provider, at=NOON)
    return {"provider_charges": provider.count(), "wallet_credit_u": wallet(owner).balance_micros}


def i05(given: dict[str, Any]) -> dict[str, Any]:
    owner = make_owner()
    provider = PaperProvider(silent=1, key_memory_h=given["provider_key_memory_h"])
    provider.now = NOON
    earned = given["payout_minor"] * currencies.get("USD").micros_per_minor
    _earn(owner, earned)
    payout = payouts.request(owner=owner, currency="USD", period="2026-05", provider="paper", at=NOON)
    state = payouts.send(payout_id=payout.pk, provider=provider, at=NOON).state
    released = in_account("host_earnings", owner) > 0
    provider.hidden = True
    provider.now = NOON + timedelta(hours=given["retry_after_h"])
    payouts.send(payout_id=payout.pk, provider=provider, at=provider.now)
    released = released or in_account("host_earnings", owner) > 0
    provider.hidden = False
    payouts.send(payout_id=payout.pk, provider=provider, at=provider.now)
    return {
        "paid_minor": provider.moved_minor(),
        "state_after_timeout": state,
        "released_to_balance_before_proof": released,
    }


def _earn(owner: Any, micros: int, at: datetime = NOON) -> str:
    lease = run(payer=make_owner(RICH), payee=owner, price=make_price(micros), commission_bp=0, at=at)
    metering.finish(reference=lease, at=at + timedelta(hours=1), ended_by="tenant")
    return lease


def i06(given: dict[str, Any]) -> dict[str, Any]:
    payer, hour = make_owner(RICH), after(given["seconds"])
    for price in given["price_u_per_hour"]:
        run(payer=payer, price=make_price(price))
    point = 0
    while killed_at(point, lambda: close.close(shard=0, to=hour, at=hour)):
        assert not BillingRun.objects.exists()
        point += 1
    assert point > 10  # statements there are; each was a kill point
    close.close(shard=0, to=hour, at=hour)
    return {
        "sum_posted_u": RICH - wallet(payer, hour).balance_micros,
        "runs_recorded": BillingRun.objects.count(),
        "clearing_balance_u": in_account("usage_clearing"),
    }


def i07(given: dict[str, Any]) -> dict[str, Any]:
    owner = make_owner()
    for micros in given["entries_u"]:
        give(owner, micros)
    row = AccountBalance.objects.filter(account__owner=owner)
    with transaction.atomic():
        row.update(balance_micros=given["stored_balance_u"])
        details = [found.detail for found in reconcile.findings()] or [f"true {row.get().balance_micros}, drift 0"]
        true, drift = (int(details[0].split(f"{name} ")[1].split(",")[0]) for name in ("true", "drift"))
        transaction.set_rollback(True)
    return {"true_balance_u": true, "drift_u": drift}


def _invoice(items: list[invoicing.Item], **terms: Any) -> Any:
    invoice = invoicing.draft(
        owner=terms.pop("owner", uuid4()), currency="USD", start=NOON, end=after(86_400), items=items, **terms
    )
    return invoicing.finalize(invoice_id=invoice.pk, at=NOON)


def t01(given: dict[str, Any]) -> dict[str, Any]:
    fine = currencies.get("USD").micros_per_minor
    items = [invoicing.Item(f"line {i}", minor * fine) for i, minor in enumerate(given["lines_minor"])]
    invoice = _invoice(items, tax_rate_bp=given["tax_bp"])
    notes = [
        invoicing.credit(invoice_id=invoice.pk, net_minor=minor, reason="all", at=NOON).gross_minor
        for minor in given["lines_minor"]
    ]
    assert notes == pricing.credit_notes_minor(given["lines_minor"], rate_bp=given["tax_bp"])
    return {"invoice_total_minor": invoice.due_minor, "credit_notes_minor": notes}


def t03(given: dict[str, Any]) -> dict[str, Any]:
    owner, provider = make_owner(), PaperProvider()
    payment = payments.begin(
        owner=owner, currency="USD", amount_minor=given["paid_minor"], provider="paper", key="k", at=NOON
    )
    payments.attempt(payment_id=payment.pk, provider=provider, at=NOON)
    give(owner, RICH)
    invoice = _invoice([invoicing.Item("usage", given["invoice_minor"] * 10_000)], owner=owner)
    cash, credit = payments.refundable_minor(payment, at=NOON), invoicing.max_credit_minor(invoice=invoice)
    for act in (
        lambda: payments.begin_refund(payment_id=payment.pk, amount_minor=cash + 1, at=NOON),
        lambda: invoicing.credit(invoice_id=invoice.pk, net_minor=credit + 1, reason="x", at=NOON),
    ):
        try:
            act()
        except (payments.RefundAboveCapture, invoicing.CreditAboveLine):
            continue
        raise AssertionError("more went back than was there")
    payments.begin_refund(payment_id=payment.pk, amount_minor=cash, at=NOON)
    invoicing.credit(invoice_id=invoice.pk, net_minor=credit, reason="x", at=NOON)
    return {"max_cash_refund_minor": cash, "max_credit_note_minor": credit}


def t05(given: dict[str, Any]) -> dict[str, Any]:
    payer, payee, end = make_owner(RICH), uuid4(), after(given["billed_s"])
    price = make_price(given["price_u_per_hour"])
    lease = run(payer=payer, payee=payee, price=price, commission_bp=given["commission_bp"])
    close_at(end)
    before = {k: in_account(k, o) for k, o in (("commission", None), ("host_earnings", payee))}
    charged = RICH - wallet(payer, end).balance_micros
    refund = downtime.void(
        reference=lease, member=0, start=NOON, end=after(given["down_s"]), reason="gpu", at=after(given["billed_s"])
    )
    return {
        "charged_u": charged,
        "true_u": RICH - wallet(payer, end).balance_micros,
        "refund_u": refund,
        "commission_back_u": before["commission"] - in_account("commission"),
        "host_back_u": before["host_earnings"] - in_account("host_earnings", payee),
    }


def t08(given: dict[str, Any]) -> dict[str, Any]:
    start, end, stop = (datetime.fromisoformat(t) for t in (*given["term"], given["terminated"]))
    payer = make_owner(given["price_u"])
    months = (end.year - start.year) * 12 + end.month - start.month
    by_months = months > 0 and pricing.boundary_instant(start, k=1, months=months) == end
    contract = contracts.open_contract(
        payer=payer,
        payee=uuid4(),
        currency="USD",
        reference="c",
        price_micros=given["price_u"],
        anchor=start,
        months=months if by_months else 0,
        days=0 if by_months else (end - start).days,
        fee_bp=given["fee_bp_of_remaining"],
        commission_bp=1000,
        at=start,
    )
    contracts.earn_due(at=start + (stop - start) / 2)
    assert wallet(payer, start).balance_micros == 0
    ended = contracts.terminate(contract_id=contract.pk, at=stop)
    assert wallet(payer, stop).balance_micros == ended.refund
    return {"used_u": ended.used, "remaining_u": ended.remaining, "fee_u": ended.fee, "refund_u": ended.refund}


def t09(given: dict[str, Any]) -> dict[str, Any]:
    currency = currencies.get(given["currency"])
    assert currency.minor_exponent == given["minor_exponent"]
    price = given["price"] * currencies.MICROS
    charged = pricing.prorate(price_micros=price, used=given["used_days"], period=given["period_days"])
    invoice = invoicing.draft(
        owner=uuid4(), currency=currency.code, start=NOON, end=after(9), items=[invoicing.Item("usage", charged)]
    )
    return {"charge_u": charged, "invoice_minor": invoice.due_minor, "carry_u": invoice.carry_out_micros}


def t10(given: dict[str, Any]) -> dict[str, Any]:
    (code, amount), to = given["from"], given["to"]
    owner = make_owner(amount, currency=code)
    sides = [wallets.account_of(owner=owner, currency=c, at=NOON) for c in (code, to)]
    try:
        with transaction.atomic():
            ledger.post(key="direct", kind="test", legs=ledger.flow(*sides, amount), effective_at=NOON, at=NOON)
        direct = "posted"
    except IntegrityError:
        direct = "refused"
    journal = exchange.exchange(
        owner=owner, currency=code, amount_micros=amount, to_currency=to, rate=given["rate"], key="k", by="t", at=NOON
    )
    moved = {t.currency: t.amount_micros for t in journal.transfers.all()}
    return {
        "direct_transfer": direct,
        f"{code.lower()}_debited_u": moved[code],
        f"{to.lower()}_credited_u": moved[to],
    }


def t11(given: dict[str, Any]) -> dict[str, Any]:
    try:
        pricing.parse_amount(given["amount"], minor_exponent=currencies.get(given["currency"]).minor_exponent)
    except ValueError:
        accepted = False
    else:
        accepted = True
    assert vectors_at_doors.takes_payment(given["amount"], given["currency"]) == accepted
    return {"accepted": accepted}


def t12(given: dict[str, Any]) -> dict[str, Any]:
    owner, current = uuid4(), None
    for action in given["actions"]:
        if action == "finalize":
            items = [invoicing.Item(f"line {i}", n) for i, n in enumerate(given["lines_u"])]
            current = _invoice(items, owner=owner)
        else:
            invoicing.void(invoice_id=current.pk, at=NOON)
    assert not Journal.objects.exists()
    lines = sum(line.amount_micros for line in current.lines.all())
    return {"due_minor": current.due_minor, "carry_u": current.carry_out_micros, "open_receivable_u": lines}


def h01(given: dict[str, Any]) -> dict[str, Any]:
    payee = uuid4()
    # Each second has the price that makes it cost what it should.
    prices = [
        make_price(gross * 3600, sku="h01", term="spot", starts_at=after(second))
        for second, gross in enumerate(given["gross_u"])
    ]
    terms = {"commission_bp": given["commission_bp"], "follows": True}
    run(payer=make_owner(RICH), payee=payee, price=prices[0], **terms)
    shares = [(0, 0)]
    for second, _ in enumerate(prices, start=1):
        close_at(after(second))
        shares.append((in_account("commission"), in_account("host_earnings", payee)))
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(shares)]
    return {
        "commission_u": [fee for fee, _ in steps],
        "host_u": [host for _, host in steps],
        "sum_commission_u": shares[-1][0],
    }


def h04(given: dict[str, Any]) -> dict[str, Any]:
    owner = make_owner()
    lease = _earn(owner, given["clawback_u"], at=after(-3600))
    earnings = payouts.earnings_of(owner=owner, currency="USD", at=NOON)
    bank = ledger.account(kind=ledger.AccountKind.CASH, currency="USD", part="test", at=NOON)
    gone = given["clawback_u"] - given["host_balance_u"]
    ledger.post(key="paid out", kind="test", legs=ledger.flow(earnings, bank, gone), effective_at=NOON, at=NOON)
    downtime.void(reference=lease, member=0, start=after(-3600), end=NOON, reason="gpu", at=NOON)
    debt = ledger.balance_micros(earnings)
    _earn(owner, given["later_earning_u"])
    payable = payouts.payable_micros(owner=owner, currency="USD", at=after(3600))
    with suppress(payouts.NothingToPayOut):
        payouts.request(
            owner=owner,
            currency="USD",
            period="p",
            provider="paper",
            minimum_micros=given["minimum_payout_u"],
            at=after(3600),
        )
    assert ledger.balance_micros(earnings) >= 0
    return {"host_balance_after_clawback_u": debt, "payable_after_earning_u": payable}


def h05(given: dict[str, Any]) -> dict[str, Any]:
    door = vectors_at_doors.tenant()
    payee = vectors_at_doors.owner_of(door)
    lease = run(
        payer=make_owner(RICH),
        payee=payee,
        price=make_price(given["gross_u"]),
        commission_bp=given["commission_bp"],
        tax_on_commission_bp=given["tax_on_commission_bp"],
    )
    close_at(after(1800))
    charged = metering.finish(reference=lease, at=after(3600), ended_by="tenant")
    assert vectors_at_doors.earned_micros(door, after(3600)) == in_account("host_earnings", payee)
    return {
        "commission_u": in_account("commission"),
        "tax_u": in_account("tax_payable"),
        "host_net_u": in_account("host_earnings", payee),
        "sum_u": charged,
    }


def g01(given: dict[str, Any]) -> dict[str, Any]:
    budget = Budget.objects.create(
        owner=uuid4(),
        currency="USD",
        name="b",
        amount_micros=given["budget_u"],
        thresholds_bp=[given["threshold_bp"]],
        created_at=NOON,
    )
    alarms = [len(budgets.ring(budget=budget, spent=n, at=NOON)) for n in given["accrued_u"]]
    assert alarms == vectors_at_doors.alarms_rung(
        budget_micros=given["budget_u"], threshold_bp=given["threshold_bp"], accrued_micros=given["accrued_u"]
    )
    return {"alarms": alarms}


ADAPTERS: dict[str, Adapter] = {
    "B01": b01, "B02": b02, "B04": b04, "B05": b05, "B08": b08, "B09": b09, "B10": b10,
    "I01": i01, "I03": i03, "I05": i05, "I06": i06, "I07": i07,
    "T01": t01, "T03": t03, "T05": t05, "T08": t08, "T09": t09, "T10": t10, "T11": t11, "T12": t12,
    "H01": h01, "H04": h04, "H05": h05, "G01": g01,
}  # fmt: skip
