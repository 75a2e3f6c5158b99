"""The command in Chinese: its heads, titles, hints and endings; what programs read stays as it is."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from gpuyard.cli import tongue
from tests.gpuyard.conftest import Shell
from tests.gpuyard.scripted_server import ScriptedServer, lease, problem

ID = lease()["id"]
CHINESE = re.compile(r"[\u4e00-\u9fff]")
ZH = {"LC_ALL": "zh_CN.UTF-8"}
PO = Path(tongue.__file__).parent / "locale" / "zh_Hans.po"


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"LANG": "en_US.UTF-8"}, None),
        ({"LANG": "zh_CN.UTF-8"}, "zh-Hans"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, None),
        ({"LANG": "C", "LC_MESSAGES": "zh_SG"}, "zh-Hans"),
    ],
)
def test_the_locale_says_the_language(environ: dict[str, str], found: str | None) -> None:
    assert tongue.language(environ) == found


def test_the_server_is_asked_for_chinese_and_tables_have_chinese_heads_that_align(
    server: ScriptedServer, shell: Shell
) -> None:
    server.on("GET", "/leases", {"items": [lease("ended", end_reason="tenant"), lease("active", name="训练")]})

    lines = shell("ps", "-a", **ZH).stdout.splitlines()

    assert server.asked[0].headers["accept-language"] == "zh-Hans"
    assert "状态" in lines[0]
    assert "您已结束它" in lines[1]
    assert "active" in lines[2]  # a state is a code
    column = cell_len(lines[0][: lines[0].index("状态")])
    assert cell_len(lines[2][: lines[2].index("active")]) == column


def test_details_of_a_lease_have_chinese_titles_in_one_column(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", f"/leases/{ID}", lease("active", name="n", labels={"team": "vision"}))

    lines = shell("lease", "get", ID, **ZH).stdout.splitlines()

    assert any(line.startswith("状态") for line in lines)
    values = {cell_len(line) - cell_len(line.split("  ", 1)[1].lstrip()) for line in lines}
    assert len(values) == 1


def test_a_refusal_tells_its_next_step_in_chinese_and_its_code_as_it_is(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", f"/leases/{ID}", problem(404, "not-found", detail="没有。", request_id="req_7"))

    result = shell("lease", "get", ID, **ZH)

    assert result.exit_code == 3
    assert result.stderr.splitlines() == [
        "错误：没有。",
        "`gpuyard ps` 等列表命令可查看现有对象。",
        "请求 req_7（404 not-found）",
    ]


def test_json_is_the_same_in_every_language(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", f"/leases/{ID}", lease("ended", end_reason="tenant"))

    english, chinese = shell("lease", "get", ID, "--json"), shell("lease", "get", ID, "--json", **ZH)

    assert json.loads(english.stdout) == json.loads(chinese.stdout)


def test_in_english_nothing_is_translated(server: ScriptedServer, shell: Shell) -> None:
    server.on("GET", "/leases", {"items": [lease("ended", end_reason="expired")]})

    result = shell("ps", "-a", LC_ALL="C.UTF-8")

    assert not CHINESE.search(result.stdout + result.stderr)


def every_entry() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = re.findall(r'^msgid "(.+)"\nmsgstr "(.+)"$', PO.read_text("utf-8"), re.MULTILINE)
    return found


def test_no_translation_loses_what_stands_in_the_sentence() -> None:
    for source, target in every_entry():
        assert set(re.findall(r"\{[0-9]\}", target)) == set(re.findall(r"\{[0-9]\}", source)), source


def test_every_head_of_a_table_is_in_the_catalogue() -> None:
    code = "".join(path.read_text() for path in Path(tongue.__file__).parent.glob("*views.py"))
    known: dict[str, Any] = dict(every_entry())
    names = {"ID", "SLUG", "CUDA", "URL", "UUID", "GPU", "SEQ"}  # the same in every language

    assert set(re.findall(r'Column\(\s*"([A-Z ]+)"', code)) - names - set(known) == set()


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="there is no msgfmt here")
def test_the_catalogue_is_one_for_the_usual_tools() -> None:
    subprocess.run(["msgfmt", "--check-format", "-o", "/dev/null", PO], check=True)
