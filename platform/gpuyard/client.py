"""The clients: `Client` blocks, `AsyncClient` is awaited; both have the same methods."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from gpuyard import config
from gpuyard.calls import Manner
from gpuyard.leases import Leases
from gpuyard.machines import Enrolments, Hosts
from gpuyard.market import GpuModels, Images, Market, Offers, Quotes, Regions
from gpuyard.methods import Awaiting, Blocking, Resource, flow
from gpuyard.money import Budgets, Earnings, Invoices, LedgerEntries, Payouts, Statements, Wallets
from gpuyard.objects import Lease
from gpuyard.organization import ApiKeys, AuditEvents, Groups, Members, Secrets, Volumes, Webhooks
from gpuyard.transport import AwaitingDriver, BlockingDriver, Driver, Flow, Observer


@dataclass(frozen=True)
class Instance:
    """What a scheduler that asks with four fields gets back."""

    instance_id: str
    lease: Lease


class _Base[M](Resource[M]):
    def __init__(self, driver: Driver, manner: Manner) -> None:
        super().__init__(driver, manner)
        self.leases = Leases[M](driver, manner)
        self.offers = Offers[M](driver, manner)
        self.quotes = Quotes[M](driver, manner)
        self.images = Images[M](driver, manner)
        self.gpu_models = GpuModels[M](driver, manner)
        self.regions = Regions[M](driver, manner)
        self.market = Market[M](driver, manner)
        self.hosts = Hosts[M](driver, manner)
        self.enrolments = Enrolments[M](driver, manner)
        self.wallet = Wallets[M](driver, manner)
        self.ledger_entries = LedgerEntries[M](driver, manner)
        self.statements = Statements[M](driver, manner)
        self.invoices = Invoices[M](driver, manner)
        self.budgets = Budgets[M](driver, manner)
        self.earnings = Earnings[M](driver, manner)
        self.payouts = Payouts[M](driver, manner)
        self.api_keys = ApiKeys[M](driver, manner)
        self.members = Members[M](driver, manner)
        self.groups = Groups[M](driver, manner)
        self.audit_events = AuditEvents[M](driver, manner)
        self.secrets = Secrets[M](driver, manner)
        self.volumes = Volumes[M](driver, manner)
        self.webhooks = Webhooks[M](driver, manner)

    @flow
    def create_instance(self, spec: Mapping[str, Any], /) -> Flow[Instance]:
        """Lease what `spec` says, e.g. {"gpu_model": "A100_80G", "node_count": 4, "image_id": "pytorch_latest",
        "lease_term": "on_demand"}; every other field of a lease may stand there too. `.instance_id` is the lease's id.
        """
        lease = yield from Leases.create.flow(self.leases, **spec)
        return Instance(lease.id, lease)

    def with_options(self, /, **changes: Any) -> Self:
        """Return a client over the same connections with other manners: timeout_s, tries, dry_run, idempotency_key, ...

        idempotency_key is for one call that must survive the death of this process: say it again with the same key.
        """
        other = object.__new__(type(self))
        _Base.__init__(other, self._driver, dataclasses.replace(self._manner, **changes))
        return other


class Client(_Base[Blocking]):
    """Calls the API and blocks until the answer is there. Close it, or use it in a `with` statement.

    api_key, api_url, profile: beat the environment, which beats the configuration file (see gpuyard.config).
    language: of titles and details, e.g. "zh-Hans". timeout_s: of one try.
    tries: on 429, 503 and broken connections, with one Idempotency-Key. observer: sees every exchange.
    Raises NotConfigured when no address is known.
    """

    def __init__(
        self,
        api_key: str | None = None,
        *,
        api_url: str | None = None,
        profile: str | None = None,
        config_path: Path | None = None,
        language: str | None = None,
        timeout_s: float = 30.0,
        tries: int = 4,
        observer: Observer | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        settings = config.resolve(api_url=api_url, api_key=api_key, profile=profile, path=config_path)
        http = httpx2.Client(
            base_url=config.base_url(settings.api_url), headers=_headers(settings, language), transport=transport
        )
        super().__init__(BlockingDriver(http, observer=observer), Manner(timeout_s=timeout_s, tries=tries))

    def close(self) -> None:
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


class AsyncClient(_Base[Awaiting]):
    """The same client with methods to await, and lists and logs for `async for`. See Client."""

    def __init__(
        self,
        api_key: str | None = None,
        *,
        api_url: str | None = None,
        profile: str | None = None,
        config_path: Path | None = None,
        language: str | None = None,
        timeout_s: float = 30.0,
        tries: int = 4,
        observer: Observer | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        settings = config.resolve(api_url=api_url, api_key=api_key, profile=profile, path=config_path)
        http = httpx2.AsyncClient(
            base_url=config.base_url(settings.api_url), headers=_headers(settings, language), transport=transport
        )
        super().__init__(AwaitingDriver(http, observer=observer), Manner(timeout_s=timeout_s, tries=tries))

    async def aclose(self) -> None:
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()


def _headers(settings: config.Settings, language: str | None) -> dict[str, str]:
    headers = {
        "Accept": "application/json",
        "User-Agent": f"gpuyard/{metadata.version('gpuyard')} python/{sys.version_info.major}.{sys.version_info.minor}",
    }
    if settings.api_key:
        headers["Authorization"] = f"Bearer {settings.api_key}"
    if language:
        headers["Accept-Language"] = language
    return headers
