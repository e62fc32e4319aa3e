"""A run's twin without noise: the same seed, clients, batches and initial model, so that attacks on both can be compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.engines.training import resume, train
from sordino.federation.loop import RoundMetrics
from sordino.federation.run import Run
from sordino.federation.setup import DataSource, ModelSource, Setup
from sordino.privacy.mechanisms import silent
from sordino.protocol import Gaussian, NoisySgd, Privacy, Protocol


def without_noise(protocol: Protocol) -> Protocol:
    """The same federation with no noise, and so without budgets.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Laplace
        >>> local = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> without_noise(Protocol(clients=5, rounds=3, local=local, noise=Laplace(scale=1.0))).noise
        Gaussian(where='client', sigma=0.0, server_sigma=None, multiplier=None, secure=False)
    """
    noise = (
        Gaussian(multiplier=0.0) if isinstance(protocol.local, NoisySgd) else Gaussian(sigma=0.0)
    )
    adjacency = protocol.privacy.adjacency if protocol.noise.where == "client" else None
    return replace(
        protocol, noise=noise, privacy=Privacy(adjacency=adjacency), client=(), penalty=False
    )


def silent_twin(
    run: Run,
    *,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    workers: int | None = None,
    on_start: Callable[[Setup, Path], None] = lambda setup, folder: None,
    on_round: Callable[[RoundMetrics], None] = lambda metrics: None,
) -> Run | None:
    """The twin of a run, trained when it is first asked for and kept in the run's folder; None where the run itself has no noise.

    Interrupted, it goes on when it is asked for again.

    Example:
        >>> silent_twin(Run.load("runs/digits-1")).protocol.noise.sigma  # doctest: +SKIP
        0.0
    """
    if silent(run.protocol.noise) and not run.protocol.client:
        return None
    place = run.folder / "attacks" / "without-noise"
    options: dict[str, Any] = {
        "data": data,
        "model": model,
        "workers": workers,
        "on_start": on_start,
        "on_round": on_round,
        "report": False,
    }
    if not (place / "protocol.toml").exists():
        shutil.rmtree(place, ignore_errors=True)  # what a kill in its first moments left
        every = {
            "evaluate_every": run.facts["evaluate_every"],
            "keep_uploads": run.facts.get("keep_uploads", 0),
        }
        return train(without_noise(run.protocol), folder=place, **every, **options)
    twin = Run.load(place, model=model)
    return twin if twin.status != "unfinished" else resume(place, **options)
