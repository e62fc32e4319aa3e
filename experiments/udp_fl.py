"""Remakes figures and tables of udp-fl at the paper's federation: noise of every mechanism in steps.

Algorithm 1 with 10 clients, 150 rounds of two steps and a twentieth of the records in each, Adam at
0.01. Noise is calibrated to epsilon at delta = 1e-5 against the server, about one record added or
removed, in the model's dimension. Finished cells are lines of experiments/udp_fl.csv and are not
trained again, so the command may be stopped at any time and given again:

    SORDINO_DATA=... python -m experiments.udp_fl [--only figure-1,figure-4] [--seeds 3] [--quick]
    python -m experiments.udp_fl --draw docs
    python -m experiments.udp_fl --markdown

`--quick` trains 15 rounds of Figure 1, or of what `--only` says, with one seed and epsilon 2 and 8,
into a file of its own.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.cells import append_row, find_finished, read_rows
from experiments.udp_fl_cells import (
    EXPERIMENTS,
    FEDERATIONS,
    KEY,
    Cell,
    list_cells,
    make_protocol,
    read_key,
)
from experiments.udp_fl_results import SCORED, draw_figures, print_costs, print_table
from sordino import Protocol, Run, certify, train
from sordino.mechanisms import mechanism_of

DELTA = 1e-5
COLUMNS = (
    *KEY,
    "status",
    "accuracy",
    "loss",
    "epsilon_server",
    "epsilon_one_dimension",
    "noise_std",
    "seconds",
    "bytes_up",
    "curve",
)


def measure_cell(cell: Cell) -> dict[str, object]:
    """Trains a cell, and returns its line.

    Args:
        cell: The cell.
    """
    plan = make_protocol(cell)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = train(plan, folder=Path(folder) / "run", evaluate_every=SCORED, report=False)
    one_dimension = None
    server = None
    if cell.method != "none" and plan.model is not None:
        server = round_up(certify(plan).epsilon(DELTA))
        alone = replace(plan, model=replace(plan.model, parameters=1))
        one_dimension = round_up(certify(alone).epsilon(DELTA))
    scores = [float(value) for value in run.metrics["accuracy"]]
    if np.isnan(scores[-1]):
        scores = [float(value) for value in run.metrics["loss"]]
    parameters = FEDERATIONS[cell.data].parameters
    return {
        **{name: getattr(cell, name) for name in KEY},
        "status": run.status,
        "accuracy": float(run.metrics["accuracy"][-1]),
        "loss": float(run.metrics["loss"][-1]),
        "epsilon_server": server,
        "epsilon_one_dimension": one_dimension,
        "noise_std": find_deviation(plan),
        "seconds": time.process_time() - began,
        "bytes_up": 4 * parameters * count_uploads(run),
        "curve": ";".join(f"{value:.4f}" for value in scores if not np.isnan(value)),
    }


def round_up(epsilon: float) -> float:
    """Returns an epsilon rounded up to four decimals.

    Args:
        epsilon: That was certified.
    """
    return math.ceil(epsilon * 1e4) / 1e4


def find_deviation(plan: Protocol) -> float:
    """Returns the standard deviation of the noise on a sum, in clips, or on an upload.

    Args:
        plan: The federation.
    """
    noise = getattr(plan.release, "sum_noise", plan.noise)
    clip: float = plan.release.clip
    return mechanism_of(noise).deviation / clip


def count_uploads(run: Run) -> int:
    """Returns the number of uploads that a run received.

    Args:
        run: The run.
    """
    return int(np.sum(run.metrics["participants"]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the cells that the file lacks, or shows the others.

    Args:
        arguments: Of the command line; by default those of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help=", ".join(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a look")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw what was measured")
    parser.add_argument("--markdown", action="store_true", help="print what was measured")
    options = parser.parse_args(arguments)
    path = options.csv
    names = list(EXPERIMENTS)
    if options.quick:
        path = path.with_suffix(".quick.csv")
        names = ["figure-1"]
    if options.only is not None:
        names = options.only.split(",")
    if options.draw is not None:
        draw_figures(read_rows(path), options.draw)
        return
    if not options.markdown:
        for cell in list_cells(names, options.seeds, options.quick):
            key = tuple(read_key(cell))
            if key not in find_finished(path, KEY):
                print(time.strftime("%H:%M"), *key, flush=True)
                append_row(path, COLUMNS, measure_cell(cell))
    print_table(read_rows(path))
    print_costs(read_rows(path))


if __name__ == "__main__":
    main()
