"""Remakes Tables 1 to 3 and Figures 1, 2, 3, 5 and 6 of PriFedSync at the paper's federations.

100 clients keep models and are helped by 0.9 own + 0.1 global model; noisy Adam with K steps on B
distinct records. A training counts rounds until clients' personal models have 90 % (CIFAR-10: 52 %) on
average, each on 200 test records with its client's labels. LeNet-5 takes the place of the paper's
networks unless --paper-networks is given. Finished cells are lines of experiments/prifedsync.csv
and are not trained again, so the command may be stopped at any time and given again:

    SORDINO_DATA=... python -m experiments.prifedsync [--only table-1,table-2,table-3] [--seeds 3]
        [--paper-networks] [--quick]
    python -m experiments.prifedsync --markdown
    python -m experiments.prifedsync --draw docs

`--quick` trains ten rounds of the first three cells with one seed into a file of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.cells import append_row, find_finished, read_rows
from experiments.prifedsync_cells import (
    EXPERIMENTS,
    KEY,
    TARGETS,
    Cell,
    Trace,
    find_reached,
    list_cells,
    make_protocol,
    read_key,
    trace_cell,
)
from experiments.prifedsync_results import draw_figures, print_tables
from sordino import certify
from sordino.papers import prifedsync
from sordino.privacy.guarantee import round_up

DELTA = 1e-5
# Rounds between two scores, and so the error of the number of rounds to a target.
SCORED = 4
COLUMNS = (
    *KEY,
    "reached",
    "epsilon",
    "mu",
    "seconds",
    "scored",
    "own",
    "worst",
    "shared",
)


def measure_cell(cell: Cell) -> dict[str, object]:
    """Trains a cell, and returns its line.

    Args:
        cell: The cell.
    """
    trace = trace_cell(cell, SCORED)
    reached = find_reached(trace.rounds, trace.own, TARGETS[cell.data])
    return {
        **{name: getattr(cell, name) for name in KEY},
        "reached": reached,
        **price_rounds(cell, trace.rounds[-1]),
        "seconds": trace.seconds,
        **spell_trace(trace),
    }


def price_rounds(cell: Cell, rounds: int) -> dict[str, object]:
    """Returns the price of a number of rounds: certified epsilon, and mu by the paper's formula.

    Args:
        cell: The cell.
        rounds: How many were trained.
    """
    if cell.sigma == 0:
        return {"epsilon": None, "mu": None}
    plan = make_protocol(replace(cell, rounds=rounds))
    records = plan.data.records if plan.data is not None else None
    mu = prifedsync.theorem_2_limit(
        batch=cell.batch,
        records=records or 1,
        steps=cell.steps,
        rounds=rounds,
        sigma=cell.sigma,
    )
    return {"epsilon": round_up(certify(plan).epsilon(DELTA), digits=6), "mu": mu}


def spell_trace(trace: Trace) -> dict[str, object]:
    """Returns the curves of a training as they are written in the file.

    Args:
        trace: How accurate models were.
    """
    return {
        "scored": ";".join(map(str, trace.rounds)),
        **{
            name: ";".join(f"{value:.4f}" for value in getattr(trace, name))
            for name in ("own", "worst", "shared")
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the cells that the file lacks, or shows the others.

    Args:
        arguments: Of the command line; by default those of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help=", ".join(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--paper-networks", action="store_true", help="not LeNet-5")
    parser.add_argument("--quick", action="store_true", help="a look")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw what was measured")
    parser.add_argument("--markdown", action="store_true", help="print what was measured")
    options = parser.parse_args(arguments)
    path = options.csv
    if options.quick:
        path = path.with_suffix(".quick.csv")
    if options.draw is not None:
        draw_figures(read_rows(path), options.draw)
        return
    if not options.markdown:
        names = options.only.split(",")
        for cell in list_cells(names, options.seeds, options.quick, not options.paper_networks):
            if read_key(cell) not in find_finished(path, KEY):
                print(time.strftime("%H:%M"), *read_key(cell), flush=True)
                append_row(path, COLUMNS, measure_cell(cell))
    print_tables(read_rows(path))


if __name__ == "__main__":
    main()
