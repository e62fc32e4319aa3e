"""Remakes udp-fl's Tables 6, 8 and 9: attacks on models that learned, by noise in every step.

Algorithm 1 with LeNet-5 and 10 clients: half of CIFAR-10 for membership (Table 6; as many members
of each label as others are asked about) and reconstruction (Table 9), 1,000 faces for attributes
(Table 8). Noise is calibrated to epsilon at delta = 1e-5 against the server. Finished cells are
lines of experiments/udp_fl_attacks.csv and are not attacked again:

    SORDINO_DATA=... python -m experiments.udp_fl_attacks [--tables table-6,table-8,table-9]
        [--epsilons 2,8] [--shadows 64] [--seeds 2] [--quick]
    python -m experiments.udp_fl_attacks --markdown

Table 6 trains every federation once for each shadow. `--quick` trains 15 rounds, without noise and
with a Gaussian at epsilon 8, and four shadows, into a file of its own. Table 7 attacks single
updates and no model: `python -m experiments.attacks udp-7`.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.cells import (
    Row,
    append_rows,
    find_finished,
    read_rows,
    select_rows,
    spell_value,
)
from experiments.markdown_tables import print_header, print_row
from experiments.udp_fl_cells import MECHANISMS, Cell, make_protocol
from sordino import Protocol, Run, resume, train
from sordino.attacks import attributes, membership, reconstruction
from sordino.attacks.referee import Referee
from sordino.attacks.suite import attack
from sordino.papers.attack_tables import TABLE_6, TABLE_8, TABLE_9
from sordino.protocol import dumps

# The rounds between two attacked models, where a table shows how leaks grow.
ATTACKED_EVERY = 50
QUICK_ROUNDS = 15
QUICK_SHADOWS = 4
# udp-fl's errors are of standardised pixels: CIFAR-10's have the deviation 0.2516.
DEVIATION = 0.2516
KEY = ("table", "mechanism", "epsilon", "seed", "shadows", "rounds")
COLUMNS = (
    *KEY,
    "accuracy",
    "seconds",
    "round",
    "attacker",
    "metric",
    "value",
    "baseline",
    "samples",
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper.

    Attributes:
        data: A name of `FEDERATIONS`.
        metrics: That the paper prints, with what 1 of ours is in the table.
        printed: The paper's values.
        attacker: Whose values they are; of Table 6 every attacker has its own.
    """

    data: str
    metrics: dict[str, float]
    printed: dict[str, dict[int | None, tuple[float, ...]]]
    attacker: str = ""


TABLES = {
    "table-8": Table(
        data="faces", metrics={"accuracy": 1, "F1": 1}, printed=TABLE_8, attacker="embeddings"
    ),
    "table-9": Table(
        data="half-cifar10",
        metrics={"MSE": DEVIATION**-2, "MAE": DEVIATION**-1},
        printed=TABLE_9,
    ),
    "table-6": Table(
        data="half-cifar10", metrics={"TPR at 1 % FPR": 1, "accuracy": 1, "AUC": 1}, printed={}
    ),
}
PLANS = {
    "table-6": replace(membership.SETTINGS["quick"], rounds=1),
    "table-8": attributes.SETTINGS["quick"],
    "table-9": replace(reconstruction.SETTINGS["quick"], iterations=1000),
}


def list_cells(options: argparse.Namespace) -> Iterator[tuple[str, Cell, int]]:
    """Yields tables, the cells that they train, and the number of shadows beside each.

    Args:
        options: Of the command line.
    """
    epsilons = [8.0] if options.quick else [float(text) for text in options.epsilons.split(",")]
    mechanisms = MECHANISMS[:1] if options.quick else MECHANISMS
    rounds = QUICK_ROUNDS if options.quick else options.rounds
    for seed in range(1, 1 + (1 if options.quick else options.seeds)):
        for name in options.tables.split(","):
            shadows = options.shadows if name == "table-6" else 0
            free = Cell(
                data=TABLES[name].data, method="none", epsilon=np.inf, seed=seed, rounds=rounds
            )
            yield name, free, shadows
            for mechanism in mechanisms:
                for epsilon in epsilons:
                    yield name, replace(free, method=mechanism, epsilon=epsilon), shadows


def attack_cell(name: str, cell: Cell, shadows: int, runs: Path) -> list[dict[str, object]]:
    """Trains a cell and attacks it, and returns a line for each measure.

    Args:
        name: Of the table.
        cell: What is trained.
        shadows: How many are trained beside it.
        runs: The folder of trainings and attacks that have not ended.
    """
    began = time.process_time()
    run = train_once(make_protocol(cell), runs)
    plan = PLANS[name]
    if shadows > 0:
        plan = replace(plan, shadows=shadows)
    place = runs / "attacks" / f"{run.folder.name}-{name}-{shadows}"
    rows = attack([Referee(run)], plan, folder=place).rows
    shared = {
        **dict(zip(KEY, describe_cell(name, cell, shadows), strict=True)),
        "accuracy": float(run.metrics["accuracy"][-1]),
        "seconds": time.process_time() - began,
    }
    return [
        {
            **shared,
            "round": row.round,
            "attacker": row.method,
            "metric": row.metric,
            "value": row.value,
            "baseline": row.baseline,
            "samples": row.samples,
        }
        for row in rows
    ]


