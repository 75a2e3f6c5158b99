-- The invariants of the books (BILLING.md section 10). Each query returns (row, detail) for every row that breaks one.
-- A line `-- invariant: NAME` begins a query, `-- part: NAME` something that queries take in as /*NAME*/.

-- part: METERS
-- Charges as the pure function of segments, voids and minimum: of a settled meter for good, else up to the last close.
WITH closed AS (
    SELECT shard, extract(epoch FROM max(upper(during)))::bigint AS to_s FROM billing_billingrun GROUP BY shard
), used AS (
    SELECT m.id, m.payer_id, m.payee_id, m.commission_bp AS bp, m.tax_on_commission_bp AS tax_bp, m.settled_at,
        m.posted_micros, m.waived,
        coalesce(sum(s.rate_micros_per_hour::numeric * greatest(0, CASE WHEN m.settled_at IS NULL
            THEN least(s.end_s, coalesce(c.to_s, 0)) ELSE s.end_s END - s.start_s)), 0) - m.void_num + m.minimum_num AS num
    FROM billing_meter m LEFT JOIN billing_segment s ON s.meter_id = m.id LEFT JOIN closed c ON c.shard = m.shard
    GROUP BY m.id, c.to_s
), charged AS (
    SELECT *, CASE WHEN waived THEN 0 ELSE div(greatest(0, num), 3600) END AS micros FROM used
), shared AS (
    SELECT *, div(micros * bp, 10000) AS fee, div(div(micros * bp, 10000) * tax_bp, 10000) AS tax FROM charged
)

-- part: MOVED
-- What each account gained less what it lost. The transfers are read once: a look at each account by itself goes to
-- the table row by row, and takes minutes where this takes seconds.
SELECT a.id, a.owner, a.currency, a.kind, coalesce(s.total, 0) AS total
FROM billing_account a LEFT JOIN (
    SELECT account_id, sum(gained) AS total FROM (
        SELECT credit_id AS account_id, sum(amount_micros) AS gained FROM billing_transfer GROUP BY credit_id
        UNION ALL
        SELECT debit_id, -sum(amount_micros) FROM billing_transfer GROUP BY debit_id
    ) sides GROUP BY account_id
) s ON s.account_id = a.id

-- part: USAGE
-- Transfers of usage from both sides: an account, the one on the other side, and what the account paid.
SELECT t.debit_id AS account_id, t.credit_id AS other_id, t.amount_micros AS paid FROM billing_transfer t
JOIN billing_journal j ON j.id = t.journal_id AND j.kind = 'usage'
UNION ALL
SELECT t.credit_id, t.debit_id, -t.amount_micros FROM billing_transfer t
JOIN billing_journal j ON j.id = t.journal_id AND j.kind = 'usage'

-- invariant: I1 a transfer is in one currency
SELECT t.id, concat(t.currency, ' between ', d.currency, ' and ', c.currency) FROM billing_transfer t
JOIN billing_account d ON d.id = t.debit_id JOIN billing_account c ON c.id = t.credit_id
WHERE t.currency <> d.currency OR t.currency <> c.currency OR t.amount_micros <= 0

-- invariant: I2 a stored balance is the sum of its transfers
SELECT m.id, concat('stored ', b.balance_micros, ', true ', m.total, ', drift ', m.total - b.balance_micros)
FROM (/*MOVED*/) m JOIN billing_accountbalance b ON b.account_id = m.id WHERE b.balance_micros <> m.total

-- invariant: I3 what is held is the sum of open holds
SELECT b.account_id, concat('held ', b.held_micros, ', open holds ', coalesce(h.open, 0))
FROM billing_accountbalance b LEFT JOIN (
    SELECT p.account_id, sum(p.amount_micros) AS open FROM billing_holdpart p
    WHERE NOT EXISTS (SELECT FROM billing_holdsettlement s WHERE s.hold_id = p.hold_id) GROUP BY p.account_id
) h USING (account_id) WHERE b.held_micros <> coalesce(h.open, 0)

-- invariant: I4 a balance covers its floor and what is held
SELECT account_id, concat(balance_micros, ' - ', held_micros, ' < ', floor_micros) FROM billing_accountbalance
WHERE balance_micros - held_micros < floor_micros

-- invariant: I5 clearing is empty
SELECT id, concat(total, ' ', currency) FROM (/*MOVED*/) m WHERE kind = 'usage_clearing' AND total <> 0

