"""Tables that fit the terminal: the less important columns go first, then long texts are cut; ids never are."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gpuyard.cli import tongue

GAP = 2
_SHORTEST = 8  # cells to which a flexible column may shrink

STYLES = {
    "active": "green",
    "online": "green",
    "pending": "yellow",
    "scheduled": "cyan",
    "provisioning": "cyan",
    "parked": "blue",
    "interrupted": "red",
    "lost": "red",
    "ending": "dim",
    "ended": "dim",
}


@dataclass(frozen=True)
class Column:
    """title: its head. read: the cell of a row. rank: 0 stays always; of the others the highest goes first.

    wide: only with -o wide. flexible: may be cut. right: numbers.
    """

    title: str
    read: Callable[[dict[str, Any]], str]
    rank: int = 0
    wide: bool = False
    flexible: bool = False
    right: bool = False


def printable(text: str) -> str:
    """Return the text on one line and without anything that could steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def table(
    rows: Sequence[dict[str, Any]], columns: Sequence[Column], *, width: int | None, wide: bool
) -> Iterator[Text]:
    """Yield the lines of the table. width: cells of a line, None for as many as it takes."""
    shown = [column for column in columns if wide or not column.wide]
    cells = {column: [printable(column.read(row)) for row in rows] for column in shown}
    # A column that says nothing in any row is left out, unless it is always there.
    shown = [column for column in shown if column.rank == 0 or any(cells[column])]
    heads = {column: tongue.said(column.title) for column in shown}
    widths = {column: max(map(cell_len, [heads[column], *cells[column]])) for column in shown}
    if width is not None:
        shown = _fit(shown, widths, width)
    yield _line([(heads[column], column) for column in shown], widths, "bold")
    for number in range(len(rows)):
        yield _line([(cells[column][number], column) for column in shown], widths, "")


def _fit(shown: Sequence[Column], widths: dict[Column, int], width: int) -> list[Column]:
    """Return the columns that stay, and shrink `widths` where it helps."""
    kept = list(shown)
    while True:
        over = sum(widths[column] for column in kept) + GAP * (len(kept) - 1) - width
        if over <= 0:
            return kept
        flexible = max((column for column in kept if column.flexible), key=lambda c: widths[c], default=None)
        dispensable = max((column for column in kept if column.rank), key=lambda c: c.rank, default=None)
        if flexible is not None and widths[flexible] - over >= max(_SHORTEST, cell_len(flexible.title)):
            widths[flexible] -= over
        elif dispensable is not None:
            kept.remove(dispensable)
        elif flexible is not None and widths[flexible] > _SHORTEST:
            widths[flexible] = _SHORTEST
        else:
            return kept


def _line(cells: Sequence[tuple[str, Column]], widths: dict[Column, int], style: str) -> Text:
    line = Text(style=style, no_wrap=True)
    for number, (text, column) in enumerate(cells):
        width = widths[column]
        if cell_len(text) > width:
            text = set_cell_size(text, width - 1) + "…"
        padding = " " * (width - cell_len(text))
        last = number == len(cells) - 1
        line.append((padding + text) if column.right else text + ("" if last else padding), STYLES.get(text, ""))
        line.append("" if last else " " * GAP)
    return line
