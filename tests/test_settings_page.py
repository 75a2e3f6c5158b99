"""docs/settings.md names every setting that is read from the environment, with its default."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READ_IN = ("platform/config/settings.py", "platform/config/sign_in.py")
_ROW = re.compile(r"^\| `([A-Z][A-Z_]+)` \| ([^|]+) \|", re.MULTILINE)


def read() -> dict[str, set[str | None]]:
    """Return the names that are read, each with its defaults as the page would write them; None: not a plain value."""
    found: dict[str, set[str | None]] = {}
    for path in READ_IN:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "env" and node.args):
                continue
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                given = [*node.args[1:], *(word.value for word in node.keywords)]
                found.setdefault(name.value, set()).add(shown(given[0]) if given else "*must*")
    return found


def shown(default: ast.expr) -> str | None:
    try:
        value = eval(compile(ast.Expression(default), "", "eval"), {"__builtins__": {}})  # sums of numbers
    except NameError:
        return None
    if isinstance(value, bool | int):
        return str(int(value))
    return f"`{value}`" if value else "empty"


def test_the_page_of_settings_has_each_with_its_default_and_no_other() -> None:
    page = {name: default.strip() for name, default in _ROW.findall((ROOT / "docs" / "settings.md").read_text())}
    settings = read()

    assert len(settings) > 50
    assert sorted(page) == sorted(settings)
    plain = {name: next(iter(found)) for name, found in settings.items() if len(found) == 1}
    wrong = {
        name: (page[name], default)
        for name, default in plain.items()
        if default is not None and not page[name].startswith(default)
    }
    assert wrong == {}
