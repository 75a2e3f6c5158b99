"""Faults between two steps: one lease that cannot be placed, GPUs that are not clean, prices that moved meanwhile."""

from collections.abc import Sequence
from typing import Any

import pytest

from agents import workloads
from agents.models import Device, Host, Workload
from billing import metering, price_list, spot
from leasing import calendar, catalogue_view, promised_price, quotes
from leasing.models import Allocation
from leasing.states import EndReason, State
from scheduler import converging, planning, recovery
from tests.factories import (
    NOON,
    after,
    hear,
    make_active_lease,
    make_gpu_model,
    make_host,
    make_lease,
    make_tenant,
    place,
    price,
    say,
    wanted,
)  # fmt: skip

pytestmark = pytest.mark.django_db
HOUR = 3600


def test_who_lost_his_claim_changes_nothing_any_more() -> None:
    make_host()
    price()
    lease = make_lease()
    place(at=NOON)
    say(lease, "ready", at=after(2))
    ((_, lost),) = converging._claim(after(3))
    ((_, token),) = converging._claim(after(14))

    converging._look_at(lease.pk, lost, after(14))
    lease.refresh_from_db()
    assert (lease.state, lease.claim_token) == (State.PROVISIONING, token)

    converging._look_at(lease.pk, token, after(15))
    lease.refresh_from_db()
    assert lease.state == State.ACTIVE


def test_a_quote_whose_lease_would_be_over_is_over() -> None:
    tenant = make_tenant()
    make_host()
    price()
    quote = planning.quote(
        organization=tenant, wanted=wanted(tenant, term={"kind": "on_demand", "end_at": after(90)}), ttl_s=900, at=NOON
    )

    with pytest.raises(quotes.QuoteExpired):
        planning.redeem(organization=tenant, quote=quote, said={}, at=after(600), created_by="test")


def test_a_gpu_that_fails_under_a_lease_that_waits_for_its_host_does_not_make_it_run_again() -> None:
    make_host()
    price()
    lease = make_active_lease(on_interrupt="wait_for_host")
    Device.objects.update(health=Device.Health.LOST, health_since=after(50))
    for second in range(60, 70):
        say(lease, "ready", at=after(second))
        converging.converge(at=after(second))

    lease.refresh_from_db()
    assert lease.state == State.INTERRUPTED
    assert lease.events.filter(to_state=State.INTERRUPTED).count() == 1
    assert metering.cost(reference=lease.public_id, at=after(99)).seconds == 48


def test_gpus_are_not_let_again_while_an_earlier_container_on_them_is_not_known_to_be_gone() -> None:
    host = make_host()
    price()
    lease = make_active_lease()
    Workload.objects.update(last_valid_until=after(70))
    hear(lease, at=after(10))
    recovery.restart_now(lease=lease, at=after(10))  # epoch 2, of which the host never hears
    Host.objects.filter(pk=host.pk).update(state=Host.State.LOST)

    converging.converge(at=after(41))

    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert Allocation.objects.filter(released_at=None).count() == 1
    Workload.objects.filter(epoch=1).update(gone_at=after(60))
    converging.converge(at=after(61))
    assert Allocation.objects.filter(released_at=None).count() == 0


def test_a_lease_that_cannot_be_bound_does_not_stop_the_placing_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(gpus=4)
    price()
    poison, healthy = make_lease(), make_lease()
    real = workloads.want_all

    def want(wanted: Sequence[workloads.Wanted], **asked: Any) -> list[Workload]:
        if any(one.reference == poison.public_id for one in wanted):
            raise RuntimeError("poison")
        return real(wanted, **asked)

    monkeypatch.setattr(workloads, "want_all", want)

    place(at=after(1))

    poison.refresh_from_db(), healthy.refresh_from_db()
    assert (poison.state, healthy.state) == (State.PENDING, State.PROVISIONING)
    assert poison.why_waiting is not None


def test_a_price_that_exists_only_for_another_notice_sells_nothing() -> None:
    make_host(gpus=2)
    price()
    series = price_list.Series(
        sku="A100_80G", region="sim", tier="verified", term="spot", use="active", currency="XTS", notice_s=600
    )
    price_list.publish(series=series, price_micros_per_hour=1, starts_at=NOON, cause="test", at=NOON)

    with pytest.raises(promised_price.NothingForSale):
        make_lease(term="spot")
    tenant = make_tenant()
    assert planning.offers(organization=tenant, currency="XTS", term="spot", region=None, request=None, at=NOON) == []


def test_a_quote_for_later_is_not_redeemed_onto_a_gpu_that_is_not_given_back_yet() -> None:
    tenant = make_tenant()
    make_host()
    price()
    before = make_active_lease(term={"kind": "on_demand", "end_at": after(300)})
    quote = planning.quote(
        organization=tenant, wanted=wanted(tenant, term={"kind": "on_demand", "start_at": after(600)}), ttl_s=900,
        at=after(10),
    )  # fmt: skip
    hear(before, at=after(300))
    converging.converge(at=after(300))  # ends; its container cannot be stopped

    with pytest.raises(calendar.DevicesTaken):
        planning.redeem(organization=tenant, quote=quote, said={}, at=after(700), created_by="test")

    assert Workload.objects.count() == 1


def test_a_share_of_a_card_begins_at_its_time_beside_the_other_shares_of_its_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogue_view, "_kept", None)
    tenant = make_tenant()
    make_gpu_model("RTX_4090_24G", memory_gib=24, fractions=["0.5"])
    make_host(model="RTX_4090_24G")
    price("RTX_4090_24G")
    price("RTX_4090_24G/0.5", micros=1_800_000)
    make_active_lease(tenant, "RTX_4090_24G/0.5")
    lease = make_lease(tenant, "RTX_4090_24G/0.5", term={"kind": "on_demand", "start_at": after(600)})
    place(at=after(5))
    lease.refresh_from_db()
    assert lease.state == State.SCHEDULED

    converging.converge(at=after(600))

    lease.refresh_from_db()
    assert lease.state == State.PROVISIONING


