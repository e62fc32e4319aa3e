"""Measures accuracy under secure aggregation at a stated epsilon against the server.

One step a round on a lot of all clients, clipped record by record (rule dp-sgd), noise calibrated
for each epsilon in the view `server`, delta 1e-5, one record added or removed. Every case is a
sweep: interrupted, the same command goes on where it was. What is known so far is in the CSV file,
from which the table and the figures are made.

    SORDINO_DATA=... python -m experiments.secure_accuracy [--cases mnist,adult] [--seeds 3]
        [--out runs/secure-accuracy] [--csv experiments/secure_accuracy.csv] [--quick]
    python -m experiments.secure_accuracy --draw docs/secure_accuracy.png
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.markdown_tables import print_header, print_row
from sordino import Protocol, Sweep, sweep
from sordino.attacks.twin import remove_protocol_noise
from sordino.cli.protocol_sources import example_text
from sordino.protocol import loads, override_keys

COLUMNS = ("case", "target", "seed", "accuracy", "epsilon", "rounds", "status")
NO_NOISE = "none"
# Against the server in the figure of MNIST: how noise is added, and the changes that make it so.
CURVE_EPSILONS = (1.0, 3.0, 8.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Holds one data set with its model.

    Attributes:
        name: The name of the case.
        title: The title in the table.
        example: The protocol that it starts from.
        changes: The keys of the example that are changed, with their values.
        epsilons: The targets.
        at_least: The accuracy that is to be reached at each.
        published: The accuracy of a trusted server, with its source.
    """

    name: str
    title: str
    example: str
    changes: tuple[str, ...] = ()
    epsilons: tuple[float, ...]
    at_least: tuple[float | None, ...] = ()
    published: str = ""

    @property
    def protocol(self) -> Protocol:
        """The federation, without a budget, since a sweep calibrates its noise."""
        plan = loads(example_text(self.example))
        return override_keys(plan, ["seed=1", "noise.secure=false", "privacy={}", *self.changes])


# The cheapest case.
QUICK_CASE = "adult"
OWN_NOISE = ("federation.channel=direct",)
CASES = (
    Case(
        name="mnist",
        title="MNIST, scattering + linear",
        example="secure-mnist",
        # The last is for the figure alone.
        epsilons=(3.0, 1.0, 8.0),
        at_least=(0.984, 0.975),
        published="98.7 % at 3 (Tramèr and Boneh 2021)",
    ),
    Case(
        name="lenet",
        title="MNIST, LeNet-class network of 26,010 parameters",
        example="secure-mnist",
        changes=(
            'data={ name = "mnist", partition = "iid", records = 600 }',
            'model={ name = "experiments.networks:make_tanh_network", parameters = 26010 }',
            "local.batch=40",
            'local.schedule={ kind = "decay", rate = 60.0, factor = 0.9977, every = "round" }',
        ),
        epsilons=(3.0,),
        at_least=(0.97,),
        published="98.1 % (Papernot et al. 2021)",
    ),
    Case(
        name="adult",
        title="Adult, logistic",
        example="secure-mnist",
        changes=(
            'data={ name = "adult", partition = "iid", records = 325 }',
            'model={ name = "logistic" }',
            "federation.rounds=800",
            "local.batch=16",
            "local.clip=0.5",
            "local.schedule.rate=10.0",
        ),
        epsilons=(1.0,),
        at_least=(0.84,),
    ),
    Case(
        name="pneumonia",
        title="PneumoniaMNIST, 5 hospitals of unequal size, scattering + linear",
        example="secure-consortium",
        epsilons=(3.0,),
        at_least=(None,),
    ),
    Case(
        name="cifar",
        title="CIFAR-10, scattering + linear",
        example="secure-cifar",
        epsilons=(3.0,),
        at_least=(0.65,),
        published="67.0 % (Tramèr and Boneh 2021)",
    ),
    Case(
        name="fashion",
        title="Fashion-MNIST, scattering + linear",
        example="secure-mnist",
        changes=(
            "data.name=fashion-mnist",
            "federation.rounds=400",
            "local.batch=40",
            'local.schedule={ kind = "decay", rate = 60.0, factor = 0.9955, every = "round" }',
        ),
        epsilons=(3.0,),
        at_least=(0.885,),
        published="89.7 % (Tramèr and Boneh 2021)",
    ),
    Case(
        name="curve-own",
        title="each client's own noise",
        example="secure-mnist",
        changes=(
            *OWN_NOISE,
            "federation.rounds=200",
            "local.batch=300",
            "local.schedule.rate=12",
        ),
        epsilons=CURVE_EPSILONS,
    ),
    Case(
        name="curve-noisy-sgd",
        title="noisy-sgd",
        example="secure-mnist",
        changes=(
            *OWN_NOISE,
            "federation.rounds=40",
            'local={ rule = "noisy-sgd", steps = 5, batch = 300, clip = 0.1, '
            'sampling = "poisson", schedule = { kind = "constant", rate = 20.0 } }',
        ),
        epsilons=CURVE_EPSILONS,
    ),
)
# The case `mnist` is the curve of secure sums.
CURVES = {
    "mnist": "secure sums",
    "curve-own": "each client's own noise",
    "curve-noisy-sgd": "noisy-sgd",
}


