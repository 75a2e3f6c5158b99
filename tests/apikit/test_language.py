"""Refusals in the reader's language: which one, what is translated, and what never is."""

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apikit import clock, language, translations
from tests.apikit.conftest import Caller
from tests.factories import after, make_host, make_tenant, place, price

ROOT = Path(__file__).parents[2]
PO = ROOT / "platform" / "apikit" / "locale" / "zh_Hans.po"
WANTED = {"request": "A100_80G x8", "image": "ghcr.io/a/b:1"}
CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        ("", "en"),
        ("zh", "zh-Hans"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh-Hans"),
        ("ZH-hans-cn", "zh-Hans"),
        ("zh-Hant", "zh-Hans"),
        ("en;q=0.9, zh;q=0.8", "en"),
        ("fr, zh;q=0.1", "zh-Hans"),
        ("zh;q=0", "en"),
        ("de", "en"),
        ("*", "en"),
        ("zh;q=2", "en"),
        ("zh;q=high", "en"),
        ("\x00,;;;q=", "en"),
        ("en, " * 200 + "zh", "en"),
    ],
)
def test_the_language_with_the_most_weight_among_ours_is_chosen(header: str, chosen: str) -> None:
    assert language.choose(header) == chosen


def test_a_template_carries_over_what_stands_in_it(tmp_path: Path) -> None:
    path = tmp_path / "x.po"
    entries = (
        '# a comment\nmsgid ""\nmsgstr "Language: x\\n"\n',
        'msgid "At most {0}."\nmsgstr "≤ {0}"\n',
        'msgid "At most {0} characters in {1}."\nmsgstr ""\n"{1}: "\n"≤ {0}"\n',
        'msgid "{0} is \\"{0}\\"."\nmsgstr "{0}!"\n',
        'msgid "Not yet."\nmsgstr ""\n',
    )
    path.write_text("\n".join(entries))
    found = translations.read(path)

    assert found.translate("At most 5.") == "≤ 5"
    assert found.translate("At most 64 characters in a.b (c*).") == "a.b (c*): ≤ 64"  # the longest template counts
    assert found.translate('x is "x".') == "x!"
    assert found.translate('x is "y".') == 'x is "y".'
    assert found.translate("Not yet.") == "Not yet."
    assert found.translate("Nobody knows this.") == "Nobody knows this."
    assert found.translate("At most {0}.\\1") == "At most {0}.\\1"


def test_a_file_that_is_no_catalogue_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.po").write_text('msgid "a"\nmsgstr "b"\nmsgctxt "c"\n')

    with pytest.raises(ValueError, match="Line 3"):
        translations.read(tmp_path / "x.po")


# -- the catalogue against the code ------------------------------------------------------------------------------------

APPS = ("agents", "billing", "leasing", "scheduler", "platform/apikit", "platform/tenants", "platform/outbox")
TOLD_TO_OPERATORS_ONLY = re.compile(r"agents/(node/|bootstrap|ssh|bare_metal|management)|/migrations/|billing/stripe")
NAMES_OF_FAULTS = {"fault", "_invalid", "_out_of_range", "Fault", "GrammarError", "TermError", "ImageReferenceError"}
NEARLY_ALL = 0.9  # a sentence that is new today is English until somebody translates it


def trees() -> dict[Path, ast.Module]:
    files = (path for app in APPS for path in sorted((ROOT / app).rglob("*.py")))
    return {
        path: ast.parse(path.read_text())
        for path in files
        if not TOLD_TO_OPERATORS_ONLY.search(str(path.relative_to(ROOT)))
    }


