"""`manage.py bootstrap_host`: make a machine a host over SSH, with its owner watching."""

import getpass
import time
from pathlib import Path
from typing import Any

import paramiko
from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents import bootstrap, enrolment, host_events, machine_access, ssh
from agents.models import Host
from apikit import clock
from apikit.errors import DomainError
from tenants.models import Organization

VERIFIED_WITHIN_S = 120


class Command(BaseCommand):
    help = "Install and enrol the agent on a machine over SSH; shows its host key for you to confirm first."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("machine", help="USER@HOST or USER@HOST:PORT")
        parser.add_argument("--organization", required=True, help="slug of the organization that owns it")
        parser.add_argument("--zone", required=True)
        parser.add_argument("--name", required=True)
        parser.add_argument("--server", required=True, help="address at which the machine reaches this control plane")
        parser.add_argument("--access", default=Host.Access.PUBLIC.value, choices=Host.Access.values)
        parser.add_argument("--fingerprint", help="SHA256:... that you have compared already; otherwise you are asked")
        parser.add_argument("--key-file", type=Path, help="private key; otherwise a password is asked for")
        parser.add_argument("--agent-version", default="0.1.0", help="version of the agent")
        parser.add_argument("--wheel", type=Path, help="the agent's package; otherwise the machine's index is used")
        parser.add_argument(
            "--bare-metal", action="store_true",
            help="also let the platform in over SSH, so that the machine may be let whole",
        )  # fmt: skip
        parser.add_argument("--sim", default="", help="simulated devices, such as 'A100_80G x2'")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._bootstrap(options)
        except DomainError as refusal:
            raise CommandError(refusal.detail) from None

    def _bootstrap(self, options: dict[str, Any]) -> None:
        user, _, place = options["machine"].partition("@")
        host, _, port = place.partition(":")
        if not user or not host or (port and not port.isdigit()):
            raise CommandError("The machine is USER@HOST or USER@HOST:PORT.")
        organization = Organization.objects.filter(slug=options["organization"]).first()
        if organization is None:
            raise CommandError(f"There is no organization {options['organization']}.")
        address = ssh.Address(host, int(port or 22))
        key = ssh.fetch_host_key(address)
        self._confirm(address, key, options["fingerprint"])
        credentials = self._credentials(user, options["key_file"])
        _, token = enrolment.invite(
            organization=organization, zone=options["zone"], name=options["name"], access=options["access"],
            created_by="bootstrap", at=clock.now(),
        )  # fmt: skip
        wheel: Path | None = options["wheel"]
        plan = bootstrap.Plan(
            server=options["server"], token=token, name=options["name"], version=options["agent_version"],
            wheel=wheel.read_bytes() if wheel else None, wheel_name=wheel.name if wheel else "", sim=options["sim"],
            let_in=machine_access.management_line() if options["bare_metal"] else "",
        )  # fmt: skip
        found = bootstrap.run(address=address, host_key=key, credentials=credentials, plan=plan, say=self._say)
        if options["bare_metal"]:
            host = Host.objects.exclude(state=Host.State.RETIRED).get(owner=organization, name=options["name"])
            machine_access.pin(
                host_id=host.pk, address=address, user=found["access"], host_key=key, by="bootstrap", at=clock.now()
            )
        self._await_verified(organization, options["name"], found | {"host_key": key.fingerprint})

    def _confirm(self, address: ssh.Address, key: ssh.HostKey, expected: str | None) -> None:
        self.stdout.write(f"{address.name} shows the {key.kind} key {key.fingerprint}")
        if expected is not None:
            if expected != key.fingerprint:
                raise CommandError("That is not the fingerprint you gave. Nothing was sent.")
        elif input("Is it this one (compare it on the machine itself)? Type yes: ").strip() != "yes":
            raise CommandError("Not confirmed. Nothing was sent.")

    def _credentials(self, user: str, key_file: Path | None) -> ssh.Credentials:
        if key_file is not None:
            return ssh.Credentials(user, key=paramiko.PKey.from_path(key_file))
        return ssh.Credentials(user, password=getpass.getpass(f"Password of {user}: "))

    def _say(self, step: str, state: str, what: str) -> None:
        self.stdout.write(f"  {step:10} {'was there' if state == 'there' else 'done':10} {what}")

    def _await_verified(self, organization: Organization, name: str, found: dict[str, str]) -> None:
        deadline = time.monotonic() + VERIFIED_WITHIN_S
        while time.monotonic() < deadline:
            host = Host.objects.exclude(state=Host.State.RETIRED).filter(owner=organization, name=name).first()
            if host is not None and host.state == Host.State.ONLINE:
                host_events.record(host_id=host.pk, kind="host.bootstrapped", at=clock.now(), facts=found)
                self.stdout.write(f"{name} is online and verified: {host.public_id}")
                return
            time.sleep(1)
        why = host.state_reason if host is not None else "it was not heard"
        raise CommandError(f"{name} is installed, but not verified yet: {why or 'no reason yet'}")
