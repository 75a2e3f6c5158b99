"""Operators' pages of what hosts bring: all of them in a table, and one host as its owner sees it, and more.

The figures are those of the owner's doors (scheduler.host_money), so that both speak of the same money. Days are of
the owner's time zone. Who may see hosts and money sees the pages; they change nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Page, Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.views.decorators.http import require_GET

from agents import baselines, score
from agents.models import Host, ScoreEntry
from apikit import clock
from apikit.money import Money
from audit import ids
from billing import rendering
from billing.models import Payout
from scheduler import host_money
from scheduler.host_money import Earned, Market

SEES = ("agents.view_host", "billing.view_journal")
DAYS = (7, 30, 92)
DAYS_DEFAULT = 30
PAGE, SHOWN = 25, 20
COST_MOST_MICROS = 10**12
NOTHING = Earned(0, 0, 0)


@dataclass(frozen=True)
class Bar:
    """One day. percent: of the best day, for its height."""

    day: date
    earned: Money
    gpu_s: int
    percent: int


@dataclass(frozen=True)
class ModelLine:
    """What a GPU-hour of one model is worth to this host. Money is None where the market says too little."""

    sku: str
    on_demand: Money | None
    spot: Money | None
    sold_brings: Money
    idle_costs: Money | None
    advised_floor: Money | None
    income_now: Money | None
    income_advised: Money | None
    market: Market


@dataclass(frozen=True)
class Line:
    """One host in the table."""

    host: Host
    gpus: int
    used_bp: int
    earned: Money
    commission: Money
    idle_gpu_s: int
    idle_cost: Money | None  # of all idle hours of its GPUs in the time that is shown


@require_GET
def hosts(request: HttpRequest) -> HttpResponse:
    """The table, a page of hosts at a time."""
    _check(request)
    at, days = clock.now(), _days(request)
    rows = Host.objects.exclude(state=Host.State.RETIRED).select_related("owner", "zone__region")
    if name := request.GET.get("q", "").strip():
        rows = rows.filter(owner__name__icontains=name) | rows.filter(name__icontains=name)
    page: Page[Host] = Paginator(rows.order_by("owner__name", "name", "pk"), PAGE).get_page(request.GET.get("p"))
    markets: dict[tuple[str, str, str], Market] = {}
    lines = [_line(host, days=days, markets=markets, at=at) for host in page]
    context = {"title": "Money of hosts", "page": page, "lines": lines, "q": name}
    return _render(request, "console/host_money_list.html", context, days=days, at=at)


@require_GET
def host(request: HttpRequest, host_id: UUID) -> HttpResponse:
    """One host: earned by day and lease, sold and idle, prices and advice, payouts, score, figures of its tests."""
    _check(request)
    rows = Host.objects.select_related("owner", "zone__region").prefetch_related("devices__model")
    found, at, days = get_object_or_404(rows, pk=host_id), clock.now(), _days(request)
    cost = _cost(request)
    money = _earnings(found, days=days, at=at)
    currency = found.zone.region.currency
    markets: dict[tuple[str, str, str], Market] = {}
    payouts = Payout.objects.filter(payee__owner=found.owner_id, payee__currency=currency).order_by("-created_at")
    mishaps = [score.Mishap(entry.at, entry.points) for entry in score.ledger(found.pk, at=at)]
    moves = ScoreEntry.objects.filter(host=found).select_related("event").order_by("-at", "-pk")
    context = {
        "title": f"Money of {found.name}",
        "host": found,
        "line": _line(found, days=days, markets=markets, at=at, money=money),
        "gross": Money(money.total.gross_micros, currency),
        "bars": _bars(found, money, days=days, at=at),
        "models": [_model(found, sku, markets=markets, cost_micros=cost, at=at) for sku in _skus(found)],
        "floor": Money(found.price_floor_micros, currency),
        "cost": cost,
        "leases": list(_leases(money, currency)),
        "payouts": [rendering.payout(row) for row in payouts.select_related("payee")[:SHOWN]],
        "score_percent": score.score_bp(mishaps, at=at) / 100,
        "moves": list(moves[:SHOWN]),
        "figures": baselines.compared(found),
    }
    return _render(request, "console/host_money.html", context, days=days, at=at)


def _check(request: HttpRequest) -> None:
    if not request.user.has_perms(SEES):
        raise PermissionDenied


def _render(
    request: HttpRequest, template: str, context: dict[str, Any], *, days: int, at: datetime
) -> TemplateResponse:  # fmt: skip
    shown = {**admin.site.each_context(request), "at": at, "days": days, "choices": DAYS, **context}
    return TemplateResponse(request, template, shown)


def _days(request: HttpRequest) -> int:
    text = request.GET.get("days", "")
    return int(text) if text in {str(days) for days in DAYS} else DAYS_DEFAULT


def _cost(request: HttpRequest) -> int:
    """Return what an hour of use costs the owner, in micros; nonsense is nothing."""
    text = request.GET.get("cost_micros", "")
    return min(int(text), COST_MOST_MICROS) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _earnings(host: Host, *, days: int, at: datetime) -> host_money.Earnings:
    return host_money.earnings(host=host, days=host_money.days_until(at=at, count=days, time_zone=host.owner.time_zone))


def _line(
    host: Host, *, days: int, markets: dict[tuple[str, str, str], Market], at: datetime,
    money: host_money.Earnings | None = None,
) -> Line:  # fmt: skip
    money = money or _earnings(host, days=days, at=at)
    bounds = host_money.days_until(at=at, count=days, time_zone=host.owner.time_zone)
    had, sold = host_money.capacity_s(host, start=bounds[0][1], end=at), money.total.gpu_seconds
    idle_s, skus = max(0, had - sold), _skus(host)
    costs = [_idle_hour(host, sku, markets=markets, at=at) for sku in skus]
    known = [cost for cost in costs if cost is not None]
    currency = host.zone.region.currency
    idle = sum(known) // len(known) * idle_s // host_money.HOUR_S if known and len(known) == len(skus) else None
    return Line(
        host=host,
        gpus=sum(device.present for device in host.devices.all()),
        used_bp=min(10_000, sold * 10_000 // had) if had else 0,
        earned=Money(money.total.earned_micros, currency),
        commission=Money(money.total.gross_micros - money.total.earned_micros, currency),
        idle_gpu_s=idle_s,
        idle_cost=None if idle is None else Money(idle, currency),
    )


def _skus(host: Host) -> list[str]:
    return sorted({device.model.slug for device in host.devices.all() if device.model and device.present})


def _market(host: Host, sku: str, *, markets: dict[tuple[str, str, str], Market], at: datetime) -> Market:
    key = (sku, host.zone.region.slug, host.tier)
    if key not in markets:
        markets[key] = host_money.market(sku=sku, region=key[1], tier=host.tier, at=at)
    return markets[key]


def _idle_hour(host: Host, sku: str, *, markets: dict[tuple[str, str, str], Market], at: datetime) -> int | None:
    market = _market(host, sku, markets=markets, at=at)
    price = host_money.prices_now(host, sku=sku, at=at).get("on_demand", 0)
    return None if market.is_thin else host_money.idle_hour_micros(price_micros=price, market=market)[1]


def _model(
    host: Host, sku: str, *, markets: dict[tuple[str, str, str], Market], cost_micros: int, at: datetime
) -> ModelLine:
    currency, market = host.zone.region.currency, _market(host, sku, markets=markets, at=at)
    prices = host_money.prices_now(host, sku=sku, at=at)
    brought, _ = host_money.idle_hour_micros(price_micros=prices.get("on_demand", 0), market=market)
    floor = host_money.advised_floor(market, cost_micros=cost_micros)

    def money(micros: int | None) -> Money | None:
        return None if micros is None else Money(micros, currency)

    def income(floor_micros: int | None) -> Money | None:
        if floor_micros is None or market.is_thin:
            return None
        return money(host_money.income_per_gpu_hour(market, floor_micros=floor_micros, cost_micros=cost_micros))

    return ModelLine(
        sku=sku, on_demand=money(prices.get("on_demand")), spot=money(prices.get("spot")),
        sold_brings=Money(brought, currency), idle_costs=money(_idle_hour(host, sku, markets=markets, at=at)),
        advised_floor=money(floor), income_now=income(host.price_floor_micros), income_advised=income(floor),
        market=market,
    )  # fmt: skip


def _bars(host: Host, money: host_money.Earnings, *, days: int, at: datetime) -> list[Bar]:
    best = max((one.earned_micros for one in money.by_day.values()), default=0)
    found = []
    for day, _, _ in host_money.days_until(at=at, count=days, time_zone=host.owner.time_zone):
        one = money.by_day.get(day, NOTHING)
        percent = one.earned_micros * 100 // best if best else 0
        found.append(Bar(day, Money(one.earned_micros, host.zone.region.currency), one.gpu_seconds, percent))
    return found


def _leases(money: host_money.Earnings, currency: str) -> Iterator[dict[str, Any]]:
    best = sorted(money.by_lease.items(), key=lambda item: -item[1].earned_micros)
    for reference, one in best[:SHOWN]:
        yield {
            "reference": reference, "pk": ids.decode("lease", reference), "gpu_s": one.gpu_seconds,
            "gross": Money(one.gross_micros, currency), "earned": Money(one.earned_micros, currency),
        }  # fmt: skip
