"""Seeded defects in ledger, payments and terms. Each is one replacement, with the tests that must catch it."""

from billing_mutant import DOORS, HOLDS, MODEL, RECONCILE, STRIPE, TERMS, Mutant, vector

MUTANTS = (
    Mutant(
        "the wallet pays beyond its floor",
        "billing/close.py",
        "greatest(0, least(c.gross - c.drawn, b.balance_micros - b.held_micros - b.floor_micros))",
        "c.gross - c.drawn",
        (MODEL,),
    ),
    Mutant(
        "credit is not drawn",
        "billing/close.py",
        "        _draw_grants(facts, start=start, to=to, at=at)\n",
        "",
        vector("B09"),
    ),
    Mutant(
        "credit outside its window",
        "billing/charging.py",
        "if start_s <= part.start_s and (end_s is None or part.start_s < end_s):",
        "if True:",
        (TERMS,),
    ),
    Mutant(
        "credit in order of expiry", "billing/grants.py", 'DRAW_ORDER = ("priority", ', "DRAW_ORDER = (", vector("B09")
    ),
    Mutant(
        "the host pays for the overrun",
        "billing/charging.py",
        "drawn.append((overrun(payer, at=at), max(0, due - wallet)))",
        "pass",
        vector("B04"),
    ),
    Mutant(
        "money back to the wallet first",
        "billing/charging.py",
        "    returned = []\n    for account, limit in sinks:",
        "    returned = []\n    for account, limit in []:",
        (TERMS,),
    ),
    Mutant(
        "balance read and written back",
        "billing/migrations/0007_posting_in_one_call.py",
        "SET balance_micros = b.balance_micros + deltas[i]",
        "SET balance_micros = deltas[i]",
        (TERMS,),
    ),
    Mutant(
        "the same key posts again",
        "billing/migrations/0007_posting_in_one_call.py",
        "VALUES (key_, kind_,",
        "VALUES (key_ || random(), kind_,",
        (TERMS,),
    ),
    Mutant(
        "a key is not bound to its request",
        "billing/ledger.py",
        "if stored.request_hash != request_hash:",
        "if False:",
        (TERMS,),
    ),
    Mutant(
        "what ran can be held again",
        "billing/wallets.py",
        "gone = -(-max(0, row.accrued_num) // pricing.SECONDS_PER_HOUR)",
        "gone = 0",
        (TERMS,),
    ),
    Mutant(
        "holds without a lock",
        "billing/wallets.py",
        "    ledger.lock([wallet.pk])\n    exhaustion.refresh(accounts=[wallet.pk], at=at)\n    return AccountBalance",
        "    return AccountBalance",
        (HOLDS,),
    ),
    Mutant(
        "a hold is captured twice",
        "billing/holds.py",
        "        if cursor.rowcount == 0:\n            return False\n",
        "",
        vector("B08"),
    ),
    Mutant(
        "a payment is charged under a new key",
        "billing/payments.py",
        "            key=payment.key, amount_minor=payment",
        "            key=f'{payment.key}{at}', amount_minor=payment",
        vector("I03"),
    ),
    Mutant(
        "an unknown payout is sent again",
        "billing/payouts.py",
        "            answer = provider.find(key=payout.key)\n        elif Payout",
        "            answer = provider.pay_out("
        "key=payout.key, amount_minor=payout.amount_minor, currency='USD', to='')\n        elif Payout",
        vector("I05"),
    ),
    Mutant(
        "an unknown payout is never looked up",
        "billing/payouts.py",
        "        if payout.state == IntentState.UNKNOWN:\n"
        "            answer = provider.find(key=payout.key)\n        elif",
        "        if",
        (STRIPE,),
    ),
    Mutant(
        "what a refusal gave back waits again",
        "billing/payouts.py",
        '.exclude(journal__kind="payout")',
        "",
        (DOORS,),
    ),
    Mutant(
        "refunds beyond what was captured",
        "billing/payments.py",
        "    legs += ledger.flow(_refundable(payment, at=at), _limit(payment, at=at), amount_micros)\n    try:",
        "    try:",
        vector("T03"),
    ),
    Mutant(
        "two payouts in flight",
        "billing/payouts.py",
        "    if Payout.objects.filter(payee=earnings, state__in=OPEN).exists():\n"
        '        raise PayoutInFlight("A payout is on its way.")\n',
        "",
        (TERMS,),
    ),
    Mutant(
        "a debt is paid out", "billing/payouts.py", "max(0, payable)", "abs(payable) + 10_000", vector("H04", "I05")
    ),
    Mutant(
        "credit above the line",
        "billing/invoicing.py",
        "if net_minor > max_credit_minor(invoice=invoice):",
        "if False:",
        vector("T03"),
    ),
    Mutant(
        "the carry is dropped",
        "billing/invoicing.py",
        "carry_in = before.carry_out_micros if before is not None else 0",
        "carry_in = 0",
        vector("R04"),
    ),
    Mutant(
        "an alarm rings every time",
        "billing/budgets.py",
        "rung += [alarm] if fresh else []",
        "rung += [alarm]",
        vector("G01"),
    ),
    Mutant("early end without a fee", "billing/pricing.py", "fee = remaining * fee_bp // BP", "fee = 0", vector("T08")),
    Mutant(
        "months cut in UTC",
        "billing/statements.py",
        "zone = ZoneInfo(time_zone)",
        'zone = ZoneInfo("UTC")',
        vector("C10"),
    ),
    Mutant(
        "any signature will do",
        "billing/stripe.py",
        "if not any(hmac.compare_digest(ours, theirs)",
        "if False and not any(hmac.compare_digest(ours, theirs)",
        (DOORS,),
    ),
    Mutant(
        "an event acts twice",
        "billing/stripe.py",
        "        return False\n    state = OUTCOMES",
        "    state = OUTCOMES",
        (DOORS,),
    ),
    Mutant(
        "transfers can be changed",
        "billing/migrations/0002_append_only.py",
        '"journal", "transfer", ',
        '"journal", ',
        (RECONCILE,),
    ),
    Mutant(
        "a transfer joins two currencies",
        "billing/migrations/0002_append_only.py",
        "FOREIGN KEY (credit_id, currency)\n        REFERENCES billing_account (id, currency)",
        "FOREIGN KEY (credit_id)\n        REFERENCES billing_account (id)",
        (RECONCILE,),
    ),
)
