"""A database that was restored to an earlier state: what runs is adopted or stopped, nothing is let again blindly."""

import json
from datetime import datetime

import pytest
from django.core.management import CommandError, call_command

from agents.models import Host, Workload
from agents.protocol import NOT_RENEWED
from audit.models import Entry
from billing import metering, reconcile
from leasing.models import Lease
from leasing.states import State
from scheduler import converging, planning, restoring
from tests.factories import (
    after,
    end_and_clean,
    hear,
    make_active_lease,
    make_host,
    make_lease,
    make_tenant,
    place,
    price,
    say,
)

pytestmark = pytest.mark.django_db
HEARD = 60  # seconds after NOON: the last that the backup knows
RESTORED = 400
FENCE_S = 60 + 30 + 30  # how long a container may run unheard, its grace, the margin


@pytest.fixture(autouse=True)
def world() -> None:
    make_host(gpus=2)
    price()


@pytest.fixture
def lease() -> Lease:
    made = make_active_lease(make_tenant())
    hear(made, at=after(HEARD))
    return made


def restore(at: datetime | None = None) -> dict[str, int]:
    return restoring.after_restore(at=at or after(RESTORED))


def look(lease: Lease, seconds: int) -> Lease:
    converging.converge(at=after(seconds))
    lease.refresh_from_db()
    return lease


def billed_s(lease: Lease, seconds: int) -> int:
    return metering.cost(reference=lease.public_id, at=after(seconds)).seconds


def test_nothing_is_charged_that_this_database_has_not_heard(lease: Lease) -> None:
    before = billed_s(lease, HEARD)

    restore()

    lease.refresh_from_db()
    assert lease.state == State.INTERRUPTED
    assert billed_s(lease, RESTORED + 100) == before


def test_what_still_runs_is_adopted_under_its_own_epoch_from_the_second_its_host_is_heard(lease: Lease) -> None:
    before = billed_s(lease, HEARD)
    restore()

    waiting = look(lease, RESTORED + 2)
    assert waiting.state == State.INTERRUPTED
    assert waiting.epoch == 1
    say(lease, "ready", at=after(RESTORED + 5))
    adopted = look(lease, RESTORED + 6)

    assert (adopted.state, adopted.epoch) == (State.ACTIVE, 1)
    assert Workload.objects.filter(reference=lease.public_id).count() == 1
    assert billed_s(lease, RESTORED + 15) == before + 10
    assert reconcile.findings() == []


def test_what_is_gone_when_its_host_is_heard_ends_and_is_not_started_again(lease: Lease) -> None:
    before = billed_s(lease, HEARD)
    make_host(name="other", gpus=2)
    restore()

    say(lease, "gone", at=after(RESTORED + 5), failure="stale_epoch")
    look(lease, RESTORED + 6)
    say(lease, "gone", at=after(RESTORED + 8), failure="stale_epoch")  # it is not wanted any more, either
    ended = look(lease, RESTORED + 20)

    assert (ended.state, ended.ending_reason) == (State.ENDED, "operator")
    assert "restored" in ended.ending_detail
    assert Workload.objects.filter(reference=lease.public_id).count() == 1
    assert billed_s(lease, RESTORED + 100) == before
    assert reconcile.findings() == []


def test_what_its_host_stopped_for_want_of_our_word_goes_on_by_its_tenants_policy(lease: Lease) -> None:
    restore()
    say(lease, "exited", at=after(RESTORED + 5), failure=NOT_RENEWED, exit_code=137)

    waiting = look(lease, RESTORED + 20)
    assert waiting.state == State.INTERRUPTED
    look(lease, RESTORED + FENCE_S + 1)
    say(lease, "gone", at=after(RESTORED + FENCE_S + 2), failure=NOT_RENEWED)
    place(at=after(RESTORED + FENCE_S + 3))

    lease.refresh_from_db()
    assert (lease.state, lease.epoch) == (State.PROVISIONING, 2 + restoring.EPOCHS)


