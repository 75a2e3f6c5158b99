"""`gpuyard receipt`: a receipt is fetched, and recomputed without a server."""

import json
from pathlib import Path
from typing import Any

import pytest
from nacl.signing import SigningKey

from billing import receipt_check
from gpuyard.cli import problems
from tests.gpuyard.conftest import Shell
from tests.gpuyard.scripted_server import Answer, ScriptedServer

KEY = SigningKey(bytes(range(32)))
PUBLIC = bytes(KEY.verify_key).hex()


def _fact(seq: int, second: int, **changes: Any) -> dict[str, Any]:
    plain = {"member": 0, "lane": "compute", "begins": True, "use": "active", "quantity": 2, "meter": 0}
    return {"seq": seq, "at": f"2026-05-04T12:00:{second:02}Z", "prices": [["2026-01-01T00:00:00Z", 1_800_000]]} | (
        plain | changes
    )


def _receipt(**changes: Any) -> dict[str, Any]:
    """Of two GPUs at 1.80 an hour for ten seconds: 2 x 1_800_000 x 10 / 3600."""
    stop = _fact(2, 15, begins=False, use=None, lane="", member=None, meter=None, prices=[], quantity=0)
    made = {
        "version": receipt_check.VERSION, "reference": "lease_1", "currency": "USD", "simulated": True,
        "until": "2026-05-04T13:00:00Z", "ended_by": "", "facts": [_fact(1, 5), stop], "voids": [], "minimum_s": 0,
        "waived_meters": [], "seconds": 10, "charged_micros": 10_000,
    } | changes  # fmt: skip
    return {**made, "signature": KEY.sign(receipt_check.canonical(made)).signature.hex()}


def _file(folder: Path, receipt: object) -> str:
    path = folder / "receipt.json"
    path.write_text(json.dumps(receipt))
    return str(path)


def test_a_receipt_is_fetched_as_it_was_signed_and_verifies(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases/lease_1/receipt", Answer(200, _receipt()))

    fetched = shell("receipt", "get", "lease_1")
    checked = shell("receipt", "verify", "-", "--public-key", PUBLIC, stdin=fetched.stdout)

    assert json.loads(fetched.stdout) == _receipt()
    assert checked.exit_code == problems.OK
    assert "follows from the events" in checked.stderr
    assert "signature is the platform's" in checked.stderr
    assert len(server.asked) == 1  # verifying asks nobody


def test_without_the_key_it_says_that_the_signature_was_not_checked(shell: Shell, tmp_path: Path) -> None:
    result = shell("receipt", "verify", _file(tmp_path, _receipt() | {"signature": "00"}))

    assert (result.exit_code, result.stdout) == (problems.OK, "")
    assert "not checked" in result.stderr


@pytest.mark.parametrize(
    ("receipt", "said"),
    [
        (_receipt(charged_micros=10_001), "its events give 10000"),
        (_receipt(seconds=11), "its events give 10 s"),
        (_receipt() | {"currency": "CNY"}, "the signature is not the platform's"),
        (_receipt() | {"signature": 7}, "the signature is not the platform's"),
        (_receipt(version=2), "version 2 is not 1"),
        (_receipt(facts="nonsense"), "cannot be recomputed"),
        (_receipt(facts=[_fact(1, 5, prices=[])]), "cannot be recomputed"),
        ({"version": receipt_check.VERSION}, "cannot be recomputed"),
    ],
)
def test_a_receipt_that_does_not_hold_is_told_with_exit_code_1(
    shell: Shell, tmp_path: Path, receipt: dict[str, Any], said: str
) -> None:
    result = shell("receipt", "verify", _file(tmp_path, receipt), "--public-key", PUBLIC)

    assert result.exit_code == problems.ERROR
    assert said in result.stderr


@pytest.mark.parametrize(
    ("arguments", "content"),
    [(("--public-key", "abc"), _receipt()), (("--public-key", PUBLIC[2:]), _receipt()), ((), [])],
)
def test_what_is_no_key_or_no_receipt_is_a_fault_of_use(
    shell: Shell, tmp_path: Path, arguments: tuple[str, ...], content: object
) -> None:
    assert shell("receipt", "verify", _file(tmp_path, content), *arguments).exit_code == problems.USAGE
    (tmp_path / "text").write_text("{")
    assert shell("receipt", "verify", str(tmp_path / "text")).exit_code == problems.USAGE
    assert shell("receipt", "verify", str(tmp_path / "none")).exit_code == problems.USAGE