-- invariant: I6 what a payer was charged follows from the segments
/*METERS*/, expected AS (SELECT payer_id, sum(micros) AS micros FROM shared GROUP BY payer_id),
actual AS (
    SELECT w.id AS payer_id, sum(u.paid) AS micros FROM (/*USAGE*/) u
    JOIN billing_account k ON k.id = u.other_id AND k.kind = 'usage_clearing'
    JOIN billing_account p ON p.id = u.account_id AND p.kind IN ('wallet', 'promo_grant', 'overrun_expense')
    JOIN billing_account w ON w.owner = p.owner AND w.currency = p.currency AND w.kind = 'wallet'
    GROUP BY w.id
)
SELECT payer_id, concat('posted ', coalesce(a.micros, 0), ', true ', coalesce(e.micros, 0))
FROM expected e FULL JOIN actual a USING (payer_id) WHERE coalesce(a.micros, 0) <> coalesce(e.micros, 0)

-- invariant: I6 what an owner of hosts earned follows from the segments
/*METERS*/, expected AS (SELECT payee_id, sum(micros - fee - tax) AS micros FROM shared GROUP BY payee_id),
actual AS (
    SELECT h.id AS payee_id, -sum(u.paid) AS micros FROM (/*USAGE*/) u
    JOIN billing_account h ON h.id = u.account_id AND h.kind = 'host_earnings' GROUP BY h.id
)
SELECT payee_id, concat('posted ', coalesce(a.micros, 0), ', true ', coalesce(e.micros, 0))
FROM expected e FULL JOIN actual a USING (payee_id) WHERE coalesce(a.micros, 0) <> coalesce(e.micros, 0)

-- invariant: I6 what a settled meter posted is its charge
/*METERS*/ SELECT id, concat('posted ', posted_micros, ', true ', micros) FROM shared
WHERE settled_at IS NOT NULL AND posted_micros <> micros

-- invariant: I7 segments do not overlap and their numerators chain
SELECT id, concat('base ', base_num, ', chain ', coalesce(chain, 0)) FROM (
    SELECT id, meter_id, start_s, end_s, base_num,
        lag(end_s) OVER w AS before_s, count(*) FILTER (WHERE end_s IS NULL) OVER (PARTITION BY meter_id) AS open,
        sum(rate_micros_per_hour::numeric * (end_s - start_s))
            OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS chain
    FROM billing_segment WINDOW w AS (PARTITION BY meter_id ORDER BY start_s, end_s NULLS LAST, id)
) s WHERE base_num <> coalesce(chain, 0) OR start_s < before_s OR open > 1

-- invariant: I7 a segment is of its meter's payer, payee and shares, and a remainder is carried once
SELECT s.id, concat('payer ', s.payer_id, ', of its meter ', m.payer_id, ', payee ', s.payee_id, ', of its meter ',
    m.payee_id, ', followed ', s.followed)
FROM (SELECT *, lead(start_s) OVER (PARTITION BY meter_id ORDER BY start_s, end_s NULLS LAST, id) AS next_s
    FROM billing_segment) s JOIN billing_meter m ON m.id = s.meter_id
WHERE (s.payer_id, s.payee_id, s.commission_bp, s.tax_on_commission_bp, s.shard)
        <> (m.payer_id, m.payee_id, m.commission_bp, m.tax_on_commission_bp, m.shard)
    OR s.settled <> (m.settled_at IS NOT NULL)
    OR (s.followed AND s.next_s IS DISTINCT FROM s.end_s)

-- invariant: I7 a rate is its price times its quantity
SELECT s.id, concat(s.rate_micros_per_hour, ' for ', s.quantity, ' x ', v.price_micros_per_hour)
FROM billing_segment s JOIN billing_priceversion v ON v.id = s.price_version_id
WHERE s.rate_micros_per_hour <> v.price_micros_per_hour * s.quantity

-- invariant: I7 a meter's void numerator is that of its applied voids
SELECT m.id, concat('stored ', m.void_num, ', true ', coalesce(v.num, 0)) FROM billing_meter m LEFT JOIN (
    SELECT v.meter_id, sum(s.rate_micros_per_hour::numeric
        * greatest(0, least(v.end_s, s.end_s) - greatest(v.start_s, s.start_s))) AS num
    FROM billing_void v JOIN billing_segment s USING (meter_id) WHERE v.applied GROUP BY v.meter_id
) v ON v.meter_id = m.id WHERE m.void_num <> coalesce(v.num, 0)

-- invariant: I7 a meter's usage is within what is stored
/*METERS*/ SELECT id, concat('used ', num, ' up to the last close, and that is not posted') FROM used
WHERE num > 9223372036854775807

