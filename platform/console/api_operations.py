"""Every operation of the API by its name: which method of which path, what its body is, and how it answers.

The table is for the description at /api/v1/openapi.json. Tests hold it against the resolver (no door is missing or
extra), against the doors' own code (the body is what the door reads) and against the SDK (it uses the same names).
"""

from dataclasses import dataclass

from agents import hosts_api
from apikit.strict_fields import StrictSerializer
from billing import api as billing_api
from leasing import api as leasing_api
from outbox import api as outbox_api
from scheduler import exec_api, lease_requests
from tenants import api as tenants_api
from tenants import groups_api


@dataclass(frozen=True)
class Operation:
    """body: what is read. optional: nothing at all may be sent instead. answers: the statuses of success.

    form: what a success holds: `object`, `list` (a page of objects), `none`, or a media type that is not JSON.
    """

    name: str
    method: str
    path: str  # below /api/v1
    form: str = "object"
    body: type[StrictSerializer] | None = None
    optional: bool = False
    answers: tuple[int, ...] = (200,)
    public: bool = False
    needs: tuple[str, ...] = ()  # query parameters that must be there
    streams: bool = False  # answers server-sent events too, where `Accept` asks for them


def _get(name: str, path: str, form: str = "object") -> Operation:
    return Operation(name, "get", path, form)


def _list(name: str, path: str, *, public: bool = False, needs: tuple[str, ...] = ()) -> Operation:
    return Operation(name, "get", path, "list", public=public, needs=needs)


def _create(name: str, path: str, body: type[StrictSerializer], *, optional: bool = False) -> Operation:
    return Operation(name, "post", path, body=body, optional=optional, answers=(200, 201))  # 200: a dry run


def _act(name: str, path: str, body: type[StrictSerializer], *, optional: bool = True) -> Operation:
    return Operation(name, "post", path, body=body, optional=optional)


def _delete(name: str, path: str, *, form: str = "none") -> Operation:
    return Operation(name, "delete", path, form, answers=(204,) if form == "none" else (200,))


def _update(name: str, path: str, body: type[StrictSerializer]) -> Operation:
    return Operation(name, "patch", path, body=body)


_LEASE = "/leases/{id}"
_HOST = "/hosts/{id}"
_HOOK = "/webhooks/{id}"
_DELIVERY = f"{_HOOK}/deliveries/{{delivery_id}}"

