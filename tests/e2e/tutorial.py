"""Tutorials as tests: every ```console block of a page is typed into a shell, and what comes is held against the page.

Compared is the shape: ids, times, durations, amounts and spaces may differ. A line of `...` stands for any lines, and
lines of the page must come in their order. An id on the page means, from then on, the id that came in its place.

`python -m tests.e2e.tutorial PAGE` writes into a page what really comes, for a person to read and cut.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_KINDS = "lease|host|quote|enrol|req|secret|image|org|key|budget|member|group|audit|hook|volume"
_ID = re.compile(rf"\b(?:{_KINDS})_[0-9a-z]{{8,}}\b")
_SHAPES = (
    (re.compile(r"\bgy(?:enrol|_live)_\S+"), "TOKEN"),
    (re.compile(r"\bSIM-[0-9a-f-]{36}"), "SIM"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"\b(?:\d+[dhms])+\b"), "LONG"),
    (re.compile(r"127\.0\.0\.1:\d+"), "HERE"),
    (re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?![\w])"), "N"),
    (re.compile(r"\s+"), " "),
)
_ENDS = re.compile(r"^::ended:: (\d+)$")


@dataclass
class Command:
    """typed: the lines behind `$ `. printed: the lines that the page shows for it."""

    typed: str
    printed: list[str] = field(default_factory=list)


def commands(page: str) -> list[Command]:
    """Return what a page has somebody type, in order."""
    found: list[Command] = []
    for block in _BLOCK.findall(page):
        lines: Iterator[str] = iter(block.splitlines())
        for line in lines:
            if line.startswith("$ "):
                typed = line[2:]
                while typed.endswith("\\"):
                    typed += "\n" + next(lines)
                found.append(Command(typed))
            else:
                found[-1].printed.append(line)
    return found


def shape(line: str) -> str:
    """Return a line without what differs from one session to the next."""
    line = _ID.sub(lambda found: found[0].partition("_")[0] + "_ID", line)
    for pattern, word in _SHAPES:
        line = pattern.sub(word, line)
    return line.strip()


class Shell:
    """One bash for a whole page, with `gpuyard` on its path and a home of its own."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home, self.ids = home, dict[str, str]()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        inherited = {"PATH": path, "HOME": str(home), "LC_ALL": "C.UTF-8", "COLUMNS": "130"}
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, cwd=ROOT, env=inherited | environment,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bash.kill()
        self._bash.communicate()

    def type(self, typed: str) -> tuple[list[str], int]:
        """Run a command of the page, ids put right; return what it printed and its exit code."""
        real = _ID.sub(lambda found: self.ids.get(found[0], found[0]), typed)
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        # The command's own code is there for the next one that asks for it (`echo $?`).
        self._bash.stdin.write(f'{real}\n_code=$?; echo "::ended:: $_code"; (exit $_code)\n')
        self._bash.stdin.flush()
        printed: list[str] = []
        for line in self._bash.stdout:
            ended = _ENDS.match(line)
            if ended:
                return printed, int(ended[1])
            printed.append(line.rstrip("\n").replace(str(self.home), "~"))
        raise AssertionError(f"the shell is gone after: {real}\n" + "\n".join(printed))

    def learn(self, told: str, came: str) -> None:
        """Take the ids of a line that came for those of the page's line in the same places."""
        self.ids.update(zip(_ID.findall(told), _ID.findall(came), strict=False))


def difference(shell: Shell, command: Command, came: list[str]) -> str | None:
    """Return what of the page did not come, None if all did; and learn the ids."""
    at, may_skip = 0, False
    for told in command.printed:
        if told.strip() in ("...", "…"):
            may_skip = True
            continue
        rest = came[at:] if may_skip else came[at : at + 1]
        place = next((number for number, line in enumerate(rest) if shape(line) == shape(told)), None)
        if place is None:
            return f"$ {command.typed}\npage: {told}\ncame: " + "\n      ".join(came[at:] or ["nothing more"])
        shell.learn(told, rest[place])
        at, may_skip = at + place + 1, False
    left = came[at:]
    return None if may_skip or not left else f"$ {command.typed}\nnot on the page: " + "\n  ".join(left)


def record(page: Path, shell: Shell) -> str:
    """Return the page with what really came behind each command; commands stay as they are."""
    told = iter(commands(page.read_text()))

    def play(block: re.Match[str]) -> str:
        lines: list[str] = []
        for line in block[1].splitlines():
            if line.startswith("$ "):
                command = next(told)
                came, _ = shell.type(command.typed)
                difference(shell, command, came)
                lines += [f"$ {command.typed}", *came]
        return "```console\n" + "\n".join(lines) + "\n```"

    return _BLOCK.sub(play, page.read_text())


def main() -> None:
    """Record pages against the stack whose URL and KEY (and OWNER_KEY) stand in the environment."""
    names = ("URL", "KEY", "OWNER_KEY")
    with tempfile.TemporaryDirectory() as home:
        for name in sys.argv[1:]:
            with Shell(Path(home), **{each: os.environ[each] for each in names if each in os.environ}) as shell:
                page = Path(name)
                page.write_text(record(page, shell))


if __name__ == "__main__":
    main()