-- invariant: I8 the runs of a shard tile time
SELECT id, concat('begins ', lower(during), ' after ', before) FROM (
    SELECT id, during, lag(upper(during)) OVER (PARTITION BY shard ORDER BY during) AS before FROM billing_billingrun
) r WHERE lower(during) <> coalesce(before, timestamptz 'epoch')

-- invariant: I9 of each use the host, the commission and its tax are all
SELECT j.effective_at, concat(sum(CASE WHEN t.credit_id = k.id THEN t.amount_micros ELSE -t.amount_micros END),
    ' ', t.currency, ' stay') FROM billing_transfer t
JOIN billing_journal j ON j.id = t.journal_id AND j.kind = 'usage'
JOIN billing_account k ON k.kind = 'usage_clearing' AND k.id IN (t.debit_id, t.credit_id)
GROUP BY j.effective_at, t.currency
HAVING sum(CASE WHEN t.credit_id = k.id THEN t.amount_micros ELSE -t.amount_micros END) <> 0

-- invariant: I10 a reversal is its original turned round
SELECT r.id, concat('reverses ', r.reverses_id) FROM billing_journal r WHERE r.reverses_id IS NOT NULL AND EXISTS (
    (SELECT debit_id, credit_id, amount_micros FROM billing_transfer WHERE journal_id = r.reverses_id
     EXCEPT ALL SELECT credit_id, debit_id, amount_micros FROM billing_transfer WHERE journal_id = r.id)
    UNION ALL
    (SELECT credit_id, debit_id, amount_micros FROM billing_transfer WHERE journal_id = r.id
     EXCEPT ALL SELECT debit_id, credit_id, amount_micros FROM billing_transfer WHERE journal_id = r.reverses_id))

-- invariant: an adjustment is the sum of its transfers
SELECT a.id, concat('stored ', a.gross_micros, ', true ', coalesce(x.micros, 0)) FROM billing_adjustment a LEFT JOIN (
    SELECT t.journal_id,
        sum(CASE WHEN d.kind IN ('wallet', 'promo_grant', 'overrun_expense') THEN t.amount_micros ELSE 0 END
            - CASE WHEN c.kind IN ('wallet', 'promo_grant', 'overrun_expense') THEN t.amount_micros ELSE 0 END) AS micros
    FROM billing_transfer t JOIN billing_account d ON d.id = t.debit_id JOIN billing_account c ON c.id = t.credit_id
    WHERE t.journal_id IN (SELECT journal_id FROM billing_adjustment) GROUP BY t.journal_id
) x ON x.journal_id = a.journal_id WHERE a.gross_micros <> coalesce(x.micros, 0)

-- invariant: I11 an invoice adds up
SELECT i.id, concat('due ', i.due_minor, ', carry ', i.carry_in_micros, ' to ', i.carry_out_micros, ', lines ', l.micros)
FROM billing_invoice i
CROSS JOIN LATERAL (
    SELECT coalesce(sum(amount_micros), 0) AS micros FROM billing_invoiceline WHERE invoice_id = i.id
) l
WHERE (i.due_minor - i.tax_minor) * (SELECT v.micros_per_minor FROM (VALUES /*MINOR*/) AS v(code, micros_per_minor)
        WHERE v.code = i.currency) + i.carry_out_micros <> l.micros + i.carry_in_micros
    OR i.carry_out_micros < 0

-- invariant: I11 invoice numbers have no gap
SELECT series, concat(count(number), ' numbers up to ', max(number)) FROM billing_invoice
GROUP BY series HAVING count(number) <> coalesce(max(number), 0)

-- invariant: I12 no more goes back than was captured
SELECT p.id, concat('refunds ', r.minor, ' of ', p.amount_minor) FROM billing_payment p JOIN (
    SELECT payment_id, sum(amount_minor) AS minor FROM billing_refund WHERE state <> 'refused' GROUP BY payment_id
) r ON r.payment_id = p.id WHERE r.minor > p.amount_minor OR p.state <> 'settled'

