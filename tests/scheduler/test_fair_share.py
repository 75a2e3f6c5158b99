"""What organizations have used lately: counted once, from billing's segments, and the weight that operators give."""

import pytest
from django.test import Client

from accounts.models import User
from audit.models import Entry
from scheduler import fair_share, waiting_line
from scheduler.models import RecentUse
from scheduler.queue_order import decayed
from tests.factories import (
    NOON,
    after,
    end_and_clean,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    place,
    price,
)

pytestmark = pytest.mark.django_db
PRICE = 3_600_000  # a thousand micro-units a second


def used() -> dict[str, int]:
    return {row.organization.name: row.used_micros for row in RecentUse.objects.select_related("organization")}


def test_what_was_used_is_price_times_seconds_and_fades() -> None:
    make_host(gpus=4)
    price(micros=PRICE)
    small, large = make_tenant(name="small"), make_tenant(name="large")
    make_active_lease(small, "A100_80G")  # ready two seconds later
    lease = make_active_lease(large, "A100_80G x3")
    end_and_clean(lease, at=after(300))

    fair_share.update(at=after(fair_share.STEP_S + fair_share.LATE_S))

    # A step begins at NOON; the three GPUs were used for half of it.
    assert used() == {"small": 598 * 1000, "large": 298 * 3 * 1000}

    fair_share.update(at=after(2 * fair_share.STEP_S + fair_share.LATE_S))

    assert used()["small"] == decayed(598_000, 600) + 600_000
    who = {(large.pk, "XTS")}
    assert fair_share.shares(who, at=after(86_400))[large.pk, "XTS"].used_micros == decayed(894_000, 86_400 - 600)


def test_a_step_counts_once_however_often_the_loop_runs_and_counting_anew_finds_the_same() -> None:
    make_host(gpus=4)
    price(micros=PRICE)
    tenant = make_tenant(name="a")
    make_active_lease(tenant, "A100_80G x2", at=NOON)
    for minutes in range(0, 90, 7):
        fair_share.update(at=after(60 * minutes))
        fair_share.update(at=after(60 * minutes))
    step_by_step = used()

    fair_share.count_again(at=after(60 * 84))

    assert step_by_step == used()
    assert step_by_step["a"] > 0


def test_what_runs_counts_an_hour_ahead_until_it_is_counted() -> None:
    make_host(gpus=4)
    price(micros=PRICE)
    tenant = make_tenant()
    make_active_lease(tenant, "A100_80G x2")

    share = fair_share.shares({(tenant.pk, "XTS")}, at=after(10))[tenant.pk, "XTS"]

    assert share.used_micros == 2 * PRICE
    assert share.weight == 100


def test_operators_change_the_weight_and_it_is_recorded(client: Client) -> None:
    tenant = make_tenant(name="weighty")
    client.force_login(User.objects.create_superuser("op", "op@example.org", "long enough to be one"))
    page = f"/admin/tenants/organization/{tenant.pk}/change/"
    form = client.get(page).context["adminform"].form
    values = {name: form.initial.get(name) or "" for name in form.fields} | {"queue_weight": 250}
    inline = {"memberships-TOTAL_FORMS": 0, "memberships-INITIAL_FORMS": 0}

    answer = client.post(page, values | inline)

    assert answer.status_code == 302, answer.context["errors"]
    tenant.refresh_from_db()
    assert tenant.queue_weight == 250
    entry = Entry.objects.get(action="organization.changed")
    assert (entry.before, entry.after) == ({"queue_weight": 100}, {"queue_weight": 250})


def test_who_used_less_is_served_first_and_everybody_sees_the_same_order() -> None:
    make_host(gpus=4)
    price(micros=PRICE)
    heavy, light = make_tenant(name="heavy"), make_tenant(name="light")
    make_active_lease(heavy, "A100_80G x4")
    first, second = make_lease(heavy, at=after(60)), make_lease(light, at=after(90))

    place(at=after(100))

    first.refresh_from_db()
    second.refresh_from_db()
    assert [lease.pk for lease in waiting_line.queue(at=after(100))] == [second.pk, first.pk]
    assert (second.queue_place, first.queue_place) == (1, 2)
