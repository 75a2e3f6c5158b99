"""`manage.py agent_release`: make keys, sign a release of the agent, add it, roll it out, stop it, list them."""

import base64
import getpass
import hashlib
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from nacl.signing import SigningKey

from agents import release_text, releases
from agents.models import AgentRelease, AgentUpgrade
from apikit import clock
from apikit.errors import DomainError

CERTIFIED_DAYS = 90
PYTHON = (3, 12)
NEEDS = {"pynacl": "1.5"}


class Command(BaseCommand):
    help = "Releases of the agent: hosts fetch, check, try and keep them by themselves."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        make = verbs.add_parser("key", help="make an Ed25519 key: its seed into FILE, its public half to the terminal")
        make.add_argument("file", type=Path)
        certify = verbs.add_parser("certify", help="with the root key, let a signing key sign for a while (offline)")
        certify.add_argument("--root", type=Path, required=True)
        certify.add_argument("--key", required=True, help="public half of the signing key, 64 hex digits")
        certify.add_argument("--days", type=int, default=CERTIFIED_DAYS)
        certify.add_argument("--out", type=Path, required=True)
        sign = verbs.add_parser("sign", help="sign a wheel")
        sign.add_argument("wheel", type=Path)
        sign.add_argument("--agent-version", required=True)
        sign.add_argument("--key", type=Path, required=True, help="file of the signing key")
        sign.add_argument("--certificate", type=Path, required=True)
        sign.add_argument("--out", type=Path, required=True)
        add = verbs.add_parser("add", help="give a signed release to this installation; nobody is asked to take it yet")
        add.add_argument("document", type=Path)
        add.add_argument("wheel", type=Path)
        roll = verbs.add_parser("roll-out", help="ask so many percent of the hosts to take it")
        roll.add_argument("agent_version")
        roll.add_argument("percent", type=int, choices=releases.STAGES)
        roll.add_argument("--reason", default="")
        stop = verbs.add_parser("stop", help="ask nobody any more")
        stop.add_argument("agent_version")
        stop.add_argument("--reason", required=True)
        verbs.add_parser("list", help="what there is, and how far it got")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, "_" + options["verb"].replace("-", "_"))(options)
        except (DomainError, OSError, ValueError) as fault:
            raise CommandError(getattr(fault, "detail", None) or str(fault)) from None

    def _key(self, options: dict[str, Any]) -> None:
        key = SigningKey.generate()
        with open(os.open(options["file"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(bytes(key).hex() + "\n")
        self.stdout.write(bytes(key.verify_key).hex())

    def _certify(self, options: dict[str, Any]) -> None:
        until = (clock.now() + timedelta(days=options["days"])).replace(microsecond=0)
        certificate = {"key": options["key"], "until": until.isoformat().replace("+00:00", "Z")}
        text = release_text.certificate_text(certificate)
        signed = {"certificate": certificate, "certificate_signature": _signature(options["root"], text)}
        options["out"].write_text(json.dumps(signed, indent=1) + "\n")

    def _sign(self, options: dict[str, Any]) -> None:
        wheel = options["wheel"].read_bytes()
        release_text.numbers(options["agent_version"])
        manifest = {
            "version": options["agent_version"], "sha256": hashlib.sha256(wheel).hexdigest(), "size": len(wheel),
            "python": list(PYTHON), "needs": NEEDS,
        }  # fmt: skip
        signature = _signature(options["key"], release_text.manifest_text(manifest))
        document = {"manifest": manifest, "signature": signature, **json.loads(options["certificate"].read_text())}
        options["out"].write_text(json.dumps(document, indent=1) + "\n")

    def _add(self, options: dict[str, Any]) -> None:
        document, wheel = json.loads(options["document"].read_text()), options["wheel"].read_bytes()
        row = releases.add(document=document, wheel=wheel, by=_who(), at=clock.now())
        self.stdout.write(f"{row.version} is here. Next: manage.py agent_release roll-out {row.version} 1")

    def _roll_out(self, options: dict[str, Any]) -> None:
        row = releases.roll_out(
            version=options["agent_version"], percent=options["percent"], reason=options["reason"], by=_who(),
            at=clock.now(),
        )  # fmt: skip
        self.stdout.write(f"{row.version} goes to {row.percent} % of the hosts.")

    def _stop(self, options: dict[str, Any]) -> None:
        releases.stop(version=options["agent_version"], reason=options["reason"], by=_who(), at=clock.now())
        self.stdout.write(f"{options['agent_version']} is stopped.")

    def _list(self, options: dict[str, Any]) -> None:
        for row in AgentRelease.objects.defer("wheel").order_by("-added_at"):
            asked = AgentUpgrade.objects.filter(release=row)
            done, failed = (asked.filter(outcome=o).count() for o in (releases.Outcome.DONE, releases.Outcome.FAILED))
            stopped = f", stopped: {row.stopped_why}" if row.stopped_at else ""
            self.stdout.write(
                f"{row.version}: {row.percent} %, asked {asked.count()}, done {done}, failed {failed}{stopped}"
            )


def _signature(file: Path, text: bytes) -> str:
    key = SigningKey(bytes.fromhex(file.read_text().strip()))
    return base64.b64encode(key.sign(text).signature).decode()


def _who() -> str:
    return f"operator:{getpass.getuser()}"