def named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def refusals(modules: dict[Path, ast.Module]) -> set[str]:
    """Return the names of all subclasses of DomainError."""
    known = {"DomainError"}
    classes = [node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while more := {each.name for each in classes if known & {named(base) for base in each.bases}} - known:
        known |= more
    return known


def template(node: ast.expr) -> str | None:
    """Return the sentence of a literal, with {0}, {1} for what stands in; None if it is made elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        numbers = iter(range(10))
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{next(numbers)}}}" for part in node.values
        )
    return None


def sentences() -> Iterator[str]:
    """Yield every sentence that stands as a literal where a refusal is made."""
    modules = trees()
    known = refusals(modules)
    for tree in modules.values():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            first = node.args[:1] if named(node.func) in known else []
            later = node.args[1:3] if named(node.func) in NAMES_OF_FAULTS else []
            found = [text for text in map(template, (*first, *later)) if text and text.endswith(".")]
            yield from found[:1]


def titles() -> Iterator[str]:
    modules = trees()
    known = refusals(modules)
    for tree in modules.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in known:
                for line in node.body:
                    if isinstance(line, ast.Assign) and named(line.targets[0]) == "title":
                        assert isinstance(line.value, ast.Constant)
                        yield str(line.value.value)


def test_nearly_all_that_the_doors_refuse_with_is_in_the_catalogue() -> None:
    found = translations.read(PO)
    asked = {text: re.sub(r"\{[0-9]\}", "x", text) for text in {*sentences(), *titles()}}
    missing = sorted(text for text, made in asked.items() if not CHINESE.search(found.translate(made)))

    assert len(asked) > 200
    assert len(missing) <= (1 - NEARLY_ALL) * len(asked), "\n".join(missing)


def test_no_translation_loses_what_stands_in_the_sentence() -> None:
    text = PO.read_text("utf-8")
    for source, target in re.findall(r'^msgid "(.+)"\nmsgstr "(.+)"$', text, re.MULTILINE):
        assert set(re.findall(r"\{[0-9]\}", target)) <= set(re.findall(r"\{[0-9]\}", source)), source
        assert CHINESE.search(target), source


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="there is no msgfmt here")
def test_the_catalogue_is_one_for_the_usual_tools() -> None:
    subprocess.run(["msgfmt", "--check-format", "-o", "/dev/null", PO], check=True)


# -- through the doors -------------------------------------------------------------------------------------------------


@pytest.fixture
def caller(db: None) -> Iterator[Caller]:
    with clock.frozen(after(1)):
        make_host(gpus=2)
        price()
        yield Caller(make_tenant())


def ask_too_much(caller: Caller, **headers: str) -> Any:
    return caller.post("/api/v1/leases", {**WANTED, "if_no_capacity": "refuse"}, **headers)


def test_a_refusal_is_chinese_in_title_and_detail_and_the_same_in_everything_else(caller: Caller) -> None:
    english, chinese = ask_too_much(caller), ask_too_much(caller, Accept_Language="zh-CN")

    assert (english["Content-Language"], chinese["Content-Language"]) == ("en", "zh-Hans")
    assert "Accept-Language" in chinese["Vary"]
    said, gesagt = chinese.json(), english.json()
    assert said["title"] == "目前没有可用容量"
    assert "台 GPU 不足" in said["detail"]
    assert "1 with too few GPUs" in gesagt["detail"]
    spoken = {"title", "detail", "request_id"}
    assert {k: v for k, v in said.items() if k not in spoken} == {k: v for k, v in gesagt.items() if k not in spoken}


def test_each_fault_is_chinese_and_its_code_and_pointer_are_not(caller: Caller) -> None:
    body = {"request": "A100_80G x4 @mars", "image": "x", "colour": "red"}

    faults = caller.post("/api/v1/leases", body, Accept_Language="zh").json()["errors"]
    grammar = caller.post("/api/v1/leases", {**body, "colour": None}, Accept_Language="zh").json()["errors"]

    assert all(CHINESE.search(fault["detail"]) for fault in [*faults, *grammar]), faults
    assert {"pointer": "/colour", "code": "unknown_field"}.items() <= faults[0].items()


@pytest.mark.parametrize(
    ("method", "path", "title"),
    [
        ("GET", "/api/v1/leases/lease_01k00000000000000000000001", "此处没有该对象"),
        ("GET", "/api/v1/nowhere", "此处没有该对象"),
        ("DELETE", "/api/v1/regions", "此处不支持该方法"),
        ("GET", "/api/v1/leases?limit=1000", "请求已读取但被拒绝"),
    ],
)
def test_refusals_of_the_framework_are_chinese_too(caller: Caller, method: str, path: str, title: str) -> None:
    assert caller.send(method, path, Accept_Language="zh-Hans").json()["title"] == title


def test_why_a_lease_waits_is_told_to_each_reader_in_his_language(caller: Caller) -> None:
    made = caller.post("/api/v1/leases", WANTED).json()
    place(at=after(2))
    path = f"/api/v1/leases/{made['id']}"

    english, chinese = caller.get(path).json(), caller.get(path, Accept_Language="zh").json()
    plan = caller.post("/api/v1/leases?dry_run=1", WANTED, Accept_Language="zh")

    assert "too few GPUs" in english["why_waiting"]["text"]
    assert "台 GPU 不足" in chinese["why_waiting"]["text"]
    assert "台 GPU 不足" in plan.json()["plan"]["why_waiting"]["text"]
    assert "text_zh" not in english["why_waiting"]
    assert english["why_waiting"]["counts"] == chinese["why_waiting"]["counts"]


def test_one_readers_language_is_not_the_next_ones(caller: Caller) -> None:
    caller.get("/api/v1/nowhere", Accept_Language="zh")

    assert caller.get("/api/v1/nowhere").json()["title"] == "There is no such thing here"
