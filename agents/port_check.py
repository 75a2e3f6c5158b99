"""Can the ports that an owner gave to the market be reached? Behind a home router only if he forwards them.

The agent is asked to listen for a while at some ports of its range and to say a word there that nobody else knows. The
server then dials them at the host's address: who hears the word has reached this host, and no other machine. A host
that could not be reached gets no lease that publishes ports; it is looked at again, and everything else goes on.

Dialled are public addresses alone, at most PORTS of a host at a time, and nothing is sent: an owner who names another's
address makes us knock there, and learns nothing. Nothing runs on a host while it is looked at, so no port is taken away
from a container. Where no range was given, or the address is no public one, there is no verdict.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q

from agents import capacity, host_events, host_life
from agents.dialing import hears
from agents.models import Host, PortCheck, Workload
from apikit.outbound import is_public
from audit import ids

PORTS = 3
LISTEN_S = 60
BATCH = 20
AGAIN_OPEN, AGAIN_CLOSED, AGAIN_UNANSWERED = timedelta(hours=6), timedelta(minutes=15), timedelta(hours=1)
KNOWN_GOOD_FAILURES = 2  # looks in a row that it takes to close a host that was open
RULES = "forward them in your router and open them in your firewall, or lease without ports"

type Dial = Callable[[str, int, str], bool]  # address, port, word


def range_of(host: Host) -> tuple[int, int] | None:
    """Return the ports [first, end) that the owner gave, if they are such as may be dialled."""
    return _range(host.inventory.get("ports"))


def _range(given: Any) -> tuple[int, int] | None:
    if not (isinstance(given, list) and len(given) == 2 and all(type(port) is int for port in given)):
        return None
    return (given[0], given[1]) if 1024 <= given[0] < given[1] <= 65_536 else None


def forget(host: Host) -> None:
    """The host has another address or other ports now: what was found says nothing of these."""
    PortCheck.objects.filter(host=host).update(next_at=None, answer_by=None, word="")


def sentence(check: PortCheck | None) -> str:
    """Return what its owner is told, in plain words; "" where nothing is known."""
    if check is None or check.reachable is None:
        return ""
    where = f"Ports {check.first}-{check.end - 1} of {check.address}"
    if check.reachable:
        return f"{where} can be reached."
    closed = ", ".join(map(str, check.closed))
    return f"{where} cannot be reached (tried {closed}): {RULES}."


def tick(*, now: Callable[[], datetime], dial: Dial = hears) -> int:
    """Dial who listens, give up who did not answer, ask who is due; return how many verdicts there are."""
    found = _dial(now=now, dial=dial)
    late = PortCheck.objects.filter(answer_by__lt=now())  # an agent of before, or away; or we did not dial in time
    late.update(answer_by=None, word="", next_at=now() + AGAIN_UNANSWERED)
    for host in _due(at=now()):
        ask(host_id=host, at=now())
    return found


def _due(*, at: datetime) -> list[UUID]:
    """Return idle hosts whose look is due, and that have ports which may be dialled."""
    busy = Workload.objects.filter(host=OuterRef("pk"), gone_at__isnull=True)
    hosts = Host.objects.filter(~Exists(busy), state=Host.State.ONLINE).exclude(address="")
    due = Q(port_check__next_at=None) | Q(port_check__next_at__lte=at)
    over = Q(port_check__answer_by=None) | Q(port_check__answer_by__lt=at)
    rows = hosts.filter(due, over, inventory__has_key="ports").values_list("pk", "address", "inventory__ports")
    return [pk for pk, address, given in rows if _may_be_dialled(address) and _range(given) is not None][:BATCH]


def _may_be_dialled(address: str) -> bool:
    if settings.PORT_CHECK_LOOPBACK and ip_address(address).is_loopback:
        return True
    return is_public(address)


@transaction.atomic
def ask(*, host_id: UUID, at: datetime) -> PortCheck | None:
    """Ask a host to listen at some of its ports; None where it has none that may be dialled."""
    host = host_life.lock(host_id)
    given = range_of(host)
    if given is None or not _may_be_dialled(host.address):
        return None
    check, _ = PortCheck.objects.get_or_create(host=host)
    if (check.address, check.first, check.end) != (host.address, *given):
        if check.reachable is not None:
            capacity.changed([host.pk])
        check.address, check.first, check.end = host.address, *given
        check.reachable, check.failures, check.closed, check.checked_at = None, 0, [], None
    first, end = given
    check.ports = sorted({first, end - 1, *(first + secrets.randbelow(end - first) for _ in range(PORTS - 2))})
    check.word, check.listening = secrets.token_hex(16), None
    check.answer_by, check.next_at = at + timedelta(seconds=LISTEN_S), at + AGAIN_UNANSWERED
    check.save()
    Host.objects.filter(pk=host.pk).update(generation=F("generation") + 1)  # ends the held request
    return check


def wishes(host: Host, *, at: datetime) -> list[dict[str, Any]]:
    """Return what the next answer asks the host for."""
    return [
        {
            "verb": "listen",
            "id": f"{ids.encode('host', host.pk)} {check.word}",
            "ports": check.ports,
            "word": check.word,
            "for_s": int((check.answer_by - at).total_seconds()) if check.answer_by else 0,
        }
        for check in PortCheck.objects.filter(host=host, answer_by__gt=at, listening__isnull=True)
    ]


def answered(host: Host, event: Mapping[str, Any], *, at: datetime) -> bool:
    """Take in where the host says that it listens; the caller holds its lock. Only ports that were asked for count."""
    check = PortCheck.objects.filter(host=host, answer_by__gte=at, listening__isnull=True).first()
    if check is None or event.get("id") != f"{host.public_id} {check.word}":
        return False
    said = event.get("ports")
    check.listening = [port for port in check.ports if isinstance(said, list) and port in said]
    check.save(update_fields=["listening"])
    return True


def _dial(*, now: Callable[[], datetime], dial: Dial) -> int:
    """Knock where hosts listen, all at once and outside of any transaction; then write what was found."""
    checks = list(PortCheck.objects.filter(answer_by__gte=now(), listening__isnull=False).order_by("answer_by")[:BATCH])
    knocks = [(check, port) for check in checks for port in check.listening or () if _may_be_dialled(check.address)]
    with ThreadPoolExecutor(max_workers=BATCH, thread_name_prefix="knock") as pool:
        heard = list(pool.map(lambda knock: dial(knock[0].address, knock[1], knock[0].word), knocks))
    closed: dict[UUID, list[int]] = {check.pk: [] for check in checks}
    for (check, port), was_heard in zip(knocks, heard, strict=True):
        if not was_heard:
            closed[check.pk].append(port)
    return sum(_conclude(check, closed[check.pk], at=now()) for check in checks)


@transaction.atomic
def _conclude(seen: PortCheck, closed: Sequence[int], *, at: datetime) -> int:
    """Write what a look found, unless another has begun since."""
    host = host_life.lock(seen.host_id)
    check = PortCheck.objects.filter(host=host, word=seen.word, answer_by__isnull=False).first()
    if check is None:
        return 0
    was = check.reachable
    # All of them are used by others on the machine, or a lease came, for which the agent stops to listen, or it was
    # dialled when its time was over: nothing was found out. Who was heard has been heard, whatever came since.
    is_late = check.answer_by is None or at > check.answer_by
    in_vain = closed and (is_late or Workload.objects.filter(host=host, gone_at__isnull=True).exists())
    check.word, check.answer_by, listened = "", None, bool(seen.listening) and not in_vain
    if not listened:
        check.next_at = at + AGAIN_UNANSWERED
    else:
        check.closed, check.checked_at = sorted(closed), at
        check.failures = check.failures + 1 if check.closed else 0
        if not check.closed:
            check.reachable = True
        elif was is None or check.failures >= KNOWN_GOOD_FAILURES:
            check.reachable = False
        check.next_at = at + (AGAIN_CLOSED if check.closed else AGAIN_OPEN)
    check.save()
    if check.reachable != was:
        kind = "host.ports_open" if check.reachable else "host.ports_closed"
        host_events.record(host_id=host.pk, kind=kind, detail=sentence(check), at=at, facts={"closed": check.closed})
        capacity.changed([host.pk])
    return int(listened)
