"""The base view of every door of the API: denied by construction. Who is calling stands in `principal.py`."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from psycopg.errors import DeadlockDetected, SerializationFailure
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apikit import etag, idempotency, pagination, rate_limits, statements, strict_query
from apikit.errors import NotFound
from apikit.negotiation import JSONOnly
from apikit.strict_fields import StrictSerializer
from apikit.strict_json import MalformedJSON
from audit import ids
from tenants.authentication import arrival
from tenants.models import Organization
from tenants.principal import PolicyPermission, Principal, action_of, visible_to

__all__ = ["OrganizationView", "PolicyPermission", "Principal", "visible_to"]

SAFE_METHODS = frozenset({"get", "head"})
DEADLOCK_TRIES = 3


class OrganizationView(APIView):
    """Base of every door under /api/v1: who is calling, may he, strict input, one answer per Idempotency-Key.

    A door says what each method needs and makes one call into the domain::

        class LeaseCollection(OrganizationView):
            policy = {"get": "leases:read", "post": "leases:write"}       # every method; checked at start-up
            query = {"get": {**pagination.PARAMETERS, "state": strict_query.choices(*State.values)}}
            limits = {"post": "lease_create"}                             # a policy of apikit.rate_limits

            def get(self, request: Request) -> Response:
                rows = self.mine(Lease).select_related("image")
                if "state" in self.parameters:
                    rows = rows.filter(state__in=self.parameters["state"])
                return self.page(rows, render_lease)                      # index (organization, id)

            def post(self, request: Request) -> Response:                 # runs inside the idempotency transaction
                asked = self.read(LeaseRequest)                           # a StrictSerializer; raises InvalidInput
                if self.dry_run:                                          # ?dry_run=1: whatever is written is undone
                    return Response({"plan": planning.plan(..., at=self.at)})
                lease = lifecycle.request_lease(organization=self.organization, **asked, at=self.at)
                return self.created(render_lease(lease), version=lease.version, location=f"/leases/{lease.public_id}")

        class LeaseItem(OrganizationView):
            policy = {"get": "leases:read", "patch": "leases:write"}

            def get(self, request: Request, id: str) -> Response:
                lease = self.found(self.mine(Lease), "lease", id)         # 404 for foreign, missing, misspelt alike
                return self.one(render_lease(lease), version=lease.version)   # ETag; 304 on If-None-Match

            def patch(self, request: Request, id: str) -> Response:
                lease = self.found(self.mine(Lease).select_for_update(no_key=True), "lease", id)
                self.check_version(lease.version, required=True)          # 428, 412
                ...

    Every write runs in one transaction (POST together with its idempotency row); an answer that is not 2xx rolls it
    back. A deadlock is tried again, so a handler must not act outside of the database: ring with `on_commit`.
    """

    policy: ClassVar[Mapping[str, str]] = {}
    query: ClassVar[Mapping[str, Mapping[str, strict_query.Reader]]] = {}
    limits: ClassVar[Mapping[str, str]] = {}
    shows_secret: ClassVar[bool] = False  # the answer to POST; its kept copy is sealed

    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    content_negotiation_class = JSONOnly

    parameters: dict[str, Any]
    _counted: list[rate_limits.Count]
    _is_uncounted: bool  # of a POST, until its own count is asked for together with the answer that is kept

    @property
    def principal(self) -> Principal:
        principal: Principal = self.request.user  # type: ignore[assignment]
        return principal

    @property
    def organization(self) -> Organization:
        return self.principal.organization

    @property
    def at(self) -> datetime:
        """The database's time of this request; read once."""
        return arrival(self.request)

    @property
    def dry_run(self) -> bool:
        return bool(self.parameters.get("dry_run", False))

    @property
    def request_id(self) -> str:
        return getattr(self.request._request, "request_id", "")

    # What a handler uses

    def read(self, serializer: type[StrictSerializer], *, optional: bool = False, **options: Any) -> dict[str, Any]:
        """Return the body's values or raise every fault. optional: no body at all (for an action) reads as `{}`."""
        if optional and not self.request.content_type and not _has_body(self.request):
            return serializer.read({}, **options)
        return serializer.read(self._body(), **options)

    def mine[Row: Model](self, model: type[Row], *, owner: str = "organization") -> QuerySet[Row]:
        return visible_to(model, self.principal, owner=owner)

    def found[Row: Model](self, rows: QuerySet[Row], prefix: str, text: str) -> Row:
        """Return the row with this public id among `rows`, or raise NotFound: the same for foreign and missing."""
        value: UUID | None = ids.decode(prefix, text)
        row = rows.filter(pk=value).first() if value is not None else None
        if row is None:
            raise NotFound("It does not exist, or it is not yours.")
        return row

    def page[Row: Model](
        self, rows: QuerySet[Row], render: Callable[[Row], Any], *, key: str = "id", newest_first: bool = True
    ) -> Response:
        """Answer one page; the view's `query["get"]` must hold `pagination.PARAMETERS`."""
        found = pagination.page(
            rows,
            request=self.request,
            asked=self.parameters,
            owner=str(self.organization.pk),
            key=key,
            newest_first=newest_first,
        )
        return found.response(self.request, render)

    def one(self, data: Any, *, version: int, status: int = 200) -> Response:
        """Answer one object with its version as ETag, or 304 when the caller has it."""
        known = self.request.headers.get("If-None-Match")
        if known is not None and action_of(self.request) == "get" and etag.names(known, version):
            return Response(status=304, headers={"ETag": etag.etag(version)})
        return Response(data, status=status, headers={"ETag": etag.etag(version)})

    def created(self, data: Any, *, version: int, location: str) -> Response:
        """Answer 201 with `Location` (a path below /api/v1); 200 in a dry run, after which nothing is there."""
        if self.dry_run:
            return Response(data)
        headers = {"ETag": etag.etag(version), "Location": f"/api/v1{location}"}
        return Response(data, status=201, headers=headers)

    def check_version(self, version: int, *, required: bool = False) -> None:
        """Compare If-Match with the version of a locked row. Raises PreconditionFailed, PreconditionRequired."""
        etag.check_if_match(self.request, version, required=required)

    def check_outside(self) -> None:
        """For a door to override: what a write must ask of another system (a name server), before its transaction."""

    # How a request runs

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.args, self.kwargs = args, kwargs
        self.parameters, self._counted, self._is_uncounted = {}, [], False
        self.request = self.initialize_request(request, *args, **kwargs)
        self.headers = self.default_response_headers
        try:
            self.initial(self.request, *args, **kwargs)
            response = self._answer()
        except Exception as exc:
            response = self.handle_exception(self._after_count(exc))
        self.response = self.finalize_response(self.request, response, *args, **kwargs)
        return self.response

    def check_permissions(self, request: Request) -> None:
        action = action_of(request)
        if isinstance(request.user, Principal) and not (action in self.http_method_names and hasattr(self, action)):
            raise MethodNotAllowed(str(request.method))
        super().check_permissions(request)
        request.principal = request.user  # type: ignore[attr-defined]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self._is_uncounted = True
        if action_of(request) != "post":
            self._count("requests")
        readers = dict(self.query.get(action_of(request), {}))
        if action_of(request) not in SAFE_METHODS:
            readers["dry_run"] = strict_query.flag
        self.parameters = strict_query.read(request.query_params, readers)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        for count in self._counted:  # the last, which is the narrowest, stands
            for name, value in count.headers().items():
                response[name] = value
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    def _answer(self) -> HttpResponseBase:
        action = action_of(self.request)
        if action in SAFE_METHODS:
            return self._handle()
        key = idempotency.read_key(self.request.headers.get("Idempotency-Key")) if action == "post" else None
        if key is None or self.dry_run:
            if self._is_uncounted:
                self._count("requests")
            self._count_action(action)
            self.check_outside()
            return self._retried(self._in_transaction)
        return self._answer_once(key, action)

    def _answer_once(self, key: str, action: str) -> HttpResponseBase:
        """Give the kept answer, or act and keep the answer. An answer that was given before costs no quota."""
        body = self._body() if _has_body(self.request) else None
        address = self.request.get_full_path()
        fingerprint = idempotency.fingerprint(method=action, address=address, body=body)
        kept = self._kept_or_counted(key, fingerprint, action)
        if kept is not None:
            return kept
        self.check_outside()
        return self._retried(
            lambda: idempotency.once(
                organization_id=self.organization.pk,
                key=key,
                fingerprint=fingerprint,
                at=self.at,
                act=self._handle,
                seals=self.shows_secret,
            )
        )

    def _kept_or_counted(self, key: str, fingerprint: bytes, action: str) -> HttpResponseBase | None:
        """Return the kept answer; without one, count the act too. One question for all of it."""
        kept = idempotency.kept(organization_id=self.organization.pk, key=key, at=self.at)
        policies = ["requests", *(self.limits[name] for name in [action] if name in self.limits)]
        counts = [
            rate_limits.statement(
                policy, subject=self.organization.public_id, at=self.at, unless=kept if policy != "requests" else None
            )
            for policy in policies
        ]
        rows, *found = statements.run(kept, *counts)
        self._is_uncounted = False
        for policy, counted in zip(policies, found, strict=True):
            if counted:
                self._counted.append(rate_limits.counted(policy, n=counted[0][0], at=self.at))
        return idempotency.replayed(rows, organization_id=self.organization.pk, key=key, fingerprint=fingerprint)

    def _after_count(self, exc: Exception) -> Exception:
        """Count a request that was refused before its count was asked for; return what it is refused with."""
        if self._is_uncounted and not isinstance(exc, (OperationalError, InterfaceError)):
            try:
                self._count("requests")
            except (rate_limits.RateLimited, OperationalError, InterfaceError) as refusal:
                return refusal
        return exc

    def _in_transaction(self) -> HttpResponseBase:
        with transaction.atomic():
            response = self._handle()
            if self.dry_run or not 200 <= response.status_code < 300:
                transaction.set_rollback(True)
            return response

    def _retried(self, run: Callable[[], HttpResponseBase]) -> HttpResponseBase:
        for tries_left in reversed(range(DEADLOCK_TRIES)):
            try:
                return run()
            except OperationalError as exc:
                lost_to_another = isinstance(exc.__cause__, (DeadlockDetected, SerializationFailure))
                if not lost_to_another or not tries_left or connection.in_atomic_block:
                    raise
        raise AssertionError("the last try returns or raises")

    def _handle(self) -> HttpResponseBase:
        handler: Callable[..., HttpResponseBase] = getattr(self, action_of(self.request))
        return handler(self.request, *self.args, **self.kwargs)

    def _body(self) -> Any:
        if not _has_body(self.request):
            raise MalformedJSON("A JSON object is expected; the body is empty.")
        return self.request.data

    def _count_action(self, action: str) -> None:
        if action in self.limits:
            self._count(self.limits[action])

    def _count(self, policy: str) -> None:
        self._is_uncounted = self._is_uncounted and policy != "requests"
        self._counted.append(rate_limits.count(policy, subject=self.organization.public_id, at=self.at))


def _has_body(request: Request) -> bool:
    return request.stream is not None
