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