OPERATIONS: tuple[Operation, ...] = (
    _list("offer_list", "/offers"),
    _create("quote_create", "/quotes", lease_requests.QuoteRequest),
    _list("quote_list", "/quotes"),
    _get("quote_get", "/quotes/{id}"),
    _delete("quote_delete", "/quotes/{id}", form="object"),
    _act("quote_cancel", "/quotes/{id}/actions/cancel", lease_requests.EndRequest),
    _create("lease_create", "/leases", lease_requests.LeaseRequest),
    _list("lease_list", "/leases"),
    _get("lease_get", _LEASE),
    _update("lease_update", _LEASE, lease_requests.LeaseEdit),
    _delete("lease_delete", _LEASE, form="object"),
    _act("lease_cancel", f"{_LEASE}/actions/cancel", lease_requests.EndRequest),
    _act("lease_end", f"{_LEASE}/actions/end", lease_requests.EndRequest),
    _act("lease_park", f"{_LEASE}/actions/park", lease_requests.ParkRequest),
    _act("lease_resume", f"{_LEASE}/actions/resume", lease_requests.EndRequest),
    _act("lease_extend", f"{_LEASE}/actions/extend", lease_requests.ChangeEnd, optional=False),
    _act("lease_shorten", f"{_LEASE}/actions/shorten", lease_requests.ChangeEnd, optional=False),
    _act("lease_defer", f"{_LEASE}/actions/defer", lease_requests.ChangeStart, optional=False),
    _act("lease_renew", f"{_LEASE}/actions/renew", lease_requests.RenewRequest),
    _act("lease_resize", f"{_LEASE}/actions/resize", lease_requests.ResizeRequest, optional=False),
    _act("lease_move", f"{_LEASE}/actions/move", lease_requests.EndRequest),
    _act("lease_restart", f"{_LEASE}/actions/restart", lease_requests.EndRequest),
    Operation("lease_events", "get", f"{_LEASE}/events", "list", streams=True),
    Operation("lease_logs", "get", f"{_LEASE}/logs", "list", streams=True),
    _get("lease_metrics", f"{_LEASE}/metrics"),
    _create("lease_exec_create", f"{_LEASE}/exec", exec_api.ExecBody),
    _get("lease_exec_get", f"{_LEASE}/exec/{{exec_id}}"),
    _list("lease_members", f"{_LEASE}/members"),
    _get("lease_charges", f"{_LEASE}/charges"),
    _get("lease_receipt", f"{_LEASE}/receipt"),
    _list("image_list", "/images"),
    _create("image_create", "/images", leasing_api.ImageBody),
    _get("image_get", "/images/{id}"),
    _delete("image_delete", "/images/{id}"),
    _list("volume_list", "/volumes"),
    _create("volume_create", "/volumes", leasing_api.VolumeBody),
    _get("volume_get", "/volumes/{id}"),
    _delete("volume_delete", "/volumes/{id}", form="object"),
    _list("secret_list", "/secrets"),
    _create("secret_create", "/secrets", leasing_api.SecretBody),
    _get("secret_get", "/secrets/{id}"),
    _delete("secret_delete", "/secrets/{id}"),
    _list("gpu_model_list", "/gpu-models"),
    _get("gpu_model_get", "/gpu-models/{slug}"),
    _list("region_list", "/regions"),
    _list("market_price_list", "/market/prices", public=True),
    _list("receipt_key_list", "/market/receipt-keys", public=True),
    _list("market_history_list", "/market/history", public=True, needs=("sku", "region")),
    _list("host_list", "/hosts"),
    _get("host_get", _HOST),
    _update("host_update", _HOST, hosts_api.HostChange),
    _act("host_cordon", f"{_HOST}/actions/cordon", hosts_api.ReasonBody),
    _act("host_uncordon", f"{_HOST}/actions/uncordon", hosts_api.ReasonBody),
    _act("host_drain", f"{_HOST}/actions/drain", hosts_api.DrainBody),
    _act("host_retire", f"{_HOST}/actions/retire", hosts_api.ReasonBody),
    _act("host_verify", f"{_HOST}/actions/verify", hosts_api.ReasonBody),
    _list("host_devices", f"{_HOST}/devices"),
    _list("host_events", f"{_HOST}/events"),
    _get("host_score", f"{_HOST}/score"),
    _list("host_self_test_list", f"{_HOST}/self-tests"),
    _list("host_maintenance_list", f"{_HOST}/maintenance"),
    _create("host_maintenance_create", f"{_HOST}/maintenance", hosts_api.MaintenanceBody),
    _delete("host_maintenance_delete", f"{_HOST}/maintenance/{{maintenance_id}}"),
    _get("host_earnings", f"{_HOST}/earnings"),
    _get("host_summary", f"{_HOST}/summary"),
    _get("host_price_advice", f"{_HOST}/price-advice"),
    _create("enrolment_create", "/enrolments", hosts_api.EnrolmentBody),
    _list("enrolment_list", "/enrolments"),
    _get("enrolment_get", "/enrolments/{id}"),
    _delete("enrolment_delete", "/enrolments/{id}"),
    _get("wallet_get", "/wallet"),
    _list("wallet_top_up_list", "/wallet/top-ups"),
    _create("wallet_top_up_create", "/wallet/top-ups", billing_api.TopUpBody),
    _get("wallet_top_up_get", "/wallet/top-ups/{id}"),
    _create("wallet_voucher_create", "/wallet/vouchers", billing_api.VoucherBody),
    _list("ledger_entry_list", "/ledger-entries"),
    _list("statement_list", "/statements"),
    _list("invoice_list", "/invoices"),
    _get("invoice_get", "/invoices/{id}"),
    _get("invoice_html", "/invoices/{id}.html", "text/html"),
    _get("invoice_csv", "/invoices/{id}.csv", "text/csv"),
    _get("invoice_pdf", "/invoices/{id}.pdf", "application/pdf"),
    _list("budget_list", "/budgets"),
    _create("budget_create", "/budgets", billing_api.BudgetBody),
    _get("budget_get", "/budgets/{id}"),
    _update("budget_update", "/budgets/{id}", billing_api.BudgetChange),
    _delete("budget_delete", "/budgets/{id}"),
    _list("earning_list", "/earnings"),
    _list("payout_list", "/payouts"),
    _create("payout_create", "/payouts", billing_api.PayoutBody),
    _list("api_key_list", "/api-keys"),
    _create("api_key_create", "/api-keys", tenants_api.ApiKeyBody),
    _get("api_key_get", "/api-keys/{id}"),
    _update("api_key_update", "/api-keys/{id}", tenants_api.ApiKeyChange),
    _delete("api_key_delete", "/api-keys/{id}"),
    _create("api_key_rotate", "/api-keys/{id}/actions/rotate", tenants_api.RotateBody, optional=True),
    _list("member_list", "/members"),
    _create("member_create", "/members", tenants_api.MemberBody),
    _get("member_get", "/members/{id}"),
    _update("member_update", "/members/{id}", tenants_api.MemberChange),
    _delete("member_delete", "/members/{id}"),
    _list("group_list", "/groups"),
    _create("group_create", "/groups", groups_api.GroupBody),
    _get("group_get", "/groups/{id}"),
    _update("group_update", "/groups/{id}", groups_api.GroupChange),
    _delete("group_delete", "/groups/{id}"),
    _list("group_member_list", "/groups/{id}/members"),
    _act("group_member_add", "/groups/{id}/members", groups_api.GroupMemberBody, optional=False),
    _delete("group_member_remove", "/groups/{id}/members/{member_id}"),
    _list("audit_event_list", "/audit-events"),
    _list("webhook_list", "/webhooks"),
    _create("webhook_create", "/webhooks", outbox_api.WebhookBody),
    _get("webhook_get", _HOOK),
    _update("webhook_update", _HOOK, outbox_api.WebhookChange),
    _delete("webhook_delete", _HOOK),
    _create("webhook_test", f"{_HOOK}/actions/test", outbox_api.NoBody, optional=True),
    _act("webhook_rotate", f"{_HOOK}/actions/rotate", outbox_api.WebhookRotation),
    _list("webhook_delivery_list", f"{_HOOK}/deliveries"),
    _get("webhook_delivery_get", _DELIVERY),
    _act("webhook_delivery_replay", f"{_DELIVERY}/actions/replay", outbox_api.NoBody),
)