def train_once(plan: Protocol, runs: Path) -> Run:
    """Returns the run of a federation, which is trained, resumed or read.

    Args:
        plan: The federation.
        runs: The folder of trainings.
    """
    digest = hashlib.sha256(dumps(plan).encode()).hexdigest()
    folder = runs / digest[:12]
    if not (folder / "protocol.toml").exists():
        every = min(ATTACKED_EVERY, plan.rounds)
        return train(
            plan, folder=folder, keep_uploads=every, evaluate_every=plan.rounds, report=False
        )
    run = Run.load(folder)
    return resume(folder, report=False) if run.status == "unfinished" else run


def describe_cell(name: str, cell: Cell, shadows: int) -> tuple[str, ...]:
    """Returns the values that identify a cell, as they are written in the file.

    Args:
        name: Of the table.
        cell: What is trained.
        shadows: How many are trained beside it.
    """
    values = (name, cell.method, cell.epsilon, cell.seed, shadows, cell.rounds)
    return tuple(map(spell_value, values))


def print_tables(rows: Sequence[Row]) -> None:
    """Prints every table, the mean over seeds, with the paper's values.

    Args:
        rows: Of the file.
    """
    for name, table in TABLES.items():
        found = select_rows(rows, table=name)
        if not found:
            continue
        print(f"\n{name}\n")
        words = list(table.metrics)
        print_header(
            *("mechanism", "epsilon", "seeds", "shadows", "round", "attacker"),
            *("accuracy of the model", *words),
            *(f"{word}, sees nothing" for word in words),
            *(f"{word}, paper" for word in words),
        )
        places = ("mechanism", "epsilon", "shadows", "round", "attacker")
        for place in dict.fromkeys(tuple(row[column] for column in places) for row in found):
            members = select_rows(found, **dict(zip(places, place, strict=True)))
            if {row["metric"] for row in members} >= set(words):
                print_place(name, members)


def print_place(name: str, members: Sequence[Row]) -> None:
    """Prints one line of a table.

    Args:
        name: Of the table.
        members: The lines of its measures, over seeds.
    """
    table = TABLES[name]
    row = members[0]
    seeds = {one["seed"] for one in members}
    cells = []
    for column in ("value", "baseline"):
        for word, unit in table.metrics.items():
            values = [float(one[column]) for one in select_rows(members, metric=word)]
            cells.append(f"{unit * statistics.fmean(values):.3f}")
    accuracy = statistics.fmean(float(one["accuracy"]) for one in members)
    print_row(
        *(row["mechanism"], row["epsilon"], len(seeds), row["shadows"], row["round"]),
        *(row["attacker"], f"{accuracy:.1%}", *cells, *find_printed(name, row)),
    )


def find_printed(name: str, row: Row) -> tuple[object, ...]:
    """Returns the paper's values for a line; blanks where it prints none.

    Args:
        name: Of the table.
        row: Of the file.
    """
    table = TABLES[name]
    printed = table.printed
    if name == "table-6":
        printed = TABLE_6.get(row["attacker"], {})
    elif row["attacker"] != table.attacker:
        printed = {}
    epsilon = float(row["epsilon"])
    found = printed.get(row["mechanism"], {}).get(None if math.isinf(epsilon) else int(epsilon))
    return found or ("",) * len(table.metrics)


def main(arguments: Sequence[str] | None = None) -> None:
    """Attacks the cells that the file lacks, or shows the others.

    Args:
        arguments: Of the command line; by default those of the process.
    """
    options = read_options(arguments)
    path = options.csv
    if options.quick:
        path = path.with_suffix(".quick.csv")
        options.shadows = QUICK_SHADOWS
    if not options.markdown:
        for name, cell, shadows in list_cells(options):
            key = describe_cell(name, cell, shadows)
            if key not in find_finished(path, KEY):
                print(time.strftime("%H:%M"), *key, flush=True)
                append_rows(path, COLUMNS, attack_cell(name, cell, shadows, options.runs))
    print_tables(read_rows(path))


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options of the command line.

    Args:
        arguments: Of the command line; None for those of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", default=",".join(TABLES), help=", ".join(TABLES))
    parser.add_argument("--epsilons", default="2,4,6,8")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--shadows", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a look")
    parser.add_argument("--markdown", action="store_true", help="print what was measured")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path(tempfile.gettempdir()) / "sordino-udp-fl-attacks",
        help="where trainings and shadows are kept",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