def measure_case(case: Case, seeds: int, folder: Path) -> Iterator[dict[str, object]]:
    """Yields the rows of a case: for every epsilon and seed, and without noise.

    Args:
        case: The data set and the model.
        seeds: The trainings of each setting.
        folder: The folder of its sweeps.
    """
    # A sweep for every epsilon and seed, so that adding one repeats none of the others.
    for seed in range(1, seeds + 1):
        plan = override_keys(case.protocol, [f"seed={seed}"])
        for epsilon in case.epsilons:
            place = folder / f"{case.name}-{epsilon:g}-{seed}"
            swept = sweep(plan, epsilons=[epsilon], view="server", folder=place)
            yield from read_rows(case, f"{epsilon:g}", swept)
        if case.name.startswith("curve-"):
            continue
        place = folder / f"{case.name}-without-noise-{seed}"
        clip = {"local.clip": [plan.local.clip]}
        swept = sweep(remove_protocol_noise(plan), clip, folder=place)
        yield from read_rows(case, NO_NOISE, swept)


def read_rows(case: Case, target: str, swept: Sweep) -> Iterator[dict[str, object]]:
    """Yields the rows of a sweep as they are written in the CSV file.

    Args:
        case: The case that was swept.
        target: The epsilon that the noise was calibrated for.
        swept: The results of the sweep.
    """
    for row in swept.rows:
        yield {
            "case": case.name,
            "target": target,
            "seed": row.seed,
            "accuracy": row.accuracy,
            "epsilon": row.epsilon,
            "rounds": case.protocol.rounds,
            "status": row.status,
        }


def read_csv(path: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    """Returns the rows of the CSV file, by case, target and seed.

    Args:
        path: The file, which need not exist.
    """
    if not path.exists():
        return {}
    rows = list(csv.DictReader(path.read_text().splitlines()))
    return {(row["case"], row["target"], row["seed"]): row for row in rows}


def write_csv(path: Path, rows: dict[tuple[str, str, str], dict[str, str]]) -> None:
    """Writes all rows that are known.

    Args:
        path: The file.
        rows: The rows by case, target and seed.
    """
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for key in sorted(rows):
            writer.writerow(rows[key])


def find_accuracies(rows: Sequence[dict[str, str]], case: str, target: str) -> list[float]:
    """Returns the accuracies of all seeds of a case at a target.

    Args:
        rows: The rows of the CSV file.
        case: The name of the case.
        target: The epsilon, or `NO_NOISE`.
    """
    found = [row for row in rows if (row["case"], row["target"]) == (case, target)]
    return [float(row["accuracy"]) for row in found if row["accuracy"]]


def print_table(rows: Sequence[dict[str, str]]) -> None:
    """Prints the table of all cases that were measured.

    Args:
        rows: The rows of the CSV file.
    """
    print_header("data", "epsilon", "accuracy", "seeds", "to reach", "without noise", "published")
    for case in CASES:
        for epsilon, wanted in zip(case.epsilons, case.at_least, strict=False):
            found = find_accuracies(rows, case.name, f"{epsilon:g}")
            free = find_accuracies(rows, case.name, NO_NOISE)
            print_row(
                case.title,
                f"{epsilon:g}",
                format_accuracies(found),
                len(found),
                "within 4 points" if wanted is None else f"{100 * wanted:.1f} %",
                format_accuracies(free),
                case.published,
            )


def format_accuracies(values: Sequence[float]) -> str:
    """Returns the mean of accuracies with their spread.

    Args:
        values: The accuracies of all seeds.
    """
    if not values:
        return "not measured"
    mean = f"{100 * statistics.fmean(values):.2f}"
    if len(values) == 1:
        return f"{mean} %"
    return f"{mean} ± {100 * statistics.stdev(values):.2f} %"


def draw_curves(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Draws accuracy against epsilon on MNIST in the view `server`, as PNG and SVG.

    Args:
        rows: The rows of the CSV file.
        path: The PNG file; the SVG file is written beside it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, title in CURVES.items():
        points = []
        for epsilon in CURVE_EPSILONS:
            found = find_accuracies(rows, name, f"{epsilon:g}")
            if found:
                spread = statistics.stdev(found) if len(found) > 1 else 0.0
                points.append((epsilon, statistics.fmean(found), spread))
        if points:
            epsilons, means, spreads = zip(*points, strict=True)
            axes.errorbar(epsilons, means, yerr=spreads, marker="o", capsize=3, label=title)
    free = find_accuracies(rows, "mnist", NO_NOISE)
    if free:
        axes.axhline(statistics.fmean(free), color="grey", linestyle="--", label="no noise")
    axes.set(
        xscale="log",
        xlabel="epsilon against the server, delta = 1e-5",
        ylabel="accuracy on MNIST",
        ylim=(0.9, 1),
    )
    axes.set_xticks(CURVE_EPSILONS, [f"{epsilon:g}" for epsilon in CURVE_EPSILONS])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
    figure.savefig(path.with_suffix(".svg"))


def main() -> None:
    """Runs the experiment."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(names), help=", ".join(names))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/secure-accuracy"))
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    parser.add_argument("--draw", type=Path, help="draw what is known, and train nothing")
    parser.add_argument("--quick", action="store_true", help="a look: one case, one seed")
    options = parser.parse_args()
    if options.quick:
        options.cases = QUICK_CASE
        options.seeds = 1
        options.csv = options.csv.with_suffix(".quick.csv")
    rows = read_csv(options.csv)
    if options.draw is None:
        for case in CASES:
            if case.name not in options.cases.split(","):
                continue
            for row in measure_case(case, options.seeds, options.out):
                texts = {name: "" if row[name] is None else str(row[name]) for name in COLUMNS}
                rows[texts["case"], texts["target"], texts["seed"]] = texts
                write_csv(options.csv, rows)
                print(texts, flush=True)
    else:
        draw_curves(list(rows.values()), options.draw)
    print_table(list(rows.values()))


if __name__ == "__main__":
    main()
