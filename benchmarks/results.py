"""What a benchmark found: one row of a table, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Row:
    """Holds one figure and the one it is compared with.

    `ratio` is `value / other`, each in `unit`, with the limit that it should keep.
    """

    work: str
    engine: str
    against: str
    ratio: float
    value: float
    other: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the ratio is as wanted."""
        return (self.at_least is None or self.ratio >= self.at_least) and (
            self.at_most is None or self.ratio <= self.at_most
        )

    @property
    def wanted(self) -> str:
        """The wanted ratio in words."""
        bounds = [
            f">= {self.at_least:g}" if self.at_least is not None else "",
            f"<= {self.at_most:g}" if self.at_most is not None else "",
        ]
        return " and ".join(filter(None, bounds))


def table(rows: Sequence[Row]) -> Table:
    """The rows for people."""
    shown = Table("work", "engine", "against", title="Sordino's benchmarks", title_justify="left")
    for heading in ("measured", "against it", "ratio", "wanted"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for row in rows:
        mark = "[green]met[/]" if row.met else "[red]missed[/]"
        numbers = (
            f"{number(row.value)} {row.unit}",
            f"{number(row.other)} {row.unit}",
            f"{row.ratio:.2f}",
        )
        shown.add_row(
            row.work,
            row.engine,
            row.against,
            *numbers,
            row.wanted,
            " ".join(filter(None, [mark, row.note])),
        )
    return shown


def number(value: float) -> str:
    """A number with three digits, or all of them before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write(rows: Sequence[Row], file: Path) -> None:
    """The rows for programs."""
    listed = [asdict(row) | {"met": row.met} for row in rows]
    file.write_text(json.dumps({"rows": listed}, indent=2) + "\n")
