"""What a webhook can be told. Messages of other topics are kept for the record and delivered to nobody."""

EVENTS: tuple[str, ...] = (
    "lease.created", "lease.scheduled", "lease.provisioning", "lease.active", "lease.parked", "lease.resumed",
    "lease.interrupted", "lease.notice", "lease.ending", "lease.ended",
    "quote.expired",
    "host.verified", "host.suspect", "host.lost", "host.online", "host.drained",
    "device.quarantined", "device.restored",
    "wallet.low", "wallet.topped_up", "wallet.disputed",
    "budget.threshold", "budget.exceeded",
    "volume.ready", "volume.full", "volume.unreachable", "volume.expiring", "volume.lost", "volume.deleted",
    "credit.posted", "invoice.issued", "payout.sent", "payout.failed",
    "key.expiring", "webhook.disabled",
)  # fmt: skip
TEST = "webhook.test"  # sent on request, to one endpoint
