"""Federated logistic regression whose privacy converges as rounds grow: the rule clipped-glm on Adult and breast cancer.

Who sees the final model only learns no more from 1,000 rounds than from 100; who sees every round learns ever more. Five minutes:

    SORDINO_DATA=... python -m experiments.converging_privacy [--plot converging_privacy.png]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from sordino import ClippedGlm, Constant, Data, Gaussian, Model, Protocol, certify, train

ROUNDS = (10, 30, 100, 300, 1000)
DELTA = 1e-5


RULE = ClippedGlm(
    steps=10, clip=1.0, schedule=Constant(rate=0.45), weight_decay=0.003, feature_norm=4.0
)


def federation(data: str, clients: int, records: int, sigma: float) -> Protocol:
    """Full-batch steps with a small weight decay."""
    shares = Data(name=data, records=records)
    return Protocol(
        seed=1,
        clients=clients,
        rounds=10,
        local=RULE,
        noise=Gaussian(sigma=sigma),
        data=shares,
        model=Model(name="logistic"),
    )


FEDERATIONS = (federation("adult", 50, 600, 0.05), federation("breast-cancer", 5, 90, 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("converging_privacy.json"))
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    rows = []
    print(
        "| data | rounds | accuracy | epsilon, final | epsilon, rounds | epsilon, server |\n|---|---|---|---|---|---|"
    )
    for base in FEDERATIONS:
        for rounds in ROUNDS:
            protocol = replace(base, rounds=rounds)
            with tempfile.TemporaryDirectory() as folder:
                run = train(protocol, folder=folder, report=False)
            spent = {
                view: certify(run.protocol, view).epsilon(DELTA)
                for view in ("final", "rounds", "server")
            }
            name = base.data.name if base.data is not None else ""
            accuracy = 100 * float(run.metrics["accuracy"][-1])
            rows.append({"data": name, "rounds": rounds, "accuracy": accuracy, **spent})
            print(
                f"| {name} | {rounds} | {accuracy:.1f} | {spent['final']:.3f} | {spent['rounds']:.3f} | {spent['server']:.2f} |",
                flush=True,
            )
            options.out.write_text(json.dumps(rows, indent=2) + "\n")
    if options.plot is not None:
        draw(rows, options.plot)


def draw(rows: list[dict[str, object]], path: Path) -> None:
    """Epsilon against rounds, one panel per data set."""
    from matplotlib.figure import Figure

    names = sorted({str(row["data"]) for row in rows})
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names)), names, strict=True):
        mine = [row for row in rows if row["data"] == name]
        for view in ("final", "rounds"):
            axes.plot(
                [row["rounds"] for row in mine],
                [row[view] for row in mine],
                marker="o",
                label=f"view {view}",
            )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="rounds",
            ylabel=f"epsilon at delta = {DELTA:g}",
            title=name,
        )
        axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
