"""What binding and readiness set going: workloads on the hosts, and meters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from django.conf import settings

from agents import workloads
from agents.models import Device, Host, Workload
from billing import commission, metering
from leasing import calendar, secrets_at_start, volumes, workload_spec
from leasing.models import Lease, LeaseMember
from leasing.states import VALID_FOR_S, OnInterrupt

RENEWAL_SLACK = timedelta(seconds=60)
ROUNDING_SLACK = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class BoundDevice:
    """What of a device a start needs to know."""

    uuid: str
    index: int
    host: Host


Bound = dict[int, list[tuple[BoundDevice | Device, tuple[int, int]]]]  # by rank: devices, in their order, with units


def bound(held: Iterable[tuple[int, BoundDevice | Device, tuple[int, int]]]) -> Bound:
    """Return (rank, device, units) by rank."""
    found: Bound = {}
    for rank, device, units in held:
        found.setdefault(rank, []).append((device, units))
    return {rank: sorted(found[rank], key=lambda pair: pair[0].index) for rank in sorted(found)}


def want_workloads(lease: Lease, *, at: datetime) -> None:
    """Ask the hosts that are bound to the lease's present epoch to run it."""
    held = [row for row in calendar.live(lease_id=lease.pk) if row.epoch == lease.epoch]
    want_all([(lease, bound((row.rank, row.device, (row.units.lower, row.units.upper)) for row in held))], at=at)


def want_all(leases: Sequence[tuple[Lease, Bound]], *, at: datetime) -> None:
    """Ask the hosts of many leases to run them."""
    workloads.want_all([one for lease, held in leases for one in _wanted(lease, held)], at=at)
    for lease, held in leases:  # last: it holds the lock of the organization's audit chain
        secrets_at_start.record(lease, hosts=[devices[0][0].host for devices in held.values()], at=at)


def _wanted(lease: Lease, held: Bound) -> list[workloads.Wanted]:
    hosts = {rank: devices[0][0].host for rank, devices in held.items()}
    of_one = len({host.owner_id for host in hosts.values()}) == 1
    plans = [_member_plan(lease, rank, devices, in_gang=len(held) > 1, of_one=of_one) for rank, devices in held.items()]
    return [
        workloads.Wanted(
            reference=lease.public_id,
            member=rank,
            host_id=host.pk,
            epoch=lease.epoch,
            spec=workload_spec.build(
                lease_id=lease.public_id,
                image_reference=lease.image_reference,
                command=lease.command,
                env=lease.env,
                ports=lease.ports,
                ssh_keys=lease.ssh_keys,
                members=plans,
                rank=rank,
                with_fabric=len({h.fabric for h in hosts.values()}) == 1 and bool(host.fabric),
                secrets=lease.secrets,
                registry_login=bool(lease.registry_secret),
                health=lease.health,
                read_only=lease.read_only,
                spread=lease.pk.int + lease.epoch,
                volumes=lease.volumes,
            ),
            valid_for_s=_valid_for_s(lease),
            stop_grace_s=settings.WORKLOAD_STOP_GRACE_S,
            not_after=_not_after(lease),
            kind=Workload.Kind.MACHINE if lease.is_bare else Workload.Kind.CONTAINER,
            sealed=secrets_at_start.sealed_for(lease, rank=rank, host=host),
        )
        for rank, host in hosts.items()
    ]


def tell_end(lease: Lease, *, at: datetime) -> None:
    """Let the hosts of the present epoch know an end that moved: they stop its containers by themselves then."""
    workloads.move_end(reference=lease.public_id, epoch=lease.epoch, not_after=_not_after(lease), at=at)


def tell_validity(lease: Lease) -> None:
    """Let the hosts of the present epoch know how long its containers may run unheard, which was changed."""
    workloads.change_validity(reference=lease.public_id, epoch=lease.epoch, valid_for_s=_valid_for_s(lease))


