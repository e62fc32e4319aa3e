"""Remakes the tables of convergent-dp at the paper's number of rounds and clients.

Finished cells are lines of one CSV file a table and are not trained again; a training that was
interrupted goes on in its round. So the command may be stopped at any time, and given again:

    SORDINO_DATA=... python -m experiments.convergent [--tables table-9,table-5,figure-2,table-4]
        [--cells m=50,K=50] [--seeds 1] [--schedule decay | stage-wise | ...] [--model resnet18]
    python -m experiments.convergent --markdown
    python -m experiments.convergent --draw docs
    python -m experiments.convergent --cost

`--quick` takes the first cells of every table with ten clients and ten rounds, into a folder of its
own. A training has one worker: two commands beside each other, with other tables or `--cells`, take
two cores.

Beside every accuracy and every distance stands the certified epsilon at delta = 1e-5, one record
replaced, against adversaries that see the models of all rounds, and against the server.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.convergent.cells import (
    SCHEDULES,
    TABLES,
    Cell,
    Choice,
    list_cells,
    list_quick_cells,
)
from experiments.convergent.cost import print_costs
from experiments.convergent.measuring import measure_cell
from experiments.convergent.pictures import draw_tables
from experiments.convergent.results import append_results, find_finished
from experiments.convergent.showing import print_tables

# What two cores finish in hours.
FEASIBLE = ("table-9", "table-5", "figure-2", "table-4")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is not in the files yet, or shows what is.

    Args:
        arguments: Of the command line; by default those of the process.
    """
    options = read_options(arguments)
    tables = options.tables.split(",")
    if options.quick:
        options.out = options.out.with_name(f"{options.out.name}-quick")
        options.out.mkdir(exist_ok=True)
    if options.markdown:
        print_tables(options.out, tables)
        return
    if options.draw is not None:
        draw_tables(options.out, tables, options.draw)
        return
    cells = select_cells(options, list(TABLES) if options.cost else tables)
    if options.cost:
        print_costs(options.out, cells)
        return
    measure_cells(cells, options.out, options.runs)
    if options.quick:
        print_tables(options.out, tables)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns what was asked for on the command line.

    Args:
        arguments: Of the command line; None for those of the process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m experiments.convergent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--tables", default=",".join(FEASIBLE), help=f"in this order: {', '.join(TABLES)}"
    )
    parser.add_argument(
        "--cells", default="", help="only cells whose name has all of these, such as m=50,K=50"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--schedule", choices=tuple(SCHEDULES), help="by default the table's own")
    parser.add_argument("--model", help="in the place of lenet5")
    parser.add_argument("--tiny-imagenet", default="tiny-imagenet-200", help="its folder")
    parser.add_argument("--out", type=Path, default=Path("experiments/convergent"))
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path(tempfile.gettempdir()) / "sordino-convergent",
        help="where trainings that have not ended are kept",
    )
    parser.add_argument("--quick", action="store_true", help="a look")
    parser.add_argument("--markdown", action="store_true", help="print what was measured")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw what was measured")
    parser.add_argument("--cost", action="store_true", help="print what is left, and how long")
    options = parser.parse_args(arguments)
    unknown = [table for table in options.tables.split(",") if table not in TABLES]
    if unknown:
        parser.error(f"--tables {unknown[0]}: expected some of {', '.join(TABLES)}")
    return options


def select_cells(options: argparse.Namespace, tables: list[str]) -> list[Cell]:
    """Returns the cells that were asked for, in the order in which they are measured.

    Args:
        options: Of the command line.
        tables: Names of `TABLES`.
    """
    choice = Choice(
        schedule=options.schedule, model=options.model, tiny_imagenet=options.tiny_imagenet
    )
    words = {word for word in options.cells.split(",") if word}
    cells = list_cells(tables, choice, options.seeds)
    if options.quick:
        cells = list_quick_cells(tables, choice)
    return [cell for cell in cells if words <= set(cell.name.split())]


def measure_cells(cells: Sequence[Cell], out: Path, runs: Path) -> None:
    """Measures the cells that are in no file yet, and writes each when it is finished.

    Args:
        cells: What to measure.
        out: The folder of the files.
        runs: The folder of trainings that have not ended.
    """
    for cell in cells:
        # Read again each time: another command may have measured it meanwhile.
        if cell.key in find_finished(out, cell.table):
            continue
        print(time.strftime("%H:%M"), cell.table, *cell.key, flush=True)
        append_results(out, cell, measure_cell(cell, runs))


if __name__ == "__main__":
    main()
