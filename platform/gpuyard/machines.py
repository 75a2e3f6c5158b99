"""Hosts of an organization, and the tokens with which new ones enrol."""

from __future__ import annotations

from typing import Any

from gpuyard.calls import Call
from gpuyard.methods import Resource, listing, operation
from gpuyard.objects import Enrolment, Host, Object


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
    def cordon(self, host_id: str, /) -> Call[Host]:
        """Take no new leases; what runs there goes on."""
        return Call(Host, (host_id,), body={})

    @operation("host_uncordon", "POST", "/hosts/{id}/actions/uncordon")
    def uncordon(self, host_id: str, /) -> Call[Host]:
        return Call(Host, (host_id,), body={})

    @operation("host_drain", "POST", "/hosts/{id}/actions/drain")
    def drain(self, host_id: str, /) -> Call[Host]:
        """Take no new leases, and let what runs there leave after its notice."""
        return Call(Host, (host_id,), body={})

    @operation("host_retire", "POST", "/hosts/{id}/actions/retire")
    def retire(self, host_id: str, /) -> Call[Host]:
        """Take the host out for good."""
        return Call(Host, (host_id,), body={})

    @operation("host_verify", "POST", "/hosts/{id}/actions/verify")
    def verify(self, host_id: str, /) -> Call[Host]:
        return Call(Host, (host_id,), body={})

    @listing("host_devices", "/hosts/{id}/devices")
    def devices(self, host_id: str, /) -> Call[Object]:
        return Call(Object, (host_id,))

    @operation("host_score", "GET", "/hosts/{id}/score")
    def score(self, host_id: str, /) -> Call[Object]:
        return Call(Object, (host_id,))

    @listing("host_events", "/hosts/{id}/events")
    def events(self, host_id: str, /, *, limit: int | None = None) -> Call[Object]:
        return Call(Object, (host_id,), {"limit": limit})


class Enrolments[M](Resource[M]):
    @operation("enrolment_create", "POST", "/enrolments")
    def create(self, /, **fields: Any) -> Call[Enrolment]:
        """Make a one-time token for a new host. It is shown in this answer and never again."""
        return Call(Enrolment, body=fields)

    @listing("enrolment_list", "/enrolments")
    def list(self, *, limit: int | None = None) -> Call[Enrolment]:
        return Call(Enrolment, query={"limit": limit})

    @operation("enrolment_delete", "DELETE", "/enrolments/{id}")
    def delete(self, enrolment_id: str, /) -> Call[Object]:
        return Call(Object, (enrolment_id,))
