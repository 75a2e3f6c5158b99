"""Draw the figures of bench/out/placement.json, one picture per test, as small SVG files in docs/pictures.

python bench/placement_pictures.py [--json bench/out/placement.json] [--out docs/pictures]
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WIDTH, LEFT, BAR, GAP = 720, 190, 11, 12
COLOURS = {"ours": "#1f6f54", "fgd": "#c07a2c", "bestfit": "#7d8794", "published FGD": "#dcbf96"}
Rows = Mapping[str, Mapping[str, float]]  # row -> whose -> figure


def bars(title: str, unit: str, rows: Rows, low: float = 0.0) -> str:
    """Return a picture of horizontal bars, from `low` on; the figure stands beside its bar."""
    most = max((value for row in rows.values() for value in row.values()), default=1.0)
    scale, y, parts = (WIDTH - LEFT - 80) / max(most - low, 1e-9), 48, []
    for name, row in rows.items():
        parts.append(f'<text x="{LEFT - 8}" y="{y + BAR}" text-anchor="end">{name}</text>')
        for whose, value in row.items():
            length = max(1.0, (value - low) * scale)
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{COLOURS[whose]}"/>')
            parts.append(f'<text x="{LEFT + length + 4:.1f}" y="{y + BAR - 1}">{value:,.2f}</text>')
            y += BAR + 2
        y += GAP
    seen = dict.fromkeys(whose for row in rows.values() for whose in row)
    legend = "".join(
        f'<tspan fill="{COLOURS[whose]}" dx="14">\u25a0</tspan><tspan fill="#222"> {whose}</tspan>' for whose in seen
    )
    start = f" (bars begin at {low:g})" if low else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/><text x="8" y="18" font-size="14">{title}</text>'
        f'<text x="8" y="36">{unit}{start}{legend}</text>{"".join(parts)}</svg>\n'
    )


def pictures(result: dict[str, Any]) -> dict[str, str]:
    """Return the pictures by name of file; of what was not measured there is none."""
    drawn: dict[str, str] = {}
    ours, published = result["inflation"]["ours"], result["inflation_published_fgd"]
    if ours:
        whose = {p: result["inflation"][p] for p in ("ours", "fgd", "bestfit")} | {"published FGD": published}
        rows = {name: {p: figures[name] for p, figures in whose.items() if name in figures} for name in ours}
        drawn["inflation"] = bars("Inflation: allocated at 130 % asked for", "% of GPUs", rows, 80)
    for name, title in (
        ("churn", "Churn, short window"),
        ("churn_long", "Churn, long window"),
        ("churn_moves", "Churn, short window, at most eight moves"),
    ):
        rows = {}
        for load, row in result.get(name, {}).items():
            for figure, what in (("lost", "GPU lost"), ("lost8", "8-GPU requests lost")):
                by = {"ours": row[figure]} | {p: row[p][figure] for p in ("fgd", "bestfit") if p in row}
                rows[f"load {load}: {what}"] = by
        if rows:
            drawn[name] = bars(title, "% of what is asked for", rows)
    orders = {f"{trace}": by for trace, by in result["order_spread"].items()}
    if orders:
        drawn["orders"] = bars("Spread over twelve orders of the nodes", "points of allocated %", orders)
    speed = {name: {"ours": value} for name, value in result["decisions_per_s"].items()}
    if speed:
        drawn["speed"] = bars("Decisions per CPU second", "one core, one request per call", speed)
    return drawn


def main() -> int:
    """Draw what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, default=ROOT / "bench/out/placement.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures")
    options = parser.parse_args()
    for name, picture in pictures(json.loads(options.json.read_text())).items():
        (options.out / f"placement-{name.replace('_', '-')}.svg").write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
