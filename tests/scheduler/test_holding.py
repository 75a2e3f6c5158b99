"""A large request without a known start gets through while small ones keep coming, and they lose little by it."""

import random

import pytest

from leasing.models import Lease
from leasing.states import State
from scheduler import asks, holding, placing
from scheduler.holding import Holding
from scheduler.overlay import Overlay
from tenants.models import Organization
from tests.factories import after, end_and_clean, make_active_lease, make_host, make_lease, make_tenant, price

pytestmark = pytest.mark.django_db
HOSTS, GPUS, MINUTES = 2, 3, 8


@pytest.fixture
def tenant() -> Organization:
    for n in range(HOSTS):
        make_host(gpus=GPUS, name=f"host-{n}")
    price()
    return make_tenant(gpu_quota=100_000, micros=10**13)


def _pressure(tenant: Organization) -> tuple[bool, int]:
    """Let single GPUs come free one after the other, while single ones are always asked for; return whether the large
    request got a machine, and how many single ones started meanwhile."""
    chance = random.Random(7)
    running = [make_active_lease(tenant, "A100_80G") for _ in range(HOSTS * GPUS)]
    large = make_lease(tenant, f"A100_80G x{GPUS}", at=after(60))
    small: list[Lease] = []
    for minute in range(MINUTES):
        at = 60 + holding.LONG_S + 60 * minute
        end_and_clean(running.pop(chance.randrange(len(running))), at=after(at))
        small.append(make_lease(tenant, at=after(at)))
        placing.place_pending(at=after(at + 1), grace_s=30)
        large.refresh_from_db()
        if large.state == State.PROVISIONING:
            break
        running += Lease.objects.filter(state=State.PROVISIONING).exclude(pk__in=[lease.pk for lease in running])
    started = Lease.objects.filter(pk__in=[lease.pk for lease in small], state=State.PROVISIONING)
    return large.state == State.PROVISIONING, started.count()


def test_a_large_request_gets_a_machine_while_small_ones_keep_coming(tenant: Organization) -> None:
    through, started = _pressure(tenant)

    assert through
    assert started > 0  # what came free elsewhere went to the small ones as before


def test_without_a_machine_held_open_it_would_be_overtaken(
    tenant: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Holding, "hold", lambda *_: None)

    assert _pressure(tenant)[0] is False


def test_what_is_free_on_one_machine_is_kept_from_those_behind_it_only(tenant: Organization) -> None:
    by_host: dict[object, list[Lease]] = {}
    for lease in [make_active_lease(tenant, "A100_80G") for _ in range(HOSTS * GPUS)]:
        by_host.setdefault(lease.members.get().host_id, []).append(lease)
    nearest, other = by_host
    large = [make_lease(tenant, f"A100_80G x{GPUS}", at=after(40 + n)) for n in range(2)]
    for lease in (*by_host[nearest][:2], by_host[other][0]):
        end_and_clean(lease, at=after(50))
    at = 62 + holding.LONG_S
    behind = [make_lease(tenant, at=after(at + n)) for n in range(2)]
    placing.place_pending(at=after(at + 5), grace_s=30)

    placed = Lease.objects.filter(state=State.PROVISIONING)
    assert [lease.members.get().host_id for lease in placed] == [other]  # one machine is held, and no second one
    assert placed.get().pk in {lease.pk for lease in behind}
    assert {Lease.objects.get(pk=lease.pk).state for lease in large} == {State.PENDING}


def test_before_its_time_and_for_spot_nothing_is_held(tenant: Organization) -> None:
    running = [make_active_lease(tenant, "A100_80G") for _ in range(HOSTS * GPUS)]
    end_and_clean(running[0], at=after(50))
    large = make_lease(tenant, f"A100_80G x{GPUS}", at=after(60))
    overlay = Overlay(after(100))
    pool = overlay.pool(large.price_term, large.currency)

    def held(at: int) -> bool:
        return Holding(after(at)).hold(large, asks.ask_for(large, pool, at=after(at), grace_s=30), pool) is not None

    assert [held(at) for at in (61, 59 + holding.LONG_S, 60 + holding.LONG_S)] == [False, False, True]
    large.term_kind = Lease.TermKind.SPOT
    assert not held(60 + holding.LONG_S)
