"""Public keys that tenants give us."""

import subprocess
from pathlib import Path

import pytest

from agents import public_keys


def made(folder: Path, *options: str) -> str:
    file = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", file, *options], check=True)
    return file.with_suffix(".pub").read_text().strip()


@pytest.mark.parametrize("options", [("-t", "ed25519"), ("-t", "rsa", "-b", "2048"), ("-t", "ecdsa", "-b", "384")])
def test_good_keys_are_taken(tmp_path: Path, options: tuple[str, ...]) -> None:
    line = made(tmp_path, *options, "-C", "me at home")

    assert public_keys.fault(line) is None
    assert public_keys.bare(line) == " ".join(line.split()[:2])


def test_a_short_rsa_key_is_refused(tmp_path: Path) -> None:
    assert "1024 bits is too short" in str(public_keys.fault(made(tmp_path, "-t", "rsa", "-b", "1024")))


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    line = made(tmp_path, "-t", "ed25519")
    kind, body = line.split()[:2]
    bad = [
        "", body, f'command="id" {line}', f"{line}\n{line}", f"{line}\r", f"ssh-rsa {body}", f"{kind} {body[:40]}",
        f"{kind} AAAA", f"{kind} !!!!", f"ssh-dss {body}", f"{kind}  {body}", f"{kind} {body} a\x00b", "PRIVATE KEY",
    ]  # fmt: skip

    assert [text for text in bad if public_keys.fault(text) is None] == []
