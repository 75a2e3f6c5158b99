"""Verbs that look after leases, hosts, images, secrets and money: what each asks of the server, and what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpuyard.conftest import KEY, Shell
from tests.gpuyard.scripted_server import Answer, ScriptedServer, lease, problem

ID = lease()["id"]
HOST = "host_1"


def floor(amount: str) -> dict[str, str]:
    return {"amount": amount, "currency": "CNY", "per": "gpu_hour"}


def with_tag(body: dict[str, Any]) -> Answer:
    return Answer(body=body, headers={"ETag": '"7"'})


@pytest.mark.parametrize(
    ("arguments", "action", "body"),
    [
        (("park", ID), "park", {}),
        (("park", ID, "--keep", "queue"), "park", {"keep": "queue"}),
        (("resume", ID), "resume", {}),
        (("restart", ID), "restart", {}),
        (("renew", ID, "--periods", "2"), "renew", {"periods": 2}),
        (("defer", ID, "--by", "1h"), "defer", {"by_s": 3600}),
        (("resize", ID, "A100_80G x8"), "resize", {"request": "A100_80G x8"}),
        (("move", ID), "move", {}),
        (("shorten", ID, "--end-at", "2026-12-01T08:00:00Z"), "shorten", {"end_at": "2026-12-01T08:00:00Z"}),
    ],
)
def test_an_act_on_a_lease_is_one_call(
    server: ScriptedServer, shell: Shell, arguments: tuple[str, ...], action: str, body: dict[str, Any]
) -> None:
    server.on("POST", f"/leases/{ID}/actions/{action}", lease("active"))

    result = shell("lease", *arguments)

    assert (result.exit_code, result.stderr) == (0, "")
    assert [asked.body for asked in server.asked] == [body]


def test_resume_can_wait_until_it_is_active_again(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", f"/leases/{ID}/actions/resume", lease("provisioning"))
    server.on("GET", f"/leases/{ID}", lease("provisioning"), lease("active", version=2))

    result = shell("lease", "resume", ID, "--wait")

    assert result.exit_code == 0
    assert "active since" in result.stdout


def test_a_lease_is_found_by_its_name_among_those_that_live(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases", {"items": [lease("active", name="trainer")]})
    server.on("DELETE", f"/leases/{ID}", lease("ending"))

    result = shell("stop", "trainer")

    assert result.exit_code == 0
    assert server.asked[0].query["name"] == "trainer"
    assert "ended" not in server.asked[0].query["state"].split(",")
    assert server.asked[1].method == "DELETE"


@pytest.mark.parametrize(
    ("found", "said"),
    [([], "No living lease is called 'trainer'"), ([lease(id="lease_1"), lease(id="lease_2")], "lease_1 lease_2")],
)
def test_a_name_that_means_no_lease_or_two_is_refused_with_what_would_be_right(
    server: ScriptedServer, shell: Shell, found: list[Any], said: str
) -> None:
    server.on("GET", "/leases", {"items": found})

    result = shell("lease", "end", "trainer")

    assert result.exit_code == 2
    assert said in result.stderr
    assert {asked.method for asked in server.asked} == {"GET"}


def test_edit_changes_labels_one_by_one_and_against_the_version_seen(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", f"/leases/{ID}", with_tag(lease(labels={"team": "a", "old": "1"})))
    server.on("PATCH", f"/leases/{ID}", lease())

    nothing = shell("lease", "edit", ID)
    shell("lease", "edit", ID, "--name", "n", "-l", "team=b", "--no-label", "old")

    assert nothing.exit_code == 2
    (asked,) = server.requests("PATCH", f"/leases/{ID}")
    assert asked.body == {"name": "n", "labels": {"team": "b"}}
    assert asked.headers["if-match"] == '"7"'


def test_plan_is_a_dry_run_whatever_else_is_said(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", "/leases", {"plan": {"currency": "XTS", "first_hold_micros": 1_500_000}})

    result = shell("plan", "A100_80G x4", "--image", "x", "--for", "2h", "--", "python", "train.py")

    assert server.asked[0].query == {"dry_run": "1"}
    assert server.asked[0].body["command"] == ["python", "train.py"]
    assert "nothing was changed" in result.stdout
    assert "1.50 XTS" in result.stdout


def test_a_lease_that_is_not_to_wait_says_so_in_either_spelling(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", "/leases", Answer(201, lease()))

    shell("lease", "create", "A100_80G", "--image", "x", "--if-no-capacity", "refuse")
    shell("lease", "create", "A100_80G", "--image", "x", "--no-queue")
    torn = shell("lease", "create", "A100_80G", "--image", "x", "--no-queue", "--if-no-capacity", "queue")

    assert [asked.body["if_no_capacity"] for asked in server.asked] == ["refuse", "refuse"]
    assert torn.exit_code == 2


def test_a_quote_says_everything_that_the_price_depends_on(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", "/quotes", Answer(201, {"id": "quote_1", "expires_at": None}))

    shell(
        "quote", "A100_80G", "--term", "spot", "--notice", "10m", "--on-interrupt", "end", "--secret", "HF", "--ttl=5m"
    )

    assert server.asked[0].body == {
        "request": "A100_80G",
        "ttl_s": 300,
        "term": {"kind": "spot"},
        "notice_s": 600,
        "on_interrupt": "end",
        "secrets": ["HF"],
    }


def test_what_a_container_is_given_beside_its_image(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", "/leases", Answer(201, lease()))

    given = ("--registry-secret", "HUB", "--jupyter", "--health", "8080/healthz", "--may-move", "--read-only")
    shell("lease", "create", "A100_80G", "--image", "x", *given)

    more = {"registry_secret": "HUB", "jupyter": True, "health": {"port": 8080, "path": "/healthz"}, "may_move": True}
    assert server.asked[0].body == {"request": "A100_80G", "image": "x", "read_only": True, **more}


def test_a_notice_is_shown_with_the_lease(server: ScriptedServer, shell: Shell) -> None:
    told = {"cause": "drain", "ends_at": "2099-01-01T00:00:00Z", "detail": "Its host is drained."}
    server.on("GET", f"/leases/{ID}", lease("active", notices=[told]))

    shown = shell("lease", "get", ID).stdout

    assert "Its host is drained. 2099-01-01T00:00:00Z" in shown


def test_logs_since_five_minutes_ago(server: ScriptedServer, shell: Shell) -> None:
    server.on(
        "GET",
        f"/leases/{ID}/logs",
        {"items": [{"offset": 900, "text": "late\n"}], "next_offset": 905},
        {"items": [], "next_offset": 905},
    )

    result = shell("logs", ID, "--since", "5m")

    assert result.stdout == "late\n"
    first, second = server.asked
    assert first.query["since"].endswith("Z")
    assert "since" not in second.query
    assert second.query["offset"] == "905"


def test_following_goes_on_over_a_server_that_is_away_for_a_while(
    server: ScriptedServer, shell: Shell, pauses: list[float]
) -> None:
    page = {"items": [{"offset": 0, "text": "one\n"}], "next_offset": 4, "end": False}
    away = [Answer(broken=True)] * 6 + [problem(503, "unavailable", headers={"Retry-After": "1"})] * 5
    server.on("GET", f"/leases/{ID}/logs", page, *away, {"items": [], "next_offset": 4, "end": True})

    result = shell("logs", "-f", ID)

    assert (result.exit_code, result.stdout) == (0, "one\n")
    assert {asked.query["offset"] for asked in server.asked[1:]} == {"4"}


def test_without_following_a_server_that_is_away_is_an_error(
    server: ScriptedServer, shell: Shell, pauses: list[float]
) -> None:
    server.on("GET", f"/leases/{ID}/logs", Answer(broken=True))

    assert shell("logs", ID).exit_code == 1
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (("price", HOST, "1.20"), {"price_floor": {"amount": "1.20", "currency": "CNY"}}),
        (("price", HOST, "1.20 usd"), {"price_floor": {"amount": "1.20", "currency": "USD"}}),
        (("access", HOST, "private"), {"access": "private"}),
        (("hours", HOST, "--always"), {"hours": []}),
        (
            ("hours", HOST, "fri-mon 20:00-08:00", "wed 00:00-00:00", "--time-zone", "Asia/Shanghai"),
            {
                "hours": [
                    {"days": [0, 4, 5, 6], "from": "20:00", "to": "08:00"},
                    {"days": [2], "from": "00:00", "to": "00:00"},
                ],
                "hours_time_zone": "Asia/Shanghai",
            },
        ),
    ],
)
def test_terms_of_a_host_are_changed_against_the_version_seen(
    server: ScriptedServer, shell: Shell, arguments: tuple[str, ...], body: dict[str, Any]
) -> None:
    server.on("GET", f"/hosts/{HOST}", with_tag({"id": HOST, "price_floor": floor("0.00")}))
    server.on("PATCH", f"/hosts/{HOST}", {"id": HOST})

    assert shell("host", *arguments).exit_code == 0

    (asked,) = server.requests("PATCH", f"/hosts/{HOST}")
    assert asked.body == body
    assert asked.headers["if-match"] == '"7"'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("host", "price", HOST, "cheap"), "'cheap' is no amount: write 12.50"),
        (("host", "price", HOST, "1.2 euro"), "'EURO' is no currency"),
        (("host", "hours", HOST), "--always"),
        (("host", "hours", HOST, "weekend 1-2"), "mon-fri 20:00-08:00"),
        (("host", "hours", HOST, "mon 25:00-08:00"), "is no window"),
        (("budget", "set", "b", "10 CNY", "--warn-at", "80"), "'80' is no percentage: write 80%"),
        (("statement", "november"), "write 2026-11"),
        (("secret", "set", "HF"), "No value came"),
        (("logs", ID, "--since", "yesterday"), "is no instant"),
    ],
)
def test_what_is_mistyped_is_refused_with_what_would_be_right(
    server: ScriptedServer, shell: Shell, arguments: tuple[str, ...], said: str
) -> None:
    result = shell(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr
    assert server.asked == []


def test_a_score_is_shown_with_its_reasons_and_what_would_change_it(server: ScriptedServer, shell: Shell) -> None:
    entry = {
        "at": "2026-11-30T20:00:00Z",
        "kind": "host.lost",
        "points_bp": -500,
        "weighs_bp": -499,
        "detail": "Silent.",
    }
    what_if = {"after_7_days_bp": 9617, "after_another_loss_bp": 9001}
    server.on("GET", f"/hosts/{HOST}/score", {"host": HOST, "score_bp": 9501, "entries": [entry], "what_if": what_if})

    shown = shell("host", "score", HOST).stdout

    assert "95.01%" in shown
    assert "96.17%" in shown
    assert "-4.99%" in shown
    assert "Silent." in shown


def test_a_secret_comes_from_standard_input_and_its_value_is_never_shown(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", "/secrets", Answer(201, {"id": "secret_1", "name": "HF"}))

    result = shell("secret", "set", "HF", stdin="hf_not_a_real_one\n")

    assert server.asked[0].body == {"name": "HF", "value": "hf_not_a_real_one"}
    assert "hf_not" not in result.stdout + result.stderr


def test_secrets_images_and_budgets_are_removed_by_name(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/secrets", {"items": [{"id": "secret_1", "name": "HF"}]})
    server.on("DELETE", "/secrets/secret_1", Answer(204))
    images = [{"id": "image_1", "slug": "theirs", "own": False}, {"id": "image_2", "slug": "mine", "own": True}]
    server.on("GET", "/images", {"items": images})
    server.on("DELETE", "/images/image_2", Answer(204))
    server.on("GET", "/budgets", {"items": [{"id": "budget_1", "name": "all"}]})
    server.on("DELETE", "/budgets/budget_1", Answer(204))

    assert [shell(*words).exit_code for words in (["secret", "rm", "HF"], ["image", "rm", "mine"])] == [0, 0]
    assert shell("budget", "rm", "all").exit_code == 0
    refused = shell("image", "rm", "theirs")

    assert refused.exit_code == 2
    assert "There are: mine." in refused.stderr
    assert [asked.path[8:] for asked in server.asked if asked.method == "DELETE"] == [
        "secrets/secret_1",
        "images/image_2",
        "budgets/budget_1",
    ]


def test_an_image_of_your_own_with_its_command(server: ScriptedServer, shell: Shell) -> None:
    server.on("POST", "/images", Answer(201, {"id": "image_1", "slug": "mine"}))

    shell("image", "add", "mine", "docker.io/me/train:3", "--min-cuda", "12.4", "-p", "8888", "--", "python", "t.py")

    assert server.asked[0].body == {
        "slug": "mine",
        "reference": "docker.io/me/train:3",
        "min_cuda": "12.4",
        "ports": [8888],
        "command": ["python", "t.py"],
    }


def test_a_budget_is_made_once_and_changed_in_place_after(server: ScriptedServer, shell: Shell) -> None:
    known = {"id": "budget_1", "name": "all", "label": "a=b"}
    server.on("GET", "/budgets", {"items": []}, {"items": [known, {"id": "budget_2", "name": "all", "label": None}]})
    server.on("POST", "/budgets", Answer(201, {**known, "amount": floor("500")}))
    server.on("GET", "/budgets/budget_1", with_tag(known))
    server.on("PATCH", "/budgets/budget_1", {**known, "amount": floor("500")})
    rest = ("--warn-at", "80%", "--warn-at", "50.5%", "--then", "stop", "--label", "a=b")

    codes = [shell("budget", "set", "all", "500 CNY", *rest).exit_code for _ in range(2)]

    rules = {"amount": {"amount": "500", "currency": "CNY"}, "thresholds_bp": [5050, 8000], "action": "stop"}
    (made,), (changed,) = server.requests("POST", "/budgets"), server.requests("PATCH", "/budgets/budget_1")
    assert codes == [0, 0]
    assert made.body == {"name": "all", "label": "a=b", **rules}
    assert changed.body == rules
    assert changed.headers["if-match"] == '"7"'


def test_a_wallet_that_owes_says_what_for(server: ScriptedServer, shell: Shell) -> None:
    owed = [{"amount": amount, "currency": "USD"} for amount in ("0.00", "2.50")]
    server.on("GET", "/wallet", {"balances": [{"currency": "USD", "owed": each} for each in owed]})

    told = shell("wallet").stderr

    assert told == "2.50 USD is owed for a payment that a bank took back; it is taken from what comes in next.\n"


def test_a_payout_is_asked_for_in_the_wallets_currency(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/wallet", {"balances": [{"currency": "XTS"}]})
    server.on("POST", "/payouts", Answer(201, {"id": "payout_1", "state": "created"}))

    assert shell("payout", "ask", "12.50").exit_code == 0

    (asked,) = server.requests("POST", "/payouts")
    assert asked.body == {"amount": {"amount": "12.50", "currency": "XTS"}}


def test_a_dry_run_of_a_removal_does_not_say_that_it_was_done(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/secrets", {"items": [{"id": "secret_1", "name": "HF"}]})
    server.on("DELETE", "/secrets/secret_1", Answer(204))

    result = shell("secret", "rm", "HF", "--dry-run")

    assert server.requests("DELETE", "/secrets/secret_1")[0].query == {"dry_run": "1"}
    assert result.stderr.startswith("Dry run, nothing was changed.")


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("earnings",), "/earnings"),
        (("payout",), "/payouts"),
        (("statement", "2026-11"), "/statements"),
        (("audit",), "/audit-events"),
        (("receipt", "keys"), "/market/receipt-keys"),
        (("wallet", "top-ups"), "/wallet/top-ups"),
        (("host", "enrolments"), "/enrolments"),
        (("host", "self-tests", HOST), f"/hosts/{HOST}/self-tests"),
        (("webhook", "deliveries", "hook_1"), "/webhooks/hook_1/deliveries"),
        (("image", "list"), "/images"),
        (("lease", "members", ID), f"/leases/{ID}/members"),
    ],
)
def test_a_list_reads_one_page_and_is_stable_as_json(
    server: ScriptedServer, shell: Shell, arguments: tuple[str, ...], path: str
) -> None:
    server.on("GET", path, {"items": [{"id": "x", "lines": [], "checks": []}]})

    table, data = shell(*arguments), shell(*arguments, "--json")

    assert (table.exit_code, table.stderr) == (0, "")
    assert json.loads(data.stdout)["items"][0]["id"] == "x"
    assert {asked.path for asked in server.asked} == {"/api/v1" + path}


def complete(server_url: str, words: str) -> str:
    """Return what bash is offered behind the words."""
    environment = {**os.environ, "GPUYARD_API_URL": server_url, "GPUYARD_API_KEY": KEY}
    environment |= {"_GPUYARD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    said = subprocess.run(
        [sys.executable, "-m", "gpuyard"], capture_output=True, text=True, env=environment, check=True
    )
    assert said.stderr == ""
    return said.stdout


def test_tab_offers_living_leases_with_what_they_are(server: ScriptedServer) -> None:
    server.on("GET", "/leases", {"items": [lease("active", name="trainer")]})

    assert complete(server.url, "gpuyard logs ").splitlines() == [f"plain,{ID}", "plain,trainer"]


def test_tab_with_no_server_offers_nothing_and_says_nothing() -> None:
    assert complete("http://127.0.0.1:9", "gpuyard logs ").split() == []


def test_bash_takes_the_completion_script(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(shell("completion", "bash").stdout)

    said = subprocess.run(
        ["bash", "-c", f"source {script} && complete -p gpuyard"], capture_output=True, text=True, check=False
    )

    assert "_gpuyard_completion" in said.stdout
    assert KEY not in script.read_text()


def test_a_volume_is_made_mounted_and_destroyed_by_its_name(server: ScriptedServer, shell: Shell) -> None:
    row = {"id": "volume_1", "name": "data", "size_gib": 100, "state": "ready", "simulated": False}
    server.on("POST", "/volumes", Answer(201, row))
    server.on("GET", "/volumes", {"items": [row]})
    server.on("DELETE", "/volumes/volume_1", row | {"state": "deleting"})
    server.on("POST", "/leases", Answer(201, lease()))

    assert shell("volume", "create", "data", "--size", "100").exit_code == 0
    assert "100 GiB" in shell("volume", "ls").stdout
    mounts = ("--volume", "data:/data", "--volume", "more:/mnt/more:20")
    assert shell("lease", "create", "A100_80G", "--image", "pytorch_latest", *mounts).exit_code == 0
    assert shell("volume", "rm", "data", "-y").exit_code == 0

    assert server.requests("POST", "/volumes")[0].body == {"name": "data", "size_gib": 100}
    asked = server.requests("POST", "/leases")[0].body
    assert isinstance(asked, dict)
    assert asked["volumes"] == [
        {"name": "data", "path": "/data"}, {"name": "more", "path": "/mnt/more", "size_gib": 20}
    ]  # fmt: skip
    assert len(server.requests("DELETE", "/volumes/volume_1")) == 1
    refused = shell("lease", "create", "A100_80G", "--image", "x", "--volume", "data")
    assert refused.exit_code == 2
    assert "data:/data:100" in refused.stderr
