"""One agent process put together: state, driver, engine, reconciler, conversation; and its orderly end."""

import faulthandler
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents import protocol
from agents.node import clocks, ending, host_figures, inventory, watchdog
from agents.node.bell import Bell
from agents.node.drivers import Driver
from agents.node.engine_of import engine_of
from agents.node.engines import Engine
from agents.node.for_root import ForRoot, told_at
from agents.node.identity import Identity, StateError, StateFolder
from agents.node.journal import Journal
from agents.node.kernel_log import DEVICE as KMSG
from agents.node.kernel_log import KernelLog, Sighting, same_address
from agents.node.private_files import NoMemoryFolder, PrivateFiles, folder_in_memory
from agents.node.receipts import Receipts
from agents.node.reconciler import Reconciler
from agents.node.slots import RESTART, SLOT_VARIABLE, Slots
from agents.node.syncing import AGENT_VERSION, Syncing, Ticking, said
from agents.node.trial import Trial
from agents.node.wire import NoContact, Refused, Wire
from agents.node.wishes import Wishes

DOCUMENT_FOR_S = 60.0
PURGE_GRACE_S = 2
IDLE_WITHIN_S = 60.0  # what is being pulled or started may come to its end before a restart, which would begin anew
DISK_PRESSURE_PART = 20  # less than a twentieth of the disk free


class NotEnrolled(Exception):
    """Enrolment did not succeed; the sentence says why and what to do."""


def make_driver(
    settings: dict[str, Any], folder: StateFolder, identity: Identity, *, on_change: Callable[[], None] | None = None
) -> Driver:
    """Return the driver that the settings name; `on_change` is called when the server should hear of it at once.

    Raises StateError for an unknown one.
    """
    name = settings.get("driver", "nvidia")
    if name == "sim":
        from agents.node.sim import SimDriver

        return SimDriver(
            specs=settings["sim"],
            seed=identity.signing_key,
            driver_version=settings.get("sim_driver_version"),
            cuda_version=settings.get("sim_cuda_version"),
            scenario=Path(settings["sim_scenario"]) if settings.get("sim_scenario") else folder.path / "scenario.json",
        )
    if name == "nvidia":
        from agents.node.nvidia import NvidiaDriver

        return NvidiaDriver(on_change=on_change, compiled=folder.path / "compiled")
    if name == "amd":
        from agents.node.amd import AmdDriver

        return AmdDriver()
    if name == "ascend":
        from agents.node.ascend import AscendDriver

        return AscendDriver()
    raise StateError(f"no driver {name!r}: nvidia, amd, ascend or sim")


def enrol(folder: StateFolder, *, server: str, token: str, settings: dict[str, Any]) -> Identity:
    """Trade the token for an identity and save it with the settings. Raises NotEnrolled.

    An enrolment whose answer was lost is tried again with the same keys and a new token.
    """
    identity = folder.identity()
    if identity is None or identity.enrolled or identity.server != server:
        identity = folder.fresh_identity(server=server)
    driver = make_driver(settings, folder, identity)
    try:
        request = protocol.EnrolRequest(
            token=token,
            signing_key=identity.signing_key,
            sealing_key=identity.sealing_key,
            fingerprint=inventory.fingerprint(driver),
            hostname=settings.get("name") or os.uname().nodename,
            simulated=driver.simulated,
            version=AGENT_VERSION,
        )
        answer = Wire(server).enrol(request)
    except Refused as refused:
        detail = refused.problem.get("detail") or refused
        raise NotEnrolled(f"the control plane did not take this machine: {detail}") from None
    except (NoContact, ValueError) as fault:
        raise NotEnrolled(f"the control plane at {server} cannot be reached: {fault}") from None
    finally:
        driver.close()
    identity.host, identity.key, identity.control_keys = answer.host, answer.key, list(answer.control_keys)
    identity.release_key = answer.release_key
    folder.save_identity(identity)
    folder.save_settings(settings)
    return identity


def purge(folder: StateFolder, identity: Identity, settings: dict[str, Any]) -> int:
    """End and remove every workload of this host, so that nothing of it runs without an agent; return how many.

    Raises EngineError; the next agent reports them as exited.
    """
    engine = engine_of(settings, folder)
    found = engine.containers(identity.host)
    for container in found:
        engine.stop(container.name, grace_s=PURGE_GRACE_S)
        engine.remove(container.name)
    engine.close()
    return len(found)


def _private_files(folder: StateFolder, settings: dict[str, Any], engine: Engine) -> PrivateFiles | None:
    """Return where containers' files stand in memory; None where there is no such place, which is said."""
    try:
        root = folder_in_memory(folder.path, wanted=settings.get("run_dir"))
        return PrivateFiles(root, open_above=not engine.mounts)
    except (NoMemoryFolder, OSError) as fault:
        said(f"containers get no secrets, SSH keys or notices here: {fault}")
        return None


def _for_root(folder: StateFolder, settings: dict[str, Any], identity: Identity) -> ForRoot | None:
    """Return where gpuyard-root is told what to do without us; None where there is no such place."""
    try:
        return ForRoot(told_at(folder.path, wanted=settings.get("run_dir")), host=identity.host)
    except NoMemoryFolder:
        return None


