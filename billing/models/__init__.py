"""The books: accounts and transfers, meters and segments, prices."""

from billing.models.accounts import Account, AccountBalance, Hold, HoldPart, HoldSettlement, Journal, Transfer
from billing.models.grants import Grant
from billing.models.meters import Adjustment, BillingRun, Meter, MeterFact, Segment, Void
from billing.models.prices import PriceSeries, PriceVersion

__all__ = [
    "Account",
    "AccountBalance",
    "Adjustment",
    "BillingRun",
    "Grant",
    "Hold",
    "HoldPart",
    "HoldSettlement",
    "Journal",
    "Meter",
    "MeterFact",
    "PriceSeries",
    "PriceVersion",
    "Segment",
    "Transfer",
    "Void",
]