def _not_after(lease: Lease) -> datetime | None:
    # A host counts whole seconds down: without the slack it could stop a second before the term is over.
    # A renewal is made at the end and must reach the hosts before they stop. The calendar keeps the cleaning time.
    ends = []
    if lease.end_at is not None:
        ends.append(lease.end_at + (RENEWAL_SLACK if lease.renew and lease.period else ROUNDING_SLACK))
    if lease.leaves_at is not None:
        ends.append(lease.leaves_at + ROUNDING_SLACK)
    return min(ends, default=None)


def _valid_for_s(lease: Lease) -> int:
    policy = OnInterrupt(lease.on_interrupt)
    return settings.WORKLOAD_VALID_FOR_S if policy is OnInterrupt.RESTART_ELSEWHERE else VALID_FOR_S[policy]


def _member_plan(
    lease: Lease,
    rank: int,
    devices: Sequence[tuple[BoundDevice | Device, tuple[int, int]]],
    *,
    in_gang: bool,
    of_one: bool,
) -> workload_spec.MemberPlan:
    host = devices[0][0].host
    eighths = sum(end - first for _, (first, end) in devices)
    return workload_spec.MemberPlan(
        rank=rank,
        address=host.address if of_one or _is_public(host.address) else "",
        uuids=tuple(device.uuid for device, _ in devices),
        units={device.uuid: units for device, units in devices if units != calendar.WHOLE},
        cpu_milli=max(host.cpu_milli_per_gpu * eighths // 8, lease.constraints.get("min_cpu_milli", 0)),
        ram_mib=max(host.ram_mib_per_gpu * eighths // 8, lease.constraints.get("min_ram_mib", 0)),
        # What is made for it of the host's disk now comes off its share.
        disk_mib=max(
            host.disk_mib_per_gpu * eighths // 8 - volumes.where(lease)[1], lease.constraints.get("min_disk_mib", 0)
        ),
        ports=_port_range(host) if in_gang else None,
    )


def _is_public(address: str) -> bool:
    """Tell whether an address means the same to everybody.

    A private one is no peer on another owner's host: there it is a machine of his, and his firewall would let us in.
    """
    try:
        return ip_address(address).is_global
    except ValueError:
        return False


def _port_range(host: Host) -> tuple[int, int] | None:
    """Return the host ports [first, end) that the owner gave, if he gave a range that can be one."""
    given = host.inventory.get("ports")
    if not (isinstance(given, list) and len(given) == 2 and all(isinstance(port, int) for port in given)):
        return None
    return (given[0], given[1]) if 0 < given[0] < given[1] <= 65_536 else None


def start_meters(lease: Lease, *, at: datetime) -> None:
    for member in lease.members.filter(epoch=lease.epoch).select_related("host").order_by("rank"):
        start_meter(lease, member, use="active", price_version_id=member.price_version_id, at=at)


def start_meter(lease: Lease, member: LeaseMember, *, use: str, price_version_id: int, at: datetime) -> None:
    """Let one member be in use from `at` on, under the lease's present number of facts."""
    metering.start(
        payer=lease.organization_id,
        payee=member.host.owner_id,
        currency=lease.currency,
        reference=lease.public_id,
        member=member.rank,
        use=use,
        price_version_id=price_version_id,
        quantity=member.gpu_count,
        commission_bp=commission.rate_bp(
            owner=member.host.owner_id, currency=lease.currency, host_class=member.host.tier, at=at
        ),
        labels=lease.labels,
        seq=lease.meter_seq,
        at=at,
        simulated=lease.simulated,
        follows=lease.term_kind == Lease.TermKind.SPOT,
    )


def live_workloads(lease: Lease) -> Sequence[Workload]:
    """Return the workloads of the present epoch, by rank."""
    return list(
        Workload.objects.filter(reference=lease.public_id, epoch=lease.epoch).select_related("host").order_by("member")
    )
