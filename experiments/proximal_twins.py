"""How far apart two trainings end that differ in one record and share every noise draw (convergent-dp, Figure 2 and Table 5).

Noisy-FedProx for several alpha, with alpha = 0 being Noisy-FedAvg: the distance shrinks as alpha grows. About 5 minutes on 2 cores:

    SORDINO_DATA=... python -m experiments.proximal_twins [--data mnist --model lenet5] [--out proximal_twins.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino import Constant, Data, FedProx, Gaussian, Iid, Model, Protocol
from sordino.engines.torch_engine import TorchEngine
from sordino.federation.aggregation import aggregate, upload_weights
from sordino.federation.participation import participants
from sordino.federation.setup import Setup, prepare

ALPHAS = (0.0, 0.01, 0.1, 1.0)


def neighbour(setup: Setup) -> Setup:
    """The same federation with the first record of client 0 replaced by its negative image under another label."""
    row = int(setup.parts[0][0])
    x, y = setup.train.x.clone(), setup.train.y.clone()
    x[row] = x.max() - x[row]
    y[row] = (y[row] + 1) % setup.outputs
    return replace(setup, train=replace(setup.train, x=x, y=y))


def models(setup: Setup) -> Iterator[np.ndarray]:
    """The global model after every round."""
    protocol, weights = setup.protocol, setup.initial_weights()
    with TorchEngine(setup) as engine:
        for t in range(protocol.rounds):
            chosen = participants(protocol, round=t, key=setup.key)
            uploads = (u.vector for u in engine.uploads(round=t, weights=weights, participants=chosen))
            weights = aggregate(protocol.aggregation, weights, uploads, upload_weights(protocol.aggregation, setup.sizes[chosen]))
            yield weights


def distances(setup: Setup) -> list[float]:
    """Distance of the twins, round by round."""
    return [float(np.linalg.norm(a - b)) for a, b in zip(models(setup), models(neighbour(setup)), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("proximal_twins.json"))
    options = parser.parse_args()
    rows = []
    print(f"| alpha | distance after {options.rounds} rounds, mean | spread |\n|---|---|---|")
    for alpha in ALPHAS:
        ends = []
        for seed in range(options.seeds):
            protocol = Protocol(
                seed=seed,
                clients=20,
                rounds=options.rounds,
                local=FedProx(steps=5, batch=32, clip=10.0, schedule=Constant(rate=0.1), proximal=alpha),
                noise=Gaussian(sigma=0.01),
                data=Data(name=options.data, partition=Iid(), records=64),
                model=Model(name=options.model),
            )
            ends.append(distances(prepare(protocol)))
        final = [path[-1] for path in ends]
        rows.append({"alpha": alpha, "distances": ends})
        print(f"| {alpha:g} | {np.mean(final):.4f} | {np.std(final, ddof=1):.4f} |", flush=True)
        options.out.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
