"""What the doors answer with, for the API's description: the members of each kind of object, and who shows which.

One line a member, `name:type`: `?` after a type may be null; `~` before a name: not in every answer. A client must
take members that it does not know (API.md section 1), so none is forbidden.
"""

from typing import Any

from console.api_operations import Operation

type Json = dict[str, Any]

_TYPES: dict[str, Json] = {
    "text": {"type": "string"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "at": {"type": "string", "format": "date-time"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "ints": {"type": "array", "items": {"type": ["integer", "null"]}},
    "list": {"type": "array"},
    "map": {"type": "object"},
    "any": {},
    "money": {"$ref": "#/components/schemas/Money"},
    "price": {"$ref": "#/components/schemas/Price"},
}
_OBJECTS = {
    "Money": "amount:text currency:text",
    "Price": "amount:text currency:text per:text ~total_per_hour:money",
    "Lease": (
        "id:text version:int state:text state_since:at actions:texts request:text image:text image_reference:text"
        " term:Term name:text labels:map command:list? ssh_keys:texts on_interrupt:text on_exit:text notice_s:int"
        " gpu_count:int simulated:bool created_at:at active_since:at? ended_at:at? end_reason:text? end_detail:text?"
        " exit_code:int? why_waiting:map? queue_place:int? eta:map? price:price? held:money cost:Cost?"
        " members:Member[]"
    ),
    "Term": "kind:text period:text? renew:bool start_at:at? end_at:at? duration_s:int?",
    "Cost": "charged:money running:bool final:bool ~billable_seconds:int",
    "Member": (
        "rank:int host:text host_name:text host_state:text region:text zone:text state:text detail:text progress:map"
        " container:text? image_digest:text? ports:map gpu_count:int gpus:Gpu[] simulated:bool"
    ),
    "Gpu": "uuid:text model:text? units:list",
    "LeaseEvent": "seq:int at:at from_state:text? to_state:text reason:text detail:text facts:map",
    "LogPiece": "offset:int text:text",
    "Execution": (
        "id:text member:int command:texts state:text exit_code:int? output:text truncated:bool failure:text asked_at:at"
        " simulated:bool"
    ),
    "Metrics": (
        "id:text from:at to:at step_s:int sampled_every_s:int kept_s:int at:texts series:MeasuredGpu[] simulated:bool"
    ),
    "MeasuredGpu": (
        "member:int epoch:int host:text gpu:text gpu_model:text? memory_total_mib:int? simulated:bool"
        " utilization_percent:Figures memory_used_mib:Figures power_mw:Figures temperature_c:Figures"
    ),
    "Figures": "mean:ints max:ints",
    "Charges": "id:text lines:list billable_seconds:int charged:money simulated:bool",
    "Receipt": "",
    "Plan": "plan:PlanOfLease",
    "PlanOfLease": "request:text placement:list? start:map why_waiting:map? queue_place:int?",
    "Offer": (
        "request:text gpu_model:text? region:text? tier:text? vendor:text? memory_gib:int? most_in_one_machine:int"
        " available:int price:price simulated:bool"
    ),
    "Quote": (
        "id:text version:int state:text actions:texts request:text gpu_count:int sku:text price_per_hour:money"
        " price:price created_at:at expires_at:at lease:text? simulated:bool"
    ),
    "Image": (
        "id:text version:int actions:texts slug:text name:text reference:text description:text min_cuda:text?"
        " vendor:text? architectures:list ports:list command:list? size_mib:int? own:bool created_at:at"
    ),
    "Secret": "id:text version:int actions:texts name:text created_at:at",
    "Volume": (
        "id:text version:int actions:texts name:text size_gib:int used_gib:any state:text state_since:at region:text?"
        " host:text? host_state:text? lease:text? kept_from:text? price:price price_per_hour:money reserved:money"
        " charged_since:at? destroy_at:at? created_at:at ended_at:at? end_reason:text? simulated:bool"
    ),
    "GpuModel": "id:text slug:text aliases:texts vendor:text name:text mig_profiles:list fractions:list actions:texts",
    "Region": "id:text slug:text name:text currency:text simulated:bool zones:texts actions:texts",
    "MarketPrice": (
        "sku:text region:text tier:text term:text use:text notice_s:int price:price minimum_s:int from:at to:at?"
        " cause:text published_at:at version:int"
    ),
    "Host": (
        "id:text version:int actions:texts created_at:at name:text simulated:bool state:text state_reason:text"
        " state_since:at? scheduling:text scheduling_reason:text drain_deadline:at? tier:text verified_at:at?"
        " verification:map access:text price_floor:price hours:any hours_time_zone:text region:text zone:text"
        " fabric:text? last_heard_at:at? conditions:list declared:map? detected:map ports:map?"
        " reliability_bp:int"
    ),
    "Device": (
        "id:text uuid:text index:int model:text? reported_name:text? memory_mib:int? simulated:bool present:bool"
        " health:text health_reason:text health_since:at? cordoned:bool in_use:bool readings:any readings_at:at?"
    ),
    "HostEvent": "id:int at:at kind:text detail:text by:text? device:text? facts:map",
    "Score": "host:text score_bp:int formula:map entries:list what_if:map",
    "SelfTest": "id:text asked_at:at answered_at:at? passed:bool? checks:any",
    "Enrolment": (
        "id:text version:int actions:texts created_at:at expires_at:at state:text name:text zone:text access:text"
        " declared:map? simulated:bool host:text? ~token:text"
    ),
    "Wallet": "balances:Balance[]",
    "Balance": (
        "currency:text balance:money held:money accrued:money available:money credit_line:money credits:money"
        " owed:money burn:price exhausts_at:at?"
    ),
    "TopUp": (
        "id:text state:text provider:text amount:any currency:text created_at:at settled_at:at? client_secret:text?"
    ),
    "Voucher": "",
    "ReceiptKey": "",
    "LedgerEntry": "id:int kind:text account:text amount:money effective_at:at posted_at:at memo:text?",
    "Statement": "currency:text from:at to:at opening:money paid_in:money charged:money closing:money references:list",
    "Invoice": (
        "id:text number:text? state:text currency:text from:at to:at tax:any due:any issued_at:at? actions:texts"
    ),
    "Budget": "id:text name:text label:text? amount:money thresholds_bp:list action:text created_at:at"
    " ~spent_micros:int ~alarms:list",
    "Earning": "currency:text balance:money in_transit:money",
    "HostEarnings": (
        "host:text simulated:bool currency:text time_zone:text from:at to:at total:map by_day:list by_lease:list"
    ),
    "HostSummary": (
        "host:text simulated:bool state:text detected:map verification:any figures:list use:map earned:map"
        " idle_hour:list score_bp:int score_moves:list payouts:list from:at to:at"
    ),
    "PriceAdvice": "host:text simulated:bool price_floor:money items:list",
    "Maintenance": (
        "id:text version:int actions:texts host:text state:text starts_at:at ends_at:at lead_s:int message:text"
        " created_at:at"
    ),
    "Payout": "id:text state:text period:text amount:any currency:text created_at:at settled_at:at?",
    "ApiKey": (
        "id:text version:int actions:texts name:text prefix:text scopes:texts created_at:at expires_at:at?"
        " revoked_at:at? last_used_at:at?"
    ),
    "RotatedKey": "",
    "OrganizationMember": (
        "id:text version:int actions:texts user_id:text email:text role:text created_at:at"
    ),
    "Group": "id:text version:int actions:texts name:text role:text member_count:int created_at:at",
    "AuditEvent": (
        "id:text position:int at:at actor:text action:text target:text before:any after:any why:text request_id:text"
        " sha256:text"
    ),
    "Webhook": (
        "id:text version:int actions:texts url:text events:texts enabled:bool disabled_at:at? disabled_reason:text?"
        " created_at:at"
    ),
    "Delivery": (
        "id:text version:int actions:texts message_id:text type:text state:text attempts:int next_try_at:at?"
        " last_status:int? last_error:text? delivered_at:at? created_at:at"
    ),
}  # fmt: skip
# The kind of a name's first words; the longest that fits stands.
_SHOWN = {
    "lease": "Lease", "lease_events": "LeaseEvent", "lease_logs": "LogPiece", "lease_members": "Member",
    "lease_exec": "Execution", "lease_metrics": "Metrics",
    "lease_charges": "Charges", "lease_receipt": "Receipt", "offer": "Offer", "quote": "Quote", "image": "Image",
    "secret": "Secret", "volume": "Volume",
    "gpu_model": "GpuModel", "region": "Region", "market": "MarketPrice", "host": "Host",
    "host_devices": "Device", "host_events": "HostEvent", "host_score": "Score", "host_self_test": "SelfTest",
    "host_earnings": "HostEarnings", "host_summary": "HostSummary", "host_price_advice": "PriceAdvice",
    "host_maintenance": "Maintenance",
    "enrolment": "Enrolment", "wallet": "Wallet", "wallet_top_up": "TopUp", "wallet_voucher": "Voucher",
    "ledger_entry": "LedgerEntry", "statement": "Statement", "invoice": "Invoice", "budget": "Budget",
    "earning": "Earning", "payout": "Payout", "receipt_key": "ReceiptKey", "api_key": "ApiKey",
    "api_key_rotate": "RotatedKey",
    "member": "OrganizationMember", "group": "Group", "group_member_list": "OrganizationMember",
    "audit_event": "AuditEvent", "webhook": "Webhook", "webhook_delivery": "Delivery",
    "webhook_test": "Delivery",
}  # fmt: skip
# Doors that plan instead, where a dry run is asked for.
_PLANS = frozenset({"lease_create", "lease_resize", "lease_move"})


def schemas() -> dict[str, Json]:
    """Return the schema of every kind of object, by its name."""
    return {name: _object(members) for name, members in _OBJECTS.items()}


def kind_of(operation: Operation) -> str | None:
    """Return what an operation shows; None if nobody has said it here."""
    words = operation.name.split("_")
    fitting = ("_".join(words[:count]) for count in range(len(words), 0, -1))
    return next((_SHOWN[name] for name in fitting if name in _SHOWN), None)


def of(operation: Operation) -> Json:
    """Return the schema of what an operation answers with; an object of unknown members if nobody has said."""
    kind = kind_of(operation)
    if kind is None:
        return {"$ref": "#/components/schemas/Page"} if operation.form == "list" else {"type": "object"}
    shown = {"$ref": f"#/components/schemas/{kind}"}
    if operation.form == "list":
        page = {"$ref": "#/components/schemas/Page"}
        return {"allOf": [page, {"type": "object", "properties": {"items": {"type": "array", "items": shown}}}]}
    if operation.name in _PLANS:
        return {"anyOf": [shown, {"$ref": "#/components/schemas/Plan"}]}
    return shown


def _object(members: str) -> Json:
    read = [member.partition(":")[::2] for member in members.split()]
    properties = {name.removeprefix("~"): _type(kind) for name, kind in read}
    required = [name for name, _ in read if not name.startswith("~")]
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def _type(kind: str) -> Json:
    if kind.endswith("?"):
        return {"anyOf": [_type(kind[:-1]), {"type": "null"}]}
    if kind.endswith("[]"):
        return {"type": "array", "items": _type(kind[:-2])}
    return _TYPES.get(kind, {"$ref": f"#/components/schemas/{kind}"})
