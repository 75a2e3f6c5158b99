"""An agent in a test: real keys, real signatures, real messages, through the real doors; and lies where a test asks."""

import base64
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.http import HttpResponse
from django.test import Client
from nacl.signing import SigningKey, VerifyKey

from agents import enrolment
from agents.models import Host
from agents.protocol import (
    SIGNATURE_HEADER,
    answer_text,
    digest,
    header_text,
    read_header,
    selftest_proof,
    signed_text,
)
from tests.factories import NOON, make_gpu_model, make_organization, make_zone

SYNC = "/agent/v1/sync"


@dataclass
class FakeAgent:
    """One machine. `clock_s` is its clock; every request takes the next number unless a test says otherwise."""

    name: str = "node-1"
    gpus: int = 2
    slug: str = "A100_80G"
    key: SigningKey = field(default_factory=SigningKey.generate)
    host: str = ""
    key_id: str = ""
    control_keys: list[str] = field(default_factory=list)
    release_key: str = ""
    boot_no: int = 1
    seq: int = 0
    instance: str = "instance-1"
    boot_id: str = "boot-1"
    have_generation: int = -1
    clock_s: int = int(NOON.timestamp())
    events: int = 0
    workloads: list[dict[str, Any]] = field(default_factory=list)
    device_state: dict[str, dict[str, Any]] = field(default_factory=dict)
    inventory_changes: dict[str, Any] = field(default_factory=dict)
    client: Client = field(default_factory=Client)

    @property
    def signing_key(self) -> str:
        return bytes(self.key.verify_key).hex()

    @property
    def uuids(self) -> list[str]:
        return [f"SIM-{self.name}-{index}" for index in range(self.gpus)]

    @property
    def row(self) -> Host:
        return Host.objects.get(name=self.name)

    def inventory(self) -> dict[str, Any]:
        listed = [
            {"uuid": uuid, "index": i, "name": "simulated", "slug": self.slug, "memory_mib": 81920,
             "pci_device_id": "10de:20b2", "pci_bus_id": f"0000:0{i}:00.0",
             "nvlink_peers": [other for other in self.uuids if other != uuid]}
            for i, uuid in enumerate(self.uuids)
        ]  # fmt: skip
        return {
            "hostname": self.name, "simulated": True, "engine": {"name": "process", "version": "1"}, "cpu_count": 32,
            "driver_version": "570.86.15", "cuda_version": "12.8", "ram_mib": 131072, "disk_mib": 1048576,
            "gpus": listed,
        } | self.inventory_changes  # fmt: skip

    def enrol(self, token: str, **changes: Any) -> HttpResponse:
        body = {
            "token": token, "signing_key": self.signing_key, "sealing_key": "ab" * 32, "hostname": self.name,
            "fingerprint": {"gpu_uuids": self.uuids}, "simulated": True, "version": "test",
        } | changes  # fmt: skip
        response = self.client.post("/agent/v1/enrol", json.dumps(body), content_type="application/json")
        if response.status_code == 201:
            answer = response.json()
            self.host, self.key_id, self.control_keys = answer["host"], answer["key"], answer["control_keys"]
            self.release_key = answer.get("release_key", "")
        return response

    def body(self, **changes: Any) -> dict[str, Any]:
        inventory = self.inventory()
        return {
            "boot_no": self.boot_no, "seq": self.seq, "instance": self.instance, "boot_id": self.boot_id,
            "have_generation": self.have_generation, "workloads": self.workloads, "inventory_hash": digest(inventory),
            "devices": [
                {"uuid": uuid, "readings": {"temperature_c": 40}} | self.device_state.get(uuid, {})
                for uuid in self.uuids
            ],
        } | changes  # fmt: skip

    def headers(self, raw: bytes, **changes: Any) -> dict[str, str]:
        parts = {"host": self.host, "key": self.key_id, "boot": self.boot_no, "seq": self.seq, "created": self.clock_s}
        parts |= {name: value for name, value in changes.items() if name in parts}
        text = signed_text(
            method="POST", path=SYNC, body=raw, host=parts["host"], key=parts["key"], boot_no=parts["boot"],
            seq=parts["seq"], created=parts["created"],
        )  # fmt: skip
        signature = (changes.get("signer") or self.key).sign(text).signature
        return {SIGNATURE_HEADER: header_text(**parts, sig=base64.b64encode(signature).decode())}

    def send(self, *, header: dict[str, Any] | None = None, **changes: Any) -> HttpResponse:
        """Send one request with the next number and return the answer as it is."""
        self.seq += 1
        raw = json.dumps(self.body(**changes)).encode()
        return self.post(raw, self.headers(raw, **(header or {})))

    def post(self, raw: bytes, headers: dict[str, str]) -> HttpResponse:
        return self.client.post(SYNC, raw, content_type="application/json", headers=headers)

    def sync(self, **changes: Any) -> dict[str, Any]:
        """Send one request, check that the answer is 200 and signed for it, and take its generation over."""
        response = self.send(**changes)
        assert response.status_code == 200, response.content
        self.check_signature(response)
        answer: dict[str, Any] = response.json()
        if answer["desired"] is not None:
            self.have_generation = answer["generation"]
        return answer

    def check_signature(self, response: HttpResponse) -> None:
        parts = read_header(response.headers[SIGNATURE_HEADER])
        assert (parts["boot"], parts["seq"]) == (str(self.boot_no), str(self.seq))
        text = answer_text(
            status=response.status_code, body=response.content, host=self.host, boot_no=self.boot_no, seq=self.seq
        )
        VerifyKey(bytes.fromhex(self.control_keys[0])).verify(text, base64.b64decode(parts["sig"]))

    def event(self, kind: str, **facts: Any) -> dict[str, Any]:
        self.events += 1
        return {"n": self.events, "kind": kind, "detail": "", **facts}

    def selftest_event(self, wish: dict[str, Any], **changes: Any) -> dict[str, Any]:
        rows = [
            {"uuid": u, "proof": selftest_proof(seed=wish["seed"], device=u), "figures": {}} for u in wish["devices"]
        ]
        facts = {"id": wish["id"], "seed": wish["seed"], "simulated": True, "checks": [], "devices": rows}
        return self.event("selftest", **(facts | changes))

    def come_online(self) -> None:
        """Send inventory when asked for, and pass the self-test."""
        assert self.sync()["need"] == ["inventory"]
        wish = self.sync(inventory=self.inventory())["wishes"][0]
        self.sync(events=[self.selftest_event(wish)])

    def report(self, desired: dict[str, Any], step: str, **changes: Any) -> dict[str, Any]:
        """Return a truthful report of one wanted workload at this step."""
        seen = desired["spec"]["devices"] if step == "ready" else None
        names = {name: desired[name] for name in ("lease", "member", "epoch", "spec_hash")}
        return names | {"step": step, "visible_devices": seen} | changes


def make_agent(name: str = "node-1", **fields: Any) -> FakeAgent:
    """An enrolled agent whose host has not synced yet."""
    agent = FakeAgent(name=name, **fields)
    make_gpu_model(agent.slug)
    organization = make_organization()
    _, token = enrolment.invite(
        organization=organization, zone=make_zone().slug, name=name, access="public", created_by="test", at=now()
    )
    response = agent.enrol(token)
    assert response.status_code == 201, response.content
    return agent


def make_online_agent(name: str = "node-1", **fields: Any) -> FakeAgent:
    agent = make_agent(name, **fields)
    agent.come_online()
    assert agent.row.state == Host.State.ONLINE
    return agent


def now() -> datetime:
    """Return what the doors will take for now (tests that go through them set it with the `clock` fixture)."""
    from apikit import clock

    return clock.now()
