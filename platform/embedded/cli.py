"""`python -m embedded up | down | status | kill-host | revive-host`; `gpuyard up` and `gpuyard down` call it."""

import argparse
import json
import sys
from pathlib import Path

from embedded import processes, stack
from embedded.stack_folder import AlreadyRuns, default_path


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 it did not work."""
    options = _parser().parse_args(argv)
    try:
        return int(options.act(options))
    except (stack.UpFailed, processes.DeadlinePassed, AlreadyRuns) as fault:
        print(f"gpuyard: {fault}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="gpuyard", description="The whole of gpuyard on this machine.")
    verbs = top.add_subparsers(dest="verb", required=True)

    def verb(name: str, act: object, text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text)
        sub.set_defaults(act=act)
        sub.add_argument("--state-dir", type=Path, default=default_path(), help="its folder (%(default)s)")
        return sub

    up = verb("up", _up, "start it, or find it running, and print its URLs and a first API key")
    pool = up.add_mutually_exclusive_group()
    pool.add_argument("--pool", type=Path, default=stack.DEFAULT_POOL, help="file of simulated hosts (%(default)s)")
    pool.add_argument("--no-pool", dest="pool", action="store_const", const=None, help="no simulated hosts")
    up.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; may be repeated")
    up.add_argument("--within-s", type=float, default=180.0, help="give up after this long (%(default)g)")
    up.add_argument("--json", action="store_true", help="print one JSON document")
    down = verb("down", _down, "end it, and whatever it has started")
    down.add_argument("--remove", action="store_true", help="remove its database and all its files too")
    verb("status", _status, "print how it is, as JSON")
    verb("supervise", _supervise, "be its supervisor in the foreground (`up` starts this)")
    kill = verb("kill-host", _kill_host, "let a simulated host die, with what runs on it")
    kill.add_argument("name")
    revive = verb("revive-host", _revive_host, "switch a killed host on again")
    revive.add_argument("name")
    return top


def _up(options: argparse.Namespace) -> int:
    settings = dict(text.partition("=")[::2] for text in options.set)
    access = stack.up(
        options.state_dir,
        pool=options.pool,
        environment=settings,
        within_s=options.within_s,
        progress=lambda step: print(f"  {step} ...", file=sys.stderr, flush=True),
    )
    if options.json:
        print(json.dumps(access))
        return 0
    print("gpuyard runs on this machine. Its GPUs are simulated.")
    print(f"  API      {access['api_url']}")
    print(f"  API key  {access['api_key']}")
    print(f"  admin    {access['admin_url']}  ({access['admin_user']} / {access['admin_password']})")
    print("Use it:  gpuyard login --api-url URL, then gpuyard offers.   End it:  gpuyard down")
    return 0


def _down(options: argparse.Namespace) -> int:
    stack.down(options.state_dir, remove=options.remove)
    print("Nothing of gpuyard is running." + (" Its files are removed." if options.remove else ""))
    return 0


def _status(options: argparse.Namespace) -> int:
    print(json.dumps(stack.status(options.state_dir), indent=1))
    return 0


def _supervise(options: argparse.Namespace) -> int:
    from embedded import raising

    return raising.supervise(options.state_dir)


def _kill_host(options: argparse.Namespace) -> int:
    stack.kill_host(options.state_dir, options.name)
    return 0


def _revive_host(options: argparse.Namespace) -> int:
    stack.revive_host(options.state_dir, options.name)
    return 0
