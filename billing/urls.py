"""Routes of money, below /api/v1/; `payment_urlpatterns` below /payments/."""

from django.urls import path

from billing import api, market_api

urlpatterns = [
    path("wallet", api.Wallet.as_view(), name="wallet"),
    path("wallet/top-ups", api.TopUpCollection.as_view(), name="top_up_list"),
    path("wallet/top-ups/<str:id>", api.TopUpItem.as_view(), name="top_up"),
    path("wallet/vouchers", api.VoucherCollection.as_view(), name="voucher_redeem"),
    path("ledger-entries", api.LedgerEntryCollection.as_view(), name="ledger_entry_list"),
    path("statements", api.StatementCollection.as_view(), name="statement_list"),
    path("invoices", api.InvoiceCollection.as_view(), name="invoice_list"),
    path("invoices/<str:id>.html", api.InvoiceItem.as_view(), {"form": "html"}, name="invoice_html"),
    path("invoices/<str:id>.pdf", api.InvoiceItem.as_view(), {"form": "pdf"}, name="invoice_pdf"),
    path("invoices/<str:id>.csv", api.InvoiceItem.as_view(), {"form": "csv"}, name="invoice_csv"),
    path("invoices/<str:id>", api.InvoiceItem.as_view(), name="invoice"),
    path("budgets", api.BudgetCollection.as_view(), name="budget_list"),
    path("budgets/<str:id>", api.BudgetItem.as_view(), name="budget"),
    path("earnings", api.EarningsCollection.as_view(), name="earnings_list"),
    path("payouts", api.PayoutCollection.as_view(), name="payout_list"),
    path("market/prices", market_api.MarketPrices.as_view(), name="market_price_list"),
    path("market/receipt-keys", market_api.ReceiptKeys.as_view(), name="receipt_key_list"),
    path("market/history", market_api.MarketHistory.as_view(), name="market_history"),
]
payment_urlpatterns = [
    path("<str:provider>/events", market_api.ProviderEvents.as_view(), name="payment_event"),
]