-- invariant: I13 what is in transit is what is on its way out
SELECT m.id, concat('in transit ', m.total, ', on its way ', coalesce(o.micros, 0)) FROM (/*MOVED*/) m
JOIN billing_account a ON a.id = m.id
LEFT JOIN (
    SELECT e.owner, e.currency, 'payout' AS part, sum(p.amount_minor * v.micros_per_minor) AS micros FROM billing_payout p
    JOIN billing_account e ON e.id = p.payee_id JOIN (VALUES /*MINOR*/) AS v(code, micros_per_minor) ON v.code = e.currency
    WHERE p.state IN ('created', 'unknown') GROUP BY e.owner, e.currency
    UNION ALL
    SELECT w.owner, w.currency, 'refund', sum(r.amount_minor * v.micros_per_minor) FROM billing_refund r
    JOIN billing_payment p ON p.id = r.payment_id JOIN billing_account w ON w.id = p.wallet_id
    JOIN (VALUES /*MINOR*/) AS v(code, micros_per_minor) ON v.code = w.currency
    WHERE r.state IN ('created', 'unknown') GROUP BY w.owner, w.currency
) o ON o.owner = a.owner AND o.currency = a.currency AND o.part = a.part
WHERE m.kind = 'payout_transit' AND m.total <> coalesce(o.micros, 0)

-- invariant: what a contract has not earned lies in its own account
SELECT p.id, concat('earned ', p.earned_micros, ' of ', p.price_micros, ', kept ', b.balance_micros)
FROM billing_contractperiod p JOIN billing_accountbalance b ON b.account_id = p.prepaid_id
WHERE b.balance_micros <> CASE WHEN p.closed THEN 0 ELSE p.price_micros - p.earned_micros END

-- invariant: a settled payment is in the ledger once
SELECT p.id, concat(count(j.id), ' journals') FROM billing_payment p
LEFT JOIN billing_journal j ON j.key = concat('topup:', p.provider, ':', p.provider_ref) AND p.provider_ref <> ''
GROUP BY p.id HAVING count(j.id) <> CASE WHEN p.state = 'settled' THEN 1 ELSE 0 END

-- invariant: what a bank took back was taken or is owed, and came back once where it was won
WITH moved AS (
    SELECT j.key, sum(CASE WHEN c.kind = 'cash' THEN t.amount_micros ELSE 0 END
        - CASE WHEN k.kind = 'cash' THEN t.amount_micros ELSE 0 END) AS micros
    FROM billing_journal j JOIN billing_transfer t ON t.journal_id = j.id
    JOIN billing_account c ON c.id = t.credit_id JOIN billing_account k ON k.id = t.debit_id
    WHERE j.kind = 'dispute' GROUP BY j.key
)
SELECT d.id, concat('disputed ', d.taken_micros + d.owed_micros, ', went ', coalesce(a.micros, 0), ', came back ',
    -coalesce(b.micros, 0))
FROM billing_dispute d LEFT JOIN moved a ON a.key = concat('dispute:', d.ref)
LEFT JOIN moved b ON b.key = concat('dispute:', d.ref, ':won')
WHERE coalesce(a.micros, 0) <> d.taken_micros + d.owed_micros
    OR coalesce(b.micros, 0) <> CASE WHEN d.state = 'won' THEN -(d.taken_micros + d.owed_micros) ELSE 0 END
UNION ALL
SELECT id, concat('a debt of ', -total) FROM (/*MOVED*/) m WHERE kind = 'dispute_debt' AND total > 0

-- invariant: what runs against a wallet follows from the segments
/*METERS*/, running AS (
    SELECT m.payer_id, m.id, b.as_of, b.burn_micros_per_hour, b.accrued_num,
        sum(s.rate_micros_per_hour::numeric
            * greatest(0, least(s.end_s, extract(epoch FROM b.as_of)::bigint) - s.start_s)) - m.void_num AS num
    FROM billing_meter m JOIN billing_segment s ON s.meter_id = m.id JOIN billing_accountbalance b ON b.account_id = m.payer_id
    WHERE m.settled_at IS NULL AND b.as_of IS NOT NULL GROUP BY m.id, b.account_id
), payer AS (
    SELECT r.payer_id, max(r.accrued_num) AS stored, sum(r.num - 3600 * c.micros) AS right_num
    FROM running r JOIN charged c ON c.id = r.id GROUP BY r.payer_id
)
SELECT payer_id, concat('stored ', stored, ', true ', right_num) FROM payer WHERE stored <> right_num

-- invariant: a reserve is what its hold keeps
SELECT r.id, concat('reserve of ', r.reference, ' ', r.held_micros, ', held ', coalesce(h.amount_micros, 0))
FROM billing_reserve r LEFT JOIN billing_hold h ON h.reference = concat(r.reference, ':', r.n)
    AND NOT EXISTS (SELECT FROM billing_holdsettlement s WHERE s.hold_id = h.id)
WHERE r.held_micros <> coalesce(h.amount_micros, 0) OR r.held_micros > r.full_micros
