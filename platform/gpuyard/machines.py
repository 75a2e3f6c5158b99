"""Hosts of an organization, and the tokens with which new ones enrol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuyard.calls import Call
from gpuyard.json_object import Object
from gpuyard.methods import Resource, listing, operation
from gpuyard.objects import Enrolment, Host


class Hosts[M](Resource[M]):
    @listing("host_list", "/hosts")
    def list(self, /, *, limit: int | None = None, **filters: Any) -> Call[Host]:
        return Call(Host, query={"limit": limit, **filters})

    @operation("host_get", "GET", "/hosts/{id}")
    def get(self, host_id: str, /) -> Call[Host]:
        return Call(Host, (host_id,))

    @operation("host_update", "PATCH", "/hosts/{id}")
    def update(self, host_id: str, /, *, if_match: str, **changes: Any) -> Call[Host]:
        """Change price floor, hours or access class. if_match: the host's `etag`."""
        return Call(Host, (host_id,), body=changes, headers={"If-Match": if_match})

    @operation("host_cordon", "POST", "/hosts/{id}/actions/cordon")
    def cordon(self, host_id: str, /, *, reason: str | None = None) -> Call[Host]:
        """Take no new leases; what runs there goes on."""
        return Call(Host, (host_id,), body={"reason": reason})

    @operation("host_uncordon", "POST", "/hosts/{id}/actions/uncordon")
    def uncordon(self, host_id: str, /, *, reason: str | None = None) -> Call[Host]:
        return Call(Host, (host_id,), body={"reason": reason})

    @operation("host_drain", "POST", "/hosts/{id}/actions/drain")
    def drain(
        self, host_id: str, /, *, deadline_s: int | None = None, deadline: str | None = None, reason: str | None = None
    ) -> Call[Host]:
        """Take no new leases, and let what runs there leave until the deadline (in seconds from now, or an instant)."""
        return Call(Host, (host_id,), body={"deadline_s": deadline_s, "deadline": deadline, "reason": reason})

    @operation("host_retire", "POST", "/hosts/{id}/actions/retire")
    def retire(self, host_id: str, /, *, reason: str | None = None) -> Call[Host]:
        """Take the host out for good."""
        return Call(Host, (host_id,), body={"reason": reason})

    @operation("host_verify", "POST", "/hosts/{id}/actions/verify")
    def verify(self, host_id: str, /, *, reason: str | None = None) -> Call[Host]:
        """Let the host prove again what it has."""
        return Call(Host, (host_id,), body={"reason": reason})

    @listing("host_devices", "/hosts/{id}/devices")
    def devices(self, host_id: str, /) -> Call[Object]:
        return Call(Object, (host_id,))

    @operation("host_score", "GET", "/hosts/{id}/score")
    def score(self, host_id: str, /) -> Call[Object]:
        return Call(Object, (host_id,))

    @listing("host_events", "/hosts/{id}/events")
    def events(self, host_id: str, /, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, (host_id,), {"limit": limit})

    @listing("host_self_test_list", "/hosts/{id}/self-tests")
    def self_tests(self, host_id: str, /, *, limit: int | None = None) -> Call[Object]:
        """Iterate over what the host was asked to prove, and how it did."""
        return Call(Object, (host_id,), {"limit": limit})

    @operation("host_maintenance_create", "POST", "/hosts/{id}/maintenance")
    def announce_maintenance(
        self, host_id: str, /, *, starts_at: str, ends_at: str, message: str, lead_s: int | None = None
    ) -> Call[Object]:
        """Say when the machine will be away: tenants are told, it is drained before and opened again after."""
        body = {"starts_at": starts_at, "ends_at": ends_at, "message": message, "lead_s": lead_s}
        return Call(Object, (host_id,), body=body)

    @listing("host_maintenance_list", "/hosts/{id}/maintenance")
    def maintenances(self, host_id: str, /, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, (host_id,), {"limit": limit})

    @operation("host_maintenance_delete", "DELETE", "/hosts/{id}/maintenance/{maintenance_id}")
    def withdraw_maintenance(self, host_id: str, maintenance_id: str, /) -> Call[Object]:
        return Call(Object, (host_id, maintenance_id))

    @operation("host_earnings", "GET", "/hosts/{id}/earnings")
    def earnings(self, host_id: str, /, *, days: int | None = None) -> Call[Object]:
        """What it earned by day and by lease, over the last days (30)."""
        return Call(Object, (host_id,), {"days": days})

    @operation("host_summary", "GET", "/hosts/{id}/summary")
    def summary(self, host_id: str, /, *, days: int | None = None) -> Call[Object]:
        """Detected, verified, in use, earned, what an idle hour costs, score moves, payouts."""
        return Call(Object, (host_id,), {"days": days})

    @operation("host_price_advice", "GET", "/hosts/{id}/price-advice")
    def price_advice(self, host_id: str, /, *, cost_micros_per_gpu_hour: int | None = None) -> Call[Object]:
        """Which price floor would leave the most; the cost is what an hour of use costs you (power)."""
        return Call(Object, (host_id,), {"cost_micros_per_gpu_hour": cost_micros_per_gpu_hour})


class Enrolments[M](Resource[M]):
    @operation("enrolment_create", "POST", "/enrolments")
    def create(
        self, *, name: str, zone: str, access: str | None = None, gpus: Mapping[str, int] | None = None
    ) -> Call[Enrolment]:
        """Make a one-time `token` for a new host. It is shown in this answer and never again.

        access: public, shared_when_idle or private. gpus: what it is to have, e.g. {"A100_80G": 8}.
        """
        return Call(Enrolment, body={"name": name, "zone": zone, "access": access, "gpus": gpus})

    @listing("enrolment_list", "/enrolments")
    def list(self, *, limit: int | None = None) -> Call[Enrolment]:
        return Call(Enrolment, query={"limit": limit})

    @operation("enrolment_get", "GET", "/enrolments/{id}")
    def get(self, enrolment_id: str, /) -> Call[Enrolment]:
        return Call(Enrolment, (enrolment_id,))

    @operation("enrolment_delete", "DELETE", "/enrolments/{id}")
    def delete(self, enrolment_id: str, /) -> Call[Object]:
        return Call(Object, (enrolment_id,))