class Daemon:
    """The running agent. `run` returns after `end` (or SIGTERM): containers run on, and the next agent adopts them."""

    def __init__(self, folder: StateFolder, identity: Identity, settings: dict[str, Any]) -> None:
        self._folder, self._settings, self._identity = folder, settings, identity
        self._told, self._work = Bell(), Bell()
        self._journal = Journal(folder.path / "journal.sqlite")
        self._driver = make_driver(settings, folder, identity, on_change=self._told.ring)
        self._engine = engine_of(settings, folder)
        ports = settings.get("ports")
        self._ports = (int(ports[0]), int(ports[1])) if ports else None
        self._reconciler = Reconciler(
            host=identity.host,
            engine=self._engine,
            driver=self._driver,
            journal=self._journal,
            told=self._told,
            work=self._work,
            port_range=self._ports,
            receipts=Receipts(identity=identity, journal=self._journal, sample=self._driver.sample),
            private_files=_private_files(folder, settings, self._engine),
            unseal=identity.unseal,
            for_root=_for_root(folder, settings, identity),
        )
        self._ticking = Ticking(self._reconciler, self._work, said)
        self._wire = Wire(identity.server)
        self._kernel_log = KernelLog(self._xid, path=Path(settings.get("kernel_log") or KMSG))
        self._slots, self.exit_status = Slots(folder.path), 0
        self._wishes = Wishes(
            reconciler=self._reconciler,
            driver=self._driver,
            engine=self._engine,
            conditions=self._conditions,
            diagnose=self._diagnose,
            host_figures=self._host_figures,
            upgrade=self._upgrade,
        )
        self._syncing = Syncing(
            folder=folder,
            identity=identity,
            wire=self._wire,
            reconciler=self._reconciler,
            driver=self._driver,
            journal=self._journal,
            inventory=self._inventory,
            conditions=self._conditions,
            wish=self._wishes.take,
            told=self._told,
            say=said,
        )
        self._document: dict[str, Any] | None = None
        self._answered_test: str | None = None
        self._documented_s = 0.0

    def run(self) -> None:
        """Run until `end`. Signals are taken only in the main thread."""
        if threading.current_thread() is threading.main_thread():
            ending.on_signals(self.end)
            faulthandler.register(signal.SIGUSR1)  # kill -USR1 shows where every thread is
        self._reconciler.event("agent_started", f"version {AGENT_VERSION}")
        for failure in self._slots.untold():
            self._reconciler.event("upgrade_failed", failure["reason"], version=failure["version"])
        self._reconciler.recover()
        self._engine.watch(self._reconciler.look_again)
        self._kernel_log.start()
        ticking = threading.Thread(target=self._ticking.run, name="reconciler", daemon=True)
        ticking.start()
        self._begin_trial()
        watchdog.tell("READY=1")
        try:
            self._syncing.run()
        finally:
            self._ticking.end()
            ticking.join(10)
            self._reconciler.save_all()
            self._kernel_log.stop()
            self._wire.close()
            self._engine.close()
            self._driver.close()

    def end(self) -> None:
        self._syncing.end()

    def _upgrade(self, wish: dict[str, Any]) -> None:
        from agents.node.upgrading import Upgrading

        Upgrading(
            slots=self._slots, identity=self._identity, own=AGENT_VERSION, event=self._reconciler.event,
            restart=self.restart,
        ).take(wish)  # fmt: skip

    def restart(self) -> None:
        """End, to be started again as another release; what is on its way comes to its end first, for a while."""
        deadline_s = clocks.boot_s() + IDLE_WITHIN_S
        while not self._reconciler.idle() and clocks.boot_s() < deadline_s:
            time.sleep(0.2)
        self.exit_status = RESTART
        self.end()

    def _begin_trial(self) -> None:
        """A release proves itself: it was heard, and its engine's list was seen."""
        on_trial = self._slots.on_trial()
        if on_trial is None or os.environ.get(SLOT_VARIABLE) != on_trial.slot:
            return

        def is_well() -> bool:
            return self._syncing.heard and self._reconciler.observing.containers is not None

        Trial(
            slots=self._slots, own=AGENT_VERSION, is_well=is_well, event=self._reconciler.event, restart=self.restart
        ).begin(on_trial)

    def _xid(self, sighting: Sighting, line: str) -> None:
        """Take in an Xid of the kernel log: the device is found by its address in the last good inventory."""
        uuid = next(
            (g["uuid"] for g in self._driver.inventory().gpus if same_address(g["pci_bus_id"], sighting.bdf)), None
        )
        facts = {"xid": sighting.xid, "device": uuid, "line": line, "recovery_action": sighting.recovery_action}
        self._reconciler.event("xid", f"Xid {sighting.xid} at {sighting.bdf}", **facts)
        if uuid is not None:
            self._driver.add_xid(uuid, sighting.xid)
        self._told.ring()

    def _inventory(self) -> dict[str, Any]:
        """Return the inventory document, made anew once a minute: to ask an engine at each sync would be a waste."""
        now_s = clocks.boot_s()
        if self._document is None or now_s - self._documented_s > DOCUMENT_FOR_S:
            self._document, self._documented_s = self._fresh_document(), now_s
        return self._document

    def _fresh_document(self) -> dict[str, Any]:
        figures = inventory.machine(self._folder.path)
        figures |= {name: value for name, value in self._settings.get("figures", {}).items() if value is not None}
        return inventory.document(
            driver=self._driver,
            engine=self._engine,
            figures=figures,
            ports=self._ports,
            name=self._settings.get("name", ""),
        )

    def _conditions(self) -> list[str]:
        disk = shutil.disk_usage(self._folder.path)
        return ["disk_pressure"] if disk.free < disk.total // DISK_PRESSURE_PART else []

    def _host_figures(self) -> dict[str, int]:
        return host_figures.figures(folder=self._folder.path, server=self._identity.server)

    def _diagnose(self) -> dict[str, Any]:
        from agents.node import doctor

        return doctor.report(doctor.examine(folder=self._folder, settings=self._settings, enrolled=True))
