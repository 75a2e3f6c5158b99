"""Doors of owners to what a machine brings: its whole picture, its earnings by day and lease, advice on its floor."""

from dataclasses import asdict
from datetime import datetime
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from agents import baselines, host_rendering
from agents import score as scoring
from agents.models import Host
from apikit import strict_query
from apikit.instants import instant
from apikit.money import Money
from billing import rendering
from billing.models import Payout
from scheduler import host_money
from tenants.access import OrganizationView

DAYS_DEFAULT, DAYS_MOST = 30, 92
SCORE_MOVES = 10


class _MoneyView(OrganizationView):
    policy: ClassVar = {"get": "billing:read"}

    def host(self, id: str) -> Host:
        rows: QuerySet[Host] = self.mine(Host, owner="owner").select_related("zone__region")
        return self.found(rows.prefetch_related("devices__model"), "host", id)

    def days(self) -> list[Any]:
        count = self.parameters.get("days", DAYS_DEFAULT)
        return host_money.days_until(at=self.at, count=count, time_zone=self.organization.time_zone)


class HostEarnings(_MoneyView):
    """What the host earned, by day (the organization's time zone) and by lease; running leases up to now."""

    query: ClassVar = {"get": {"days": strict_query.integer(1, DAYS_MOST)}}

    def get(self, request: Request, id: str) -> Response:
        host, days = self.host(id), self.days()
        found = host_money.earnings(host=host, days=days)
        currency = host.zone.region.currency
        return Response(
            {
                "host": host.public_id,
                "simulated": host.simulated,
                "currency": currency,
                "time_zone": self.organization.time_zone,
                "from": instant(days[0][1]),
                "to": instant(days[-1][2]),
                "total": _earned(found.total, currency),
                "by_day": [
                    {"day": day.isoformat()} | _earned(found.by_day.get(day, NOTHING), currency) for day, _, _ in days
                ],
                "by_lease": [{"lease": name} | _earned(one, currency) for name, one in sorted(found.by_lease.items())],
            }
        )


class HostSummary(_MoneyView):
    """The owner's picture: detected, verified, in use, earned, what an idle hour costs, score moves, payouts."""

    query: ClassVar = {"get": {"days": strict_query.integer(1, DAYS_MOST)}}

    def get(self, request: Request, id: str) -> Response:
        host, days = self.host(id), self.days()
        currency = host.zone.region.currency
        found = host_money.earnings(host=host, days=days)
        shown = host_rendering.host(host)
        scored = host_rendering.score(host, scoring.ledger(host.pk, at=self.at), at=self.at)
        paid = self.mine(Payout, owner="payee__owner").filter(payee__currency=currency).select_related("payee")
        return Response(
            {
                "host": host.public_id,
                "simulated": host.simulated,
                "state": host.state,
                "detected": shown["detected"],
                "verification": shown["verification"],
                "figures": [asdict(one) for one in baselines.compared(host)],
                "use": _use(host, found, days[0][1], self.at),
                "earned": _earned(found.total, currency),
                "idle_hour": [_idle(host, sku, self.at) for sku in _skus(host)],
                "score_bp": scored["score_bp"],
                "score_moves": scored["entries"][:SCORE_MOVES],
                "payouts": [rendering.payout(one) for one in paid.order_by("-created_at")[:SCORE_MOVES]],
                "from": instant(days[0][1]),
                "to": instant(days[-1][2]),
            }
        )


class HostPriceAdvice(_MoneyView):
    """Which price floor would leave the most, from what comparable GPUs were sold for; says so where that is little.

    cost_micros_per_gpu_hour: what an hour of use costs the owner, mostly power.
    """

    query: ClassVar = {"get": {"cost_micros_per_gpu_hour": strict_query.integer(0, 10**12)}}

    def get(self, request: Request, id: str) -> Response:
        host = self.host(id)
        cost = self.parameters.get("cost_micros_per_gpu_hour", 0)
        return Response(
            {
                "host": host.public_id,
                "simulated": host.simulated,
                "price_floor": Money(host.price_floor_micros, host.zone.region.currency).to_json(),
                "items": [_advice(host, sku, cost, self.at) for sku in _skus(host)],
            }
        )


NOTHING = host_money.Earned(0, 0, 0)
FORMULA = (
    "income(f) = sum over prices p >= f of q(p) * (p * (1 - commission) - cost), per GPU and hour; q(p): GPU-hours sold"
    " at p by GPU-hours there were, last 14 days, same model, region and tier; the floor with the largest income"
)


def _skus(host: Host) -> list[str]:
    return sorted({device.model.slug for device in host.devices.all() if device.model and device.present})


def _earned(one: host_money.Earned, currency: str) -> dict[str, Any]:
    return {
        "gpu_seconds": one.gpu_seconds,
        "gross": Money(one.gross_micros, currency).to_json(),
        "earned": Money(one.earned_micros, currency).to_json(),
    }


def _use(host: Host, found: host_money.Earnings, start: datetime, end: datetime) -> dict[str, int]:
    had = host_money.capacity_s(host, start=start, end=end)
    sold = found.total.gpu_seconds
    return {
        "gpu_seconds_had": had,
        "gpu_seconds_sold": sold,
        "used_bp": min(10_000, sold * 10_000 // had) if had else 0,
    }


def _market(host: Host, sku: str, at: datetime) -> host_money.Market:
    return host_money.market(sku=sku, region=host.zone.region.slug, tier=host.tier, at=at)


def _idle(host: Host, sku: str, at: datetime) -> dict[str, Any]:
    currency = host.zone.region.currency
    price = host_money.prices_now(host, sku=sku, at=at).get("on_demand")
    market = _market(host, sku, at)
    brought, expected = host_money.idle_hour_micros(price_micros=price or 0, market=market)
    return {
        "model": sku,
        "price": None if price is None else Money(price, currency).to_json() | {"per": "gpu_hour"},
        "a_sold_hour_brings": Money(brought, currency).to_json(),
        "an_idle_hour_costs": None if market.is_thin else Money(expected, currency).to_json(),
        "market_used_bp": None if market.is_thin else market.used_bp,
        "data": _data(market),
    }


def _advice(host: Host, sku: str, cost: int, at: datetime) -> dict[str, Any]:
    currency, market = host.zone.region.currency, _market(host, sku, at)
    floor = host_money.advised_floor(market, cost_micros=cost)
    incomes = {
        name: host_money.income_per_gpu_hour(market, floor_micros=value, cost_micros=cost)
        for name, value in (("now", host.price_floor_micros), ("advised", floor))
        if value is not None and not market.is_thin
    }
    return {
        "model": sku,
        "advised_floor": None if floor is None else Money(floor, currency).to_json() | {"per": "gpu_hour"},
        "income_now": Money(incomes["now"], currency).to_json() if incomes else None,
        "income_advised": Money(incomes["advised"], currency).to_json() if incomes else None,
        "prices_in_force": {
            term: Money(micros, currency).to_json()
            for term, micros in host_money.prices_now(host, sku=sku, at=at).items()
        },
        "market_used_bp": None if market.is_thin else market.used_bp,
        "data": _data(market),
        "formula": FORMULA,
    }


def _data(market: host_money.Market) -> dict[str, Any]:
    return {
        "days": host_money.MARKET_DAYS,
        "hosts": market.hosts,
        "gpu_hours_sold": market.sold_s // host_money.HOUR_S,
        "is_thin": market.is_thin,
        "least": {"hosts": host_money.LEAST_HOSTS, "gpu_hours_sold": host_money.LEAST_GPU_HOURS},
    }
