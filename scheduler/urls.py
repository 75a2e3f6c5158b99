"""Doors of the decider, under /api/v1/."""

from django.urls import path

from scheduler import acts_api, api, exec_api, host_money_api, metrics_api, offers_api

urlpatterns = [
    path("leases", api.LeaseCollection.as_view(), name="lease-collection"),
    path("leases/<str:id>", api.LeaseItem.as_view(), name="lease-item"),
    path("leases/<str:id>/events", api.LeaseEvents.as_view(), name="lease-events"),
    path("leases/<str:id>/logs", api.LeaseLogs.as_view(), name="lease-logs"),
    path("leases/<str:id>/metrics", metrics_api.LeaseMetrics.as_view(), name="lease-metrics"),
    path("leases/<str:id>/exec", exec_api.LeaseExecs.as_view(), name="lease-execs"),
    path("leases/<str:id>/exec/<str:exec_id>", exec_api.LeaseExec.as_view(), name="lease-exec"),
    path("leases/<str:id>/members", api.LeaseMembers.as_view(), name="lease-members"),
    path("leases/<str:id>/charges", api.LeaseCharges.as_view(), name="lease-charges"),
    path("leases/<str:id>/receipt", api.LeaseReceipt.as_view(), name="lease-receipt"),
    path("leases/<str:id>/actions/end", acts_api.LeaseEnd.as_view(), name="lease-end"),
    path("leases/<str:id>/actions/cancel", acts_api.LeaseEnd.as_view(), name="lease-cancel"),
    path("leases/<str:id>/actions/<str:action>", acts_api.LeaseAction.as_view(), name="lease-action"),
    path("hosts/<str:id>/earnings", host_money_api.HostEarnings.as_view(), name="host-earnings"),
    path("hosts/<str:id>/summary", host_money_api.HostSummary.as_view(), name="host-summary"),
    path("hosts/<str:id>/price-advice", host_money_api.HostPriceAdvice.as_view(), name="host-price-advice"),
    path("offers", offers_api.OfferCollection.as_view(), name="offer-collection"),
    path("quotes", offers_api.QuoteCollection.as_view(), name="quote-collection"),
    path("quotes/<str:id>", offers_api.QuoteItem.as_view(), name="quote-item"),
    path("quotes/<str:id>/actions/cancel", offers_api.QuoteCancel.as_view(), name="quote-cancel"),
]
