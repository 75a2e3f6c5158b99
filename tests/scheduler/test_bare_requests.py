"""What may be asked for with a whole machine, and what not; who may have it."""

from typing import Any

import pytest

from agents.models import Host
from apikit.errors import InvalidInput
from leasing import actions, parking
from leasing.moves import WrongState
from leasing.states import OnInterrupt, State
from tests.factories import NOON, make_host, make_lease, make_tenant, place, price

pytestmark = pytest.mark.django_db
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJEb+6LRW2czXu11ZT20mYclCwum1S28mDjRUfUgkyle me"
BARE: dict[str, Any] = {"bare": True, "image": None, "ssh_keys": [KEY]}


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"image": "pytorch_latest"}, "/image"),
        ({"command": ["sh"]}, "/command"),
        ({"env": {"A": "b"}}, "/env"),
        ({"ports": [80]}, "/ports"),
        ({"jupyter": True}, "/jupyter"),
        ({"ssh_keys": []}, "/ssh_keys"),
        ({"on_interrupt": "restart_elsewhere"}, "/on_interrupt"),
        ({"on_exit": "restart"}, "/on_exit"),
        ({"may_move": True}, "/may_move"),
    ],
)
def test_what_a_whole_machine_has_not_is_refused_with_its_pointer(changes: dict[str, Any], pointer: str) -> None:
    make_host(bare_metal=True)
    price()

    with pytest.raises(InvalidInput) as refused:
        make_lease(make_tenant(), **(BARE | changes))

    assert refused.value.facts["errors"][0]["pointer"] == pointer


def test_only_a_machine_that_is_offered_whole_is_given_and_only_with_all_its_gpus() -> None:
    make_host(gpus=2)
    offered = make_host(gpus=2, bare_metal=True)
    price()

    part, whole = make_lease(make_tenant(), "A100_80G", **BARE), make_lease(make_tenant(), "A100_80G x2", **BARE)
    place(at=NOON)

    part.refresh_from_db()
    whole.refresh_from_db()
    assert (part.state, whole.state) == (State.PENDING, State.PROVISIONING)
    assert whole.members.get().host == offered
    assert whole.on_interrupt == OnInterrupt.END


def test_a_whole_machine_is_neither_parked_nor_restarted_and_does_not_say_that_it_may_be() -> None:
    make_host(bare_metal=True)
    price()
    lease = make_lease(make_tenant(), **BARE)
    lease.state = State.ACTIVE
    lease.save()

    assert not {"park", "restart", "resize", "move"} & set(actions.of(lease))
    with pytest.raises(WrongState):
        parking.park(lease_id=lease.pk, keep="hold", at=NOON)
    with pytest.raises(WrongState):
        parking.restart(lease_id=lease.pk, at=NOON)
    assert Host.objects.get().bare_metal
