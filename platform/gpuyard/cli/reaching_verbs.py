"""gpuyard ssh, port-forward."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

import click

from gpuyard import config
from gpuyard.cli import forwarding, naming, reaching
from gpuyard.cli.session import Session, Verb, session

_member = click.option("--member", type=click.IntRange(min=0), default=0, help="The rank of the machine in a gang.")


@click.command(cls=Verb)
@naming.lease_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@_member
@click.option("-l", "--user", help="Whom to sign in as, where the lease does not say: the user of the image.")
@click.option("-i", "--identity", type=click.Path(exists=True, dir_okay=False), help="The private key to use.")
@click.option("--print", "prints", is_flag=True, help="Print the ssh command instead of running it.")
def ssh(
    lease_id: str, command: tuple[str, ...], member: int, user: str | None, identity: str | None, prints: bool
) -> None:
    """Open a shell on a lease's machine or in its container, or run a COMMAND there (behind `--`).

    The lease was made with --ssh-key, and is a whole machine (--bare) or has an image that runs an SSH server. The
    system's `ssh` does the rest, and its exit code is ours.
    """
    here = session()
    target = reaching.find_ssh(here.client, lease_id, rank=member)
    words = [*ssh_words(here, target, user=user, identity=identity), *_command(command)]
    if prints:
        click.echo(shlex.join(words))
        return
    _say_if_private(here, target)
    _become(words)


def _command(words: tuple[str, ...]) -> list[str]:
    """Return the command as the other side's shell must read it to get these very words; one word is a shell line."""
    return [*words] if len(words) < 2 else [shlex.join(words)]


def ssh_words(here: Session, target: reaching.Reached, *, user: str | None, identity: str | None) -> list[str]:
    """Return the ssh command that signs in there and trusts nobody but this lease's own host key."""
    alias = f"{target.lease_id}.{target.rank}"
    options = {
        "HostKeyAlias": alias,  # the key belongs to the lease: another lease may get the same address and port
        "UserKnownHostsFile": str(_known_hosts(target, alias)),
        "GlobalKnownHostsFile": os.devnull,
        "StrictHostKeyChecking": "yes" if target.host_key else "accept-new",
        "UpdateHostKeys": "no",
    }
    if not target.host_key:
        here.say("The lease does not say its host key: the first one that is seen is kept, and any other refused.")
    words = ["ssh", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    words += ["-i", identity, "-o", "IdentitiesOnly=yes"] if identity else []
    who = user or target.user
    return [*words, *(["-l", who] if who else []), "-p", str(target.host_port), target.address]


def _known_hosts(target: reaching.Reached, alias: str) -> Path:
    """Return the file with this lease's host keys: those it says itself, else those that were seen before."""
    folder = config.state_folder() / "known_hosts"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / alias
    if target.host_key:
        path.write_text(f"{alias} {target.host_key}\n", "utf-8")
    return path


def _say_if_private(here: Session, target: reaching.Reached) -> None:
    if target.is_private:
        here.say(
            f"{target.address} belongs to the host's own network: it can be reached from there, not from outside.",
            style="yellow",
        )


def _become(words: list[str]) -> None:
    """Become the ssh client, so that the terminal, signals and the exit code are its own."""
    if shutil.which(words[0]) is None:
        raise click.ClickException("There is no `ssh` on this machine: install OpenSSH's client.")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(words[0], words)  # noqa: S606 -- no shell


@click.command("port-forward", cls=Verb)
@naming.lease_argument
@click.argument("ports", nargs=-1, required=True, type=forwarding.PortPair(), metavar="[LOCAL:]REMOTE...")
@_member
@click.option("--via-ssh", is_flag=True, help="Through the container's SSH server: reaches ports it does not publish.")
@click.option("-l", "--user", help="With --via-ssh: whom to sign in as.")
@click.option("-i", "--identity", type=click.Path(exists=True, dir_okay=False), help="With --via-ssh: the key.")
def port_forward(
    lease_id: str,
    ports: tuple[tuple[int, int], ...],
    member: int,
    via_ssh: bool,
    user: str | None,
    identity: str | None,
) -> None:
    """Bring ports of a lease's container to this machine: gpuyard port-forward LEASE 8888 9000:80

    They are opened on 127.0.0.1 only; local port 0 is one that is free. When the lease moves to another host, new
    connections follow it. Ctrl-C ends the forwarding, not the lease.
    """
    here = session()
    if via_ssh:
        target = reaching.find_ssh(here.client, lease_id, rank=member)
        _say_if_private(here, target)
        tunnels = [part for local, remote in ports for part in ("-L", f"127.0.0.1:{local}:127.0.0.1:{remote}")]
        *words, where = ssh_words(here, target, user=user, identity=identity)
        _become([*words, "-N", "-o", "ExitOnForwardFailure=yes", *tunnels, where])
    targets = [reaching.find(here.client, lease_id, rank=member, port=remote) for _, remote in ports]
    _say_if_private(here, targets[0])
    forwarding.serve(here, [(local, target) for (local, _), target in zip(ports, targets, strict=True)])