def test_a_lease_whose_host_stays_away_starts_elsewhere_after_the_fence_beyond_every_epoch_that_may_be_used(
    lease: Lease,
) -> None:
    restore()
    other = make_host(name="other", gpus=2)
    Host.objects.filter(pk=other.pk).update(last_heard_at=after(RESTORED + FENCE_S))

    place(at=after(RESTORED + FENCE_S - 1))
    before = look(lease, RESTORED + FENCE_S - 1)
    assert before.state == State.INTERRUPTED
    look(lease, RESTORED + FENCE_S + 1)
    place(at=after(RESTORED + FENCE_S + 2))

    lease.refresh_from_db()
    assert lease.state == State.PROVISIONING
    assert lease.epoch == 2 + restoring.EPOCHS
    assert lease.members.get(epoch=lease.epoch).host_id == other.pk


def test_a_lease_that_waited_may_run_somewhere_since_and_is_not_placed_before_the_fence(lease: Lease) -> None:
    waiting = make_lease(make_tenant(), "A100_80G x1", at=after(HEARD))
    restore()
    say(lease, "ready", at=after(RESTORED + 5))
    host = Workload.objects.get(reference=lease.public_id).host

    place(at=after(RESTORED + 6))
    waiting.refresh_from_db()
    assert waiting.state == State.PENDING
    Host.objects.filter(pk=host.pk).update(last_heard_at=after(RESTORED + FENCE_S + 1))
    place(at=after(RESTORED + FENCE_S + 2))

    waiting.refresh_from_db()
    assert (waiting.state, waiting.epoch) == (State.PROVISIONING, 1 + restoring.EPOCHS)


def test_a_new_lease_waits_for_no_fence(lease: Lease) -> None:
    restore()
    say(lease, "ready", at=after(RESTORED + 5))

    new = make_lease(make_tenant(), "A100_80G x1", at=after(RESTORED + 6))
    place(at=after(RESTORED + 6))

    new.refresh_from_db()
    assert (new.state, new.epoch) == (State.PROVISIONING, 1)


def test_a_host_is_not_offered_before_it_is_heard_again(lease: Lease) -> None:
    tenant = lease.organization
    restore(at=after(HEARD + 1))  # at once: by its last word alone, the host would still be good

    def offered(seconds: int) -> int:
        at, money = after(seconds), tenant.currency
        lines = planning.offers(
            organization=tenant, currency=money, term="on_demand", region=None, request=None, at=at
        )  # fmt: skip
        return sum(line["available"] for line in lines)

    silent = offered(HEARD + 2)
    say(lease, "ready", at=after(HEARD + 3))

    assert silent == 0
    assert offered(HEARD + 4) == 1


def test_no_list_bears_a_number_that_a_host_may_have_seen(lease: Lease) -> None:
    before = Host.objects.get(workloads__reference=lease.public_id).generation

    restore()

    assert Host.objects.get(workloads__reference=lease.public_id).generation > before + 100_000


def test_every_fence_counts_from_now(lease: Lease) -> None:
    Workload.objects.filter(reference=lease.public_id).update(last_valid_until=after(HEARD + 60))

    restore()

    assert Workload.objects.get(reference=lease.public_id).last_valid_until == after(RESTORED + 60)


def test_what_has_ended_stays_as_it_is(lease: Lease) -> None:
    ended = end_and_clean(lease, at=after(HEARD + 10))
    version = ended.version

    found = restore()

    ended.refresh_from_db()
    assert (ended.version, ended.fenced_until, found["leases"]) == (version, None, 0)


def test_doing_it_again_does_no_harm(lease: Lease) -> None:
    restore()
    restore(at=after(RESTORED + 50))
    say(lease, "ready", at=after(RESTORED + 55))

    assert look(lease, RESTORED + 56).state == State.ACTIVE


def test_the_command_says_what_it_found_and_wants_to_hear_that_nothing_runs(
    lease: Lease, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match="Stop every process"):
        call_command("after_restore")
    call_command("after_restore", "--yes")

    assert json.loads(capsys.readouterr().out) == {"hosts": 1, "leases": 1, "running": 1}
    assert Entry.objects.filter(action="database.restored").count() == 1
