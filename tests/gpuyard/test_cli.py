"""Verbs, forms of output, refusals and exit codes of the command."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.cli import cli, problems
from tests.gpuyard.conftest import KEY, Shell
from tests.gpuyard.scripted_server import Answer, ScriptedServer, lease, problem

ID = lease()["id"]


def test_lease_create_sends_what_the_options_say(server: ScriptedServer, shell: Shell, tmp_path: Path) -> None:
    server.on("POST", "/leases", Answer(201, lease()))
    key = tmp_path / "id.pub"
    key.write_text("ssh-ed25519 AAAA me\n")

    result = shell(
        *("lease", "create", "A100_80G x4", "--image", "pytorch_latest", "--for", "2h", "--max-price", "1.20 cny"),
        *(
            "--region",
            "cn-hangzhou",
            "--region",
            "sg-1",
            "--same",
            "fabric",
            "--min-ram-gib",
            "64",
            "-l",
            "team=vision",
        ),
        *("-e", "EPOCHS=3", "-p", "8888", "--ssh-key", str(key), "--notice", "2m", "--no-queue", "--name", "Zoë"),
        *("--", "python", "train.py", "--lr", "0.1"),
    )

    assert (result.exit_code, result.stderr) == (0, "")
    assert ID in result.stdout
    assert "(simulated)" in result.stdout
    assert server.asked[0].body == {
        "request": "A100_80G x4",
        "image": "pytorch_latest",
        "term": {"kind": "on_demand", "duration_s": 7200},
        "constraints": {
            "regions": ["cn-hangzhou", "sg-1"],
            "same": "fabric",
            "min_ram_gib": 64,
            "max_price": {"amount": "1.20", "currency": "CNY"},
        },
        "labels": {"team": "vision"},
        "env": {"EPOCHS": "3"},
        "ports": [8888],
        "ssh_keys": ["ssh-ed25519 AAAA me"],
        "notice_s": 120,
        "if_no_capacity": "refuse",
        "name": "Zoë",
        "command": ["python", "train.py", "--lr", "0.1"],
    }


def test_a_reserved_term_and_a_start_are_said_plainly(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", "/leases", Answer(201, lease()))

    shell(
        "lease", "create", "A100_80G", "--bare", "--term", "p1m", "--renew", "--start-at", "2026-12-01T08:00:00+08:00"
    )

    assert server.asked[0].body == {
        "request": "A100_80G",
        "bare": True,
        "term": {"kind": "reserved", "period": "P1M", "renew": True, "start_at": "2026-12-01T00:00:00Z"},
    }


def test_a_price_bound_without_a_currency_is_in_the_wallets(server: ScriptedServer, shell: Shell) -> None:
    server.on(
        "GET", "/wallet", {"balances": [{"currency": "XTS"}]}, {"balances": [{"currency": c} for c in ("CNY", "XTS")]}
    )
    server.on("POST", "/leases", Answer(201, lease()))

    shell("lease", "create", "A100_80G", "--image", "x", "--max-price", "1.5")
    unclear = shell("lease", "create", "A100_80G", "--image", "x", "--max-price", "1.5")

    (made,) = server.requests("POST", "/leases")
    assert made.body["constraints"] == {"max_price": {"amount": "1.5", "currency": "XTS"}}
    assert unclear.exit_code == 2
    assert "Name a currency (CNY, XTS)" in unclear.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lease", "create"), "Say what to lease"),
        (("lease", "create", "A100_80G", "--for", "2"), "no duration"),
        (("lease", "create", "A100_80G", "--start-at", "2026-12-01T08:00:00"), "names no time zone"),
        (("lease", "create", "A100_80G", "-e", "NOVALUE"), "not NAME=VALUE"),
        (("lease", "create", "A100_80G", "--max-price", "1e3"), "no price"),
        (("lease", "extend", ID), "Say either --by"),
        (("lease", "fly"), "No such command"),
        (("ps", "--limit", "0"), "not in the range"),
    ],
)
def test_wrong_usage_is_exit_2_and_asks_the_server_nothing(
    server: ScriptedServer, shell: Shell, arguments: tuple[str, ...], said: str
) -> None:
    result = shell(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
    assert server.asked == []


@pytest.mark.parametrize(
    ("status", "slug", "code"),
    [
        (400, "malformed-json", 2),
        (422, "validation-error", 2),
        (422, "idempotency-key-reused", 2),
        (413, "payload-too-large", 2),
        (404, "not-found", 3),
        (401, "unauthenticated", 4),
        (403, "permission-denied", 4),
        (409, "invalid-transition", 5),
        (412, "precondition-failed", 5),
        (428, "precondition-required", 5),
        (410, "quote-expired", 5),
        (409, "no-capacity", 6),
        (402, "insufficient-funds", 7),
        (409, "gpu-quota-exceeded", 7),
        (409, "budget-exceeded", 7),
        (500, "internal-error", 1),
        (418, "something-new", 1),
    ],
)
def test_each_refusal_has_its_exit_code(
    server: ScriptedServer, shell: Shell, status: int, slug: str, code: int
) -> None:
    server.on("GET", f"/leases/{ID}", problem(status, slug, detail="Not so.", request_id="req_7"))

    result = shell("lease", "get", ID)

    assert result.exit_code == code
    assert result.stdout == ""
    assert "Error: Not so." in result.stderr
    assert f"Request req_7 ({status} {slug})" in result.stderr


def test_a_server_that_is_away_is_exit_1(server: ScriptedServer, shell: Shell, pauses: list[float]) -> None:
    result = shell("ps", GPUYARD_API_URL="http://127.0.0.1:9")

    assert result.exit_code == 1
    assert "No answer to GET /leases at 4 tries" in result.stderr


def test_without_an_address_it_says_how_to_sign_in(shell: Shell) -> None:
    result = shell("ps", GPUYARD_API_URL="", GPUYARD_API_KEY="")

    assert result.exit_code == 4
    assert "gpuyard login" in result.stderr


def test_a_fault_in_the_request_is_pointed_at_with_the_nearest_right_form(server: ScriptedServer, shell: Shell) -> None:
    fault = {"pointer": "/request", "code": "unknown_region", "detail": "The regions are sg-1.", "position": 13}
    server.on(
        "POST",
        "/leases",
        problem(422, "validation-error", detail="One fault.", errors=[{**fault, "nearest": ["A100_80G x4 @sg-1"]}]),
    )

    result = shell("lease", "create", "A100_80G x4 @mars", "--image", "x")

    lines = result.stderr.splitlines()
    shown = lines.index("    A100_80G x4 @mars")
    assert lines[shown - 1] == "  /request: The regions are sg-1."
    assert lines[shown + 1] == "                 ^"
    assert lines[shown + 1].index("^") - 4 == "A100_80G x4 @mars".index("mars")
    assert lines[shown + 2] == "    Nearest: A100_80G x4 @sg-1"


@pytest.mark.parametrize(
    ("text", "position", "shown", "caret"),
    [
        ("卡 x4", 2, "    卡 x4", 4 + 3),  # a Chinese character is two cells wide
        ("A100_80G x4\x1b[31m", 11, "    A100_80G x4 [31m", 4 + 11),  # nothing steers the terminal
        ("A100_80G x", 10, "    A100_80G x", 4 + 10),  # behind the end: something is missing
        ("A" * 200 + "!" + "B" * 100, 200, "    …" + "A" * 30 + "!" + "B" * 29 + "…", 4 + 1 + 30),
    ],
)
def test_the_caret_stands_under_the_fault_whatever_the_text(
    server: ScriptedServer, shell: Shell, text: str, position: int, shown: str, caret: int
) -> None:
    fault = {"parameter": "request", "code": "syntax", "detail": "Here.", "position": position}
    server.on("GET", "/offers", problem(422, "validation-error", errors=[fault]))

    lines = shell("offers", text).stderr.splitlines()

    assert lines[2] == shown
    assert lines[3] == " " * caret + "^"


def test_no_capacity_says_why_when_and_what_would_help(server: ScriptedServer, shell: Shell) -> None:
    refusal = problem(
        409,
        "no-capacity",
        detail="Every A100_80G is let.",
        reasons={"too_few_free": 3, "wrong_region": 1},
        nearest=["A100_80G x2"],
        eta={"at": "2099-01-01T00:00:00Z", "certainty": "certain"},
    )
    server.on("POST", "/leases", refusal)

    said = shell("lease", "create", "A100_80G x4", "--image", "x", "--no-queue").stderr

    assert "3 x too few free" in said
    assert "What would help: A100_80G x2" in said
    assert "2099-01-01T00:00:00Z, certain" in said


def test_with_json_a_refusal_is_the_problem_itself_on_stderr(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", f"/leases/{ID}", problem(404, "not-found", detail="None."))

    result = shell("lease", "get", ID, "--json")

    assert (result.exit_code, result.stdout) == (3, "")
    assert json.loads(result.stderr)["type"].endswith("/not-found")


def test_data_is_the_same_in_json_and_yaml_and_stands_alone_on_stdout(server: ScriptedServer, shell: Shell) -> None:
    odd = {"no": "yes", "x: y": ["#1", [], {}, [["deep"]], {"a": None}], "text": 'two\nlines "q" \x07 ü €', "n": 1.5}
    rows = [lease(labels=odd), lease(id="b")]
    server.on("GET", "/leases", {"items": rows, "next": None})

    as_json, as_yaml = shell("lease", "list", "--json"), shell("-o", "yaml", "lease", "list")

    assert json.loads(as_json.stdout) == {"items": rows, "more": False}
    assert yaml.safe_load(as_yaml.stdout) == {"items": rows, "more": False}
    assert as_json.stderr == as_yaml.stderr == ""


def test_names_are_one_a_line_for_other_commands(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases", {"items": [lease(id="a"), lease(id="b")]})
    server.on("GET", "/images", {"items": [{"slug": "pytorch_latest"}]})

    assert shell("lease", "list", "-o", "name").stdout == "a\nb\n"
    assert shell("images", "-o", "name").stdout == "pytorch_latest\n"


def test_a_cut_list_says_so_on_stderr_and_in_json(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases", {"items": [lease(id=name) for name in "abc"]})

    table, data, whole = (shell("lease", "list", *more) for more in (["--limit=2"], ["--limit=2", "--json"], ["--all"]))

    assert "more than 2" in table.stderr
    assert len(table.stdout.splitlines()) == 3
    assert json.loads(data.stdout)["more"] is True
    assert len(whole.stdout.splitlines()) == 4
    assert whole.stderr == ""


def test_ps_leaves_out_what_ended(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases", {"items": [lease("active", id="a")]})

    shell("ps")
    shell("ps", "-a")
    shell("lease", "list", "--state", "active", "--state", "ended")

    living = "pending,scheduled,provisioning,active,parked,interrupted,ending"
    assert [asked.query for asked in server.asked] == [{"state": living}, {}, {"state": "active,ended"}]


@pytest.mark.parametrize("width", [200, 80, 60, 40])
def test_a_table_fits_the_terminal_and_never_cuts_an_id_or_the_badge(
    server: ScriptedServer, shell: Shell, width: int
) -> None:
    row = lease(why_waiting={"text": "every host is full " * 5}, name="a very long name " * 4, image="i" * 70)
    server.on("GET", "/leases", {"items": [row], "next": None})

    lines = shell("ps", COLUMNS=str(width)).stdout.splitlines()

    assert ID in lines[1]
    assert "A100_80G x4 (simulated)" in lines[1]
    needed = len(f"{ID}  pending  A100_80G x4 (simulated)")
    assert all(len(line) <= max(width, needed) for line in lines)
    assert ("WHY" in lines[0]) == (width == 200)


def test_nothing_from_the_server_steers_the_terminal(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases", {"items": [lease(name="\x1b[2J[bold]x[/bold]\n")]})

    shown = shell("lease", "list").stdout

    assert "\x1b" not in shown
    assert "[bold]x[/bold]" in shown
    assert len(shown.splitlines()) == 2


def test_explain_shows_the_call_and_the_reasons_but_not_the_key(server: ScriptedServer, shell: Shell) -> None:
    waiting = {"text": "3 hosts are full.", "counts": {"too_few_free": 3}}
    server.on("POST", "/leases", Answer(201, lease(why_waiting=waiting), {"X-Request-Id": "req_9"}))

    result = shell("lease", "create", "A100_80G", "--image", "x", "--explain")

    for said in ("> POST /leases", '"request": "A100_80G"', "< 201 Created", "X-Request-Id: req_9", "3 x too few free"):
        assert said in result.stderr
    assert KEY not in result.stdout + result.stderr


def test_a_dry_run_asks_for_a_plan_and_prints_it(server: ScriptedServer, shell: Shell) -> None:
    member = {"rank": 0, "host": "host_1", "region": "sg-1", "gpus": 4, "gpu_model": "A100_80G", "simulated": True}
    plan = {"placement": [member], "price_micros_per_hour": 12_500_000, "currency": "XTS", "first_hold_micros": 1}
    server.on("POST", "/leases", {"plan": plan})

    result = shell("lease", "create", "A100_80G x4", "--image", "x", "--dry-run", "--wait")

    assert server.asked[0].query == {"dry_run": "1"}
    assert len(server.asked) == 1
    assert "4 x A100_80G on host_1 sg-1 (simulated)" in result.stdout
    assert "12.50 XTS" in result.stdout
    assert "0.000001 XTS" in result.stdout


def test_offers_above_the_price_are_left_out(server: ScriptedServer, shell: Shell) -> None:
    def offer(name: str, amount: str) -> dict[str, Any]:
        return {"request": name, "price": {"amount": amount, "currency": "CNY", "per": "gpu_hour"}, "available": 2}

    server.on("GET", "/offers", {"items": [offer("cheap", "1.200000"), offer("dear", "1.200001")]})

    result = shell("offers", "any:24G+", "--max-price", "1.20 CNY", "--json")

    assert [row["request"] for row in json.loads(result.stdout)["items"]] == ["cheap"]
    assert server.asked[0].query == {"request": "any:24G+"}


def test_quote_without_a_verb_makes_one(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", "/quotes", Answer(201, {"id": "quote_1", "request": "A100_80G", "expires_at": None}))

    result = shell("quote", "A100_80G", "--ttl", "5m", "--for", "1h", "-o", "name")

    assert result.stdout == "quote_1\n"
    assert server.asked[0].body == {
        "request": "A100_80G",
        "ttl_s": 300,
        "term": {"kind": "on_demand", "duration_s": 3600},
    }


def test_stopping_one_lease_asks_nothing_but_several_want_a_yes(server: ScriptedServer, shell: Shell) -> None:
    for name in ("a", "b"):
        server.on("DELETE", f"/leases/lease_{name}", lease("ending", id=name))

    assert shell("stop", "lease_a").exit_code == 0
    refused = shell("stop", "lease_a", "lease_b")
    assert refused.exit_code == 2
    assert "Say -y" in refused.stderr
    assert shell("stop", "-y", "lease_a", "lease_b").exit_code == 0

    assert [asked.path[-1] for asked in server.asked] == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("arguments", "method", "path", "body"),
    [
        (("host", "cordon", "host_1"), "POST", "/hosts/host_1/actions/cordon", {}),
        (("host", "uncordon", "host_1"), "POST", "/hosts/host_1/actions/uncordon", {}),
        (
            ("host", "drain", "host_1", "-y", "--within", "10m"),
            "POST",
            "/hosts/host_1/actions/drain",
            {"deadline_s": 600},
        ),
        (("host", "retire", "host_1", "-y"), "POST", "/hosts/host_1/actions/retire", {}),
        (("host", "get", "host_1"), "GET", "/hosts/host_1", None),
        (("host", "enrol", "box", "--zone", "sim-a"), "POST", "/enrolments", {"name": "box", "zone": "sim-a"}),
        (("lease", "cancel", "lease_1"), "POST", "/leases/lease_1/actions/cancel", {}),
        (("lease", "extend", "lease_1", "--by", "30m"), "POST", "/leases/lease_1/actions/extend", {"by_s": 1800}),
        (
            ("key", "create", "ci", "--scope", "leases:read"),
            "POST",
            "/api-keys",
            {"name": "ci", "scopes": ["leases:read"]},
        ),
        (("key", "rotate", "k", "--overlap", "1d"), "POST", "/api-keys/k/actions/rotate", {"overlap_s": 86_400}),
        (("key", "delete", "k", "-y"), "DELETE", "/api-keys/k", None),
        (("member", "add", "a@b.c", "--role", "viewer"), "POST", "/members", {"email": "a@b.c", "role": "viewer"}),
        (("wallet",), "GET", "/wallet", None),
        (("market",), "GET", "/market/prices", None),
        (("invoice", "get", "i"), "GET", "/invoices/i", None),
        (("webhook", "test", "w"), "POST", "/webhooks/w/actions/test", {}),
    ],
)
def test_a_verb_is_one_call(
    server: ScriptedServer, shell: Shell, arguments: tuple[str, ...], method: str, path: str, body: Any
) -> None:
    server.on(method, path, {"id": "x", "balances": [], "items": []})

    assert shell(*arguments).exit_code == 0

    assert [(asked.method, asked.path, asked.body) for asked in server.asked] == [(method, "/api/v1" + path, body)]


def test_every_verb_explains_itself() -> None:
    def walk(group: Any, words: tuple[str, ...]) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for name, command in group.commands.items():
            assert command.help, (*words, name)
            found += walk(command, (*words, name)) if hasattr(command, "commands") else [(*words, name)]
        return found

    assert len(walk(cli, ())) > 50


def test_the_installed_command_works_and_a_reader_that_leaves_early_is_no_error(server: ScriptedServer) -> None:
    server.on("GET", "/leases", {"items": [lease(id=f"lease_{n}") for n in range(3000)]})
    environment = {**os.environ, "GPUYARD_API_URL": server.url, "GPUYARD_API_KEY": KEY}

    process = subprocess.Popen(
        [sys.executable, "-m", "gpuyard", "lease", "list", "--all"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("ID")
    process.stdout.close()

    assert process.wait(timeout=60) == problems.OK
    assert process.stderr.read() == ""
