"""Volumes on hosts: which are to stay, which are to be removed, and how full they are. Whose they are is opaque here.

What they take is no room for others: a host's disk, and the share of it that goes with each GPU, are less by it.
Locks: the host's row first, as for workloads.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Sum

from agents import capacity, inventory
from agents.models import Host, HostVolume


@transaction.atomic
def want(*, host_id: UUID, reference: str, place: str, size_mib: int, at: datetime) -> HostVolume:
    """Let a volume be on a host; the same again changes nothing. What it takes is taken from now on."""
    host = _locked(host_id)
    there = HostVolume.objects.filter(host=host_id, reference=reference, gone_at=None).first()
    if there is not None and there.wanted:
        return there
    if there is not None:  # its removal was ordered and is not confirmed: what comes back is another one
        HostVolume.objects.filter(pk=there.pk).update(gone_at=at)
    made = HostVolume.objects.create(host_id=host_id, reference=reference, place=place, size_mib=size_mib, wanted_at=at)
    _count(host)
    return made


@transaction.atomic
def drop(*, reference: str, at: datetime, but_host: UUID | None = None) -> int:
    """Order the volume's removal, from all hosts (but one); return on how many. Its room is free once it is gone.

    A host that left the pool confirms nothing any more: there it is gone at once, as far as we can tell.
    """
    rows = HostVolume.objects.filter(reference=reference, wanted=True, gone_at=None).exclude(host=but_host)
    hosts = list(rows.order_by("host").values_list("host", flat=True))
    for host_id in hosts:
        host = _locked(host_id)
        mine = rows.filter(host=host_id)
        if host.state == Host.State.RETIRED:
            mine.update(wanted=False, unwanted_at=at, gone_at=at)
        else:
            mine.update(wanted=False, unwanted_at=at)
            Host.objects.filter(pk=host_id).update(generation=F("generation") + 1)
        _count(host)
    return len(hosts)


def to_drop(host_id: UUID) -> list[str]:
    """Return the places of the volumes that the host is to remove and has not said to have removed."""
    rows = HostVolume.objects.filter(host=host_id, wanted=False, gone_at=None)
    return list(rows.order_by("place").values_list("place", flat=True))


def dropped(host: Host, event: Mapping[str, Any], *, at: datetime) -> bool:
    """Take in that the host has removed a volume; what it was not ordered to remove stays known to be there."""
    place = event.get("place")
    if not isinstance(place, str):
        return False
    rows = HostVolume.objects.filter(host=host, place=place[:120], wanted=False, gone_at=None)
    if not rows.update(gone_at=at):
        return False
    _count(host)
    return True


def is_there(reference: str) -> bool:
    """Return whether some host may still have it on its disk, by what hosts have said."""
    return HostVolume.objects.filter(reference=reference, gone_at=None).exists()


def used(host: Host, figures: Mapping[str, Any], *, at: datetime) -> None:
    """Take in how much is in the volumes of a container, by place; what is not as before is written."""
    if not figures:
        return
    for row in HostVolume.objects.filter(host=host, place__in=list(figures)[:64], gone_at=None):
        mib = figures[row.place]
        if isinstance(mib, int) and not isinstance(mib, bool) and 0 <= mib < 2**40 and mib != row.used_mib:
            HostVolume.objects.filter(pk=row.pk).update(used_mib=mib, used_at=at)


def _locked(host_id: UUID) -> Host:
    return Host.objects.select_for_update(no_key=True).get(pk=host_id)


def _count(host: Host) -> None:
    """Write what the host's volumes take, and the smaller share of its disk that goes with each GPU then."""
    rows = HostVolume.objects.filter(host=host.pk, gone_at=None)
    host.volumes_mib = rows.aggregate(n=Sum("size_mib", default=0))["n"]
    changed = {"volumes_mib": host.volumes_mib}
    if host.disk_mib_per_gpu:  # it has been verified: only then it has shares
        gpus = host.devices.filter(present=True).count()
        changed["disk_mib_per_gpu"] = inventory.shares(host, gpus)["disk_mib_per_gpu"] or 1
    Host.objects.filter(pk=host.pk).update(**changed)
    capacity.changed([host.pk])