def test_what_ran_before_the_loop_looked_is_charged() -> None:
    make_host()
    price()
    lease = make_lease()
    place(at=NOON)
    say(lease, "ready", at=after(2))
    say(lease, "exited", at=after(302), exit_code=0)

    for second in (310, 311, 312):
        converging.converge(at=after(second))

    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.COMPLETED
    assert metering.cost(reference=lease.public_id, at=after(999)).seconds == 300


def test_a_gpu_that_its_container_lost_sight_of_is_not_charged() -> None:
    make_host()
    price()
    lease = make_active_lease()
    say(lease, "ready", at=after(20), visible_devices=["SIM-other"])

    converging.converge(at=after(20))

    lease.refresh_from_db()
    assert lease.state != State.ACTIVE
    assert metering.cost(reference=lease.public_id, at=after(99)).seconds == 18


def test_a_container_that_its_host_does_not_name_any_more_is_not_charged() -> None:
    make_host()
    price()
    lease = make_active_lease()
    Workload.objects.update(reported_at=after(20))
    hear(lease, at=after(40))

    converging.converge(at=after(40))

    lease.refresh_from_db()
    assert lease.state != State.ACTIVE
    assert metering.cost(reference=lease.public_id, at=after(99)).seconds == 18


def test_a_lease_that_waited_is_never_charged_more_than_its_cap() -> None:
    host = make_host(state=Host.State.UNVERIFIED)
    price(micros=5_000_000)
    cap = {"max_price": {"amount": "3.000000", "currency": "XTS", "amount_micros": 3_000_000}}
    lease = make_lease(constraints=cap)
    series = price_list.Series(
        sku="A100_80G", region="sim", tier="verified", term="on_demand", use="active", currency="XTS"
    )
    price_list.publish(series=series, price_micros_per_hour=2_000_000, starts_at=after(60), cause="test", at=after(30))
    Host.objects.filter(pk=host.pk).update(state=Host.State.ONLINE)

    place(at=after(61))

    lease.refresh_from_db()
    assert all(member.price_micros_per_hour <= 3_000_000 for member in lease.members.all())


def test_an_owners_floor_is_held_against_the_price_that_the_lease_will_pay() -> None:
    host = make_host(state=Host.State.UNVERIFIED, price_floor_micros=4_000_000)
    price(micros=2_000_000)
    lease = make_lease()
    series = price_list.Series(
        sku="A100_80G", region="sim", tier="verified", term="on_demand", use="active", currency="XTS"
    )
    price_list.publish(series=series, price_micros_per_hour=5_000_000, starts_at=after(60), cause="test", at=after(30))
    Host.objects.filter(pk=host.pk).update(state=Host.State.ONLINE)

    place(at=after(61))

    lease.refresh_from_db()
    assert lease.state == State.PENDING


@pytest.mark.parametrize(("exit_code", "state"), [(137, State.PROVISIONING), (0, State.ENDING)])
def test_a_lease_whose_host_comes_back_without_its_container_does_not_wait_in_vain(
    exit_code: int, state: State
) -> None:
    host = make_host()
    price()
    lease = make_active_lease(on_interrupt="wait_for_host")
    hear(lease, at=after(100))
    Host.objects.filter(pk=host.pk).update(state=Host.State.LOST)
    converging.converge(at=after(131))

    say(lease, "exited", at=after(300), exit_code=exit_code)
    converging.converge(at=after(301))

    lease.refresh_from_db()
    assert lease.state in {state, State.ENDED}
    assert lease.epoch == (2 if exit_code else 1)
    assert metering.cost(reference=lease.public_id, at=after(400)).seconds == 98


def test_a_command_that_crashed_since_its_gpu_was_lost_has_not_completed() -> None:
    make_host(gpus=2)
    price()
    lease = make_active_lease()
    say(lease, "ready", at=after(50), unusable=True)
    say(lease, "exited", at=after(53), exit_code=1)

    converging.converge(at=after(54))

    lease.refresh_from_db()
    assert lease.state == State.PENDING
    assert metering.cost(reference=lease.public_id, at=after(99)).seconds == 48


def test_nobody_of_another_term_takes_what_a_lease_before_him_waits_for() -> None:
    make_host(gpus=2)
    price()
    price(term="reserved:P1W")
    make_active_lease(term={"kind": "on_demand", "end_at": after(HOUR)})
    before_him = make_lease(request="A100_80G x2", term="P1W", at=after(5))
    late = make_lease(at=after(6))

    place(at=after(7))

    before_him.refresh_from_db(), late.refresh_from_db()
    assert before_him.eta is not None
    assert before_him.eta["certainty"] == "certain"
    assert late.state == State.PENDING


def test_a_spot_lease_is_never_charged_above_its_cap() -> None:
    make_host()
    price(term="spot", micros=2_000_000)
    cap = {"max_price": {"amount": "3.000000", "currency": "XTS", "amount_micros": 3_000_000}}
    lease = make_active_lease(term="spot", constraints=cap)
    series = price_list.Series("A100_80G", "sim", "verified", "spot", "active", "XTS", notice_s=120)
    spot.move(series=series, price_micros_per_hour=4_000_000, starts_at=after(602), cause="test", at=after(302))
    hear(lease, at=after(605))

    converging.converge(at=after(605))

    lease.refresh_from_db()
    assert lease.ending_reason == EndReason.PREEMPTED
    assert metering.cost(reference=lease.public_id, at=after(9999)).charged_micros == 2_000_000 * 600 // 3600
