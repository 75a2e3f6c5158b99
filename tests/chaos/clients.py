"""Tenants' programs under fire: each asks until it is answered, with the Idempotency-Key of the first time."""

import queue
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2

from audit import ids
from tests.running_stack import RunningStack

CLIENTS = 6
ANSWER_WITHIN_S = 30.0
GIVE_UP_AFTER_S = 240.0  # of asking the same thing: then the platform did not come back
FOLLOW_FOR_S = 300.0
MODELS = ("A100_80G", "L40S_48G")


class GaveUp(AssertionError):
    """The platform refused, or did not answer, for longer than any kill lasts."""


@dataclass
class Plan:
    """What one client wants, and what came of it. dwell_s: how long it uses the lease before it stops it."""

    key: str
    request: str
    fate: Literal["keep", "stop", "cancel"]
    dwell_s: float
    twice: bool  # ask twice at once, with the same key
    lease_ids: set[str] = field(default_factory=set)


def plans(*, count: int, seed: int, kept_per_model: int = 2) -> list[Plan]:
    """Return the wishes of the clients. As many stay as fit at once; the others make room."""
    rng = random.Random(seed)
    fates = [rng.choice(("stop", "stop", "stop", "cancel")) for _ in range(count)]
    made = [
        Plan(
            key=f"chaos-{seed}-{number}-{ids.new().hex}",
            request=f"{MODELS[number % len(MODELS)]} x{rng.choice((1, 1, 2))}",
            fate=fate,  # type: ignore[arg-type]
            dwell_s=rng.uniform(0.5, 4.0),
            twice=rng.random() < 0.3,
        )
        for number, fate in enumerate(fates)
    ]
    for model in MODELS:
        mine = [plan for plan in made if plan.request.startswith(model)]
        for plan in rng.sample(mine, min(kept_per_model, len(mine))):
            plan.fate = "keep"
    return made


class Clients:
    """Lives all plans through with a few threads. `answers` counts the status codes that were seen."""

    def __init__(self, platform: RunningStack, wishes: list[Plan]) -> None:
        self.platform = platform
        self.answers: Counter[str] = Counter()
        self.faults: list[str] = []
        self._done = 0
        self._wishes = len(wishes)
        self._todo: queue.SimpleQueue[Plan] = queue.SimpleQueue()
        for plan in wishes:
            self._todo.put(plan)
        self._threads = [threading.Thread(target=self._work, name=f"client-{n}") for n in range(CLIENTS)]

    def progress(self) -> float:
        """Return the share of the plans that are lived through, in 0..1."""
        return self._done / self._wishes

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        with httpx2.Client(base_url=f"{self.platform.access['api_url']}/api/v1", trust_env=False) as http:
            http.headers["Authorization"] = f"Bearer {self.platform.access['api_key']}"
            while not self._todo.empty():
                try:
                    plan = self._todo.get(timeout=0.1)
                except queue.Empty:
                    return
                try:
                    self._live(http, plan)
                except Exception as fault:
                    self.faults.append(f"{plan.key}: {type(fault).__name__}: {fault}")
                self._done += 1

    def _live(self, http: httpx2.Client, plan: Plan) -> None:
        self._create(http, plan)
        (lease_id,) = plan.lease_ids
        if plan.fate != "cancel":
            self._follow(http, lease_id, plan)
        if plan.fate != "keep":
            self._persist(http, "POST", f"/leases/{lease_id}/actions/end", {}, key=f"{plan.key}-end")

    def _create(self, http: httpx2.Client, plan: Plan) -> None:
        body = {"request": plan.request, "image": "gpuyard_demo", "labels": {"chaos": plan.key}}

        def create(_: int) -> str:
            return str(self._persist(http, "POST", "/leases", body, key=plan.key)["id"])

        times = 2 if plan.twice else 1
        with ThreadPoolExecutor(times) as both:
            plan.lease_ids.update(both.map(create, range(times)))

    def _follow(self, http: httpx2.Client, lease_id: str, plan: Plan) -> None:
        """Watch it until it is active, then use it for a while."""
        deadline = time.monotonic() + FOLLOW_FOR_S
        while (state := self._persist(http, "GET", f"/leases/{lease_id}", None, key="")["state"]) != "active":
            if state == "ended" or time.monotonic() > deadline:
                raise GaveUp(f"{lease_id} is {state} and was to become active")
            time.sleep(0.3)
        time.sleep(plan.dwell_s)

    def _persist(self, http: httpx2.Client, method: str, path: str, body: Any, *, key: str) -> dict[str, Any]:
        """Ask until there is an answer that is final. Every kill shows as a broken connection, a 503 or a wait."""
        deadline = time.monotonic() + GIVE_UP_AFTER_S
        headers = {"Idempotency-Key": key} if key else {}
        pause_s = 0.1
        while True:
            answer = self._once(http, method, path, body, headers)
            if isinstance(answer, httpx2.Response) and answer.is_success:
                document: dict[str, Any] = answer.json()
                return document
            if isinstance(answer, httpx2.Response) and not self._passes(answer):
                raise GaveUp(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
            if time.monotonic() > deadline:
                raise GaveUp(f"{method} {path} for {GIVE_UP_AFTER_S:g} s: {answer!r}")
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 1.5)

    def _once(
        self, http: httpx2.Client, method: str, path: str, body: Any, headers: dict[str, str]
    ) -> httpx2.Response | httpx2.TransportError:
        try:
            answer = http.request(method, path, json=body, headers=headers, timeout=ANSWER_WITHIN_S)
        except httpx2.TransportError as broken:
            self.answers[type(broken).__name__] += 1
            return broken
        self.answers[str(answer.status_code)] += 1
        return answer

    def _passes(self, answer: httpx2.Response) -> bool:
        """Return whether the same question may have another answer soon."""
        if answer.status_code == 409:
            return bool(answer.json()["type"].endswith("/idempotency-in-progress"))
        return answer.status_code >= 500
