"""The command line of a host: `gpuyard-agent enrol | run | purge | doctor | record`."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from agents.node import slots
from agents.node.daemon import Daemon, NotEnrolled, enrol, purge
from agents.node.engines import EngineError
from agents.node.identity import Identity, StateError, StateFolder
from agents.node.syncing import AGENT_VERSION, said

DEFAULT_STATE = "/var/lib/gpuyard-agent"


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 it did not work, 2 it was asked for wrongly."""
    options = parser().parse_args(argv)
    try:
        return int(options.act(options))
    except (StateError, NotEnrolled, EngineError) as fault:
        print(f"gpuyard-agent: {fault}", file=sys.stderr)
        return 1
    except ValueError as fault:
        print(f"gpuyard-agent: {fault}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Return the parser; every option of a host may be given to `enrol` and to `run`, and is kept for later runs."""
    top = argparse.ArgumentParser(prog="gpuyard-agent", description="Runs leased containers on this machine's GPUs.")
    top.add_argument("--version", action="version", version=AGENT_VERSION)
    verbs = top.add_subparsers(dest="verb", required=True)
    for verb, act, text in (
        ("enrol", _enrol, "trade a one-time token for this host's identity"),
        ("run", _run, "run the agent (enrols first when a token is given)"),
        ("doctor", _doctor, "say what is wrong with this machine, and how to mend it"),
        ("purge", _purge, "stop and remove all workloads of this host, for good (the agent must not run)"),
        ("record", _record, "write what the GPU library answers, as one JSON document"),
    ):
        sub = verbs.add_parser(verb, help=text)
        sub.set_defaults(act=act)
        _host_options(sub)
        if verb == "doctor":
            sub.add_argument("--json", action="store_true", help="one JSON document instead of sentences")
    return top


def _host_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--state-dir", type=Path, default=Path(os.environ.get("GPUYARD_STATE_DIR", DEFAULT_STATE)))
    sub.add_argument("--server", default=os.environ.get("GPUYARD_SERVER"), help="URL of the control plane")
    sub.add_argument("--token", default=os.environ.get("GPUYARD_TOKEN"), help="one-time token (GPUYARD_TOKEN)")
    sub.add_argument("--name", help="name of this host")
    sub.add_argument("--driver", choices=["nvidia", "amd", "ascend", "sim"])
    sub.add_argument("--engine", choices=["docker", "podman", "process"])
    sub.add_argument("--engine-socket", help="path of the engine's UNIX socket")
    sub.add_argument("--ports", help="host ports for containers, FIRST-LAST")
    sub.add_argument("--sim", action="append", help="simulated devices, such as 'A100_80G x8'; may be repeated")
    sub.add_argument("--sim-driver-version", default=None)
    sub.add_argument("--sim-cuda-version", default=None)
    sub.add_argument("--sim-scenario", help="file of faults of the simulated devices")
    sub.add_argument("--kernel-log", help="where kernel messages are read, instead of /dev/kmsg")
    sub.add_argument("--sim-cpus", type=int, help="CPU threads that a simulated host says it has")
    sub.add_argument("--sim-ram-gib", type=int)
    sub.add_argument("--sim-disk-gib", type=int)


def _settings(options: argparse.Namespace, folder: StateFolder) -> dict[str, Any]:
    """Return the kept settings with what this command line says on top."""
    kept = folder.settings()
    given: dict[str, Any] = {
        "name": options.name,
        "driver": options.driver,
        "engine": options.engine,
        "engine_socket": options.engine_socket,
        "ports": _ports(options.ports) if options.ports else None,
        "sim": options.sim,
        "sim_driver_version": options.sim_driver_version,
        "sim_cuda_version": options.sim_cuda_version,
        "sim_scenario": options.sim_scenario,
        "kernel_log": options.kernel_log,
    }
    settings = {**kept, **{name: value for name, value in given.items() if value is not None}}
    if settings.get("driver") == "sim":
        settings.setdefault("sim_driver_version", "570.86.15")
        settings.setdefault("sim_cuda_version", "12.8")
        if not settings.get("sim"):
            raise ValueError("--driver sim needs --sim, such as --sim 'A100_80G x8'")
        settings["figures"] = {**_simulated_figures(options, settings), **kept.get("figures", {})}
    return settings


def _simulated_figures(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Return CPU, memory and disk of a simulated host: a common share per GPU unless the command line says more."""
    from agents.node.sim import read_specs

    gpus = len(read_specs(settings["sim"]))
    disk_mib = (options.sim_disk_gib or 500 * gpus) * 1024
    return {
        "cpu_count": options.sim_cpus or 16 * gpus,
        "cpu_model": "simulated",
        "ram_mib": (options.sim_ram_gib or 128 * gpus) * 1024,
        "disk_mib": disk_mib,
        "disk_free_mib": disk_mib,
    }


def _ports(text: str) -> list[int]:
    """Return [first, end) of "FIRST-LAST". Raises ValueError."""
    first, dash, last = text.partition("-")
    if not dash or not first.isdigit() or not last.isdigit() or not 1024 <= int(first) <= int(last) <= 65535:
        raise ValueError(f"--ports must be FIRST-LAST within 1024-65535, not {text!r:.40}")
    return [int(first), int(last) + 1]


def _enrol(options: argparse.Namespace) -> int:
    folder = StateFolder(options.state_dir)
    identity = _enrolled(options, folder, _settings(options, folder))
    print(f"enrolled as {identity.host} at {identity.server}")
    return 0


def _enrolled(options: argparse.Namespace, folder: StateFolder, settings: dict[str, Any]) -> Identity:
    if not options.server or not options.token:
        raise NotEnrolled("this machine is not enrolled: give --server and --token (or GPUYARD_SERVER, GPUYARD_TOKEN)")
    return enrol(folder, server=options.server, token=options.token, settings=settings)


def _run(options: argparse.Namespace) -> int:
    slots.go_on(options.state_dir, installed=AGENT_VERSION)
    folder = StateFolder(options.state_dir)
    folder.hold()
    settings = _settings(options, folder)
    identity = folder.identity()
    if identity is None or not identity.enrolled:
        identity = _enrolled(options, folder, settings)
        said(f"enrolled as {identity.host}")
    else:
        folder.save_settings(settings)
    said(f"gpuyard-agent {AGENT_VERSION} runs as {identity.host} for {identity.server}")
    if settings.get("driver") == "sim":
        said(f"its GPUs are simulated: {', '.join(settings['sim'])}")
    daemon = Daemon(folder, identity, settings)
    daemon.run()
    return daemon.exit_status


def _purge(options: argparse.Namespace) -> int:
    folder = StateFolder(options.state_dir)
    folder.hold()
    identity = folder.identity()
    ended = purge(folder, identity, _settings(options, folder)) if identity and identity.enrolled else 0
    print(f"{ended} workloads were ended and removed")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from agents.node import doctor

    given = {"driver": options.driver, "engine": options.engine, "engine_socket": options.engine_socket}
    given = {name: value for name, value in given.items() if value is not None}
    return doctor.main(options.state_dir, as_json=options.json, given=given)


def _record(options: argparse.Namespace) -> int:
    from agents.node import probe

    return probe.record()


if __name__ == "__main__":
    sys.exit(main())
