"""The books: accounts and transfers, meters and segments, prices, and what stands on them."""

from billing.models.accounts import Account, AccountBalance, Hold, HoldPart, HoldSettlement, Journal, Transfer
from billing.models.disputes import Dispute
from billing.models.documents import CreditNote, Invoice, InvoiceCounter, InvoiceLine
from billing.models.grants import Grant
from billing.models.meters import Adjustment, BillingRun, Meter, MeterFact, Segment, Void
from billing.models.payments import InboxEvent, Payment, Payout, Refund
from billing.models.prices import PriceSeries, PriceVersion
from billing.models.reserves import Reserve
from billing.models.terms import (
    Budget,
    BudgetAlarm,
    CommissionRate,
    Contract,
    ContractPeriod,
    RunningDryWarning,
    Voucher,
)

__all__ = [
    "Account",
    "AccountBalance",
    "Adjustment",
    "BillingRun",
    "Budget",
    "BudgetAlarm",
    "CommissionRate",
    "Contract",
    "ContractPeriod",
    "CreditNote",
    "Dispute",
    "Grant",
    "Hold",
    "HoldPart",
    "HoldSettlement",
    "InboxEvent",
    "Invoice",
    "InvoiceCounter",
    "InvoiceLine",
    "Journal",
    "Meter",
    "MeterFact",
    "Payment",
    "Payout",
    "PriceSeries",
    "PriceVersion",
    "Refund",
    "Reserve",
    "RunningDryWarning",
    "Segment",
    "Transfer",
    "Void",
    "Voucher",
]
