"""Trains a run's twin without noise, so that attacks on both can be compared.

The twin has the same seed, clients, batches and initial model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.engines.train_one import resume, train
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.round_metrics import RoundMetrics
from sordino.federation.setup import Setup
from sordino.federation.store.run import Run
from sordino.mechanisms import mechanism_of
from sordino.privacy.own_noise import forget_clients
from sordino.protocol import Gaussian, Privacy, Protocol
from sordino.protocol.channel_kinds import Direct
from sordino.protocol.release import release_of


def remove_protocol_noise(protocol: Protocol) -> Protocol:
    """Returns the same federation with no noise, and so without budgets.

    Args:
        protocol: The federation.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Laplace
        >>> local = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(clients=5, rounds=3, local=local, noise=Laplace(scale=1.0))
        >>> remove_protocol_noise(protocol).noise.sigma
        0.0
    """
    release = release_of(protocol)
    channel = protocol.channel
    # The twin hides nothing, so its uploads are sent directly.
    if release.secure_sum is not None:
        channel = Direct()
    # A protocol states one size of its noise, and no other.
    noise = Gaussian(sigma=0.0)
    if release.in_steps or mechanism_of(protocol.noise).size_entry == "multiplier":
        noise = Gaussian(multiplier=0.0)
    # The twin's noise is at the clients, so an adjacency that goes with noise at the server is left
    # to its default.
    adjacency = protocol.privacy.adjacency
    if release.at_server:
        adjacency = None
    return replace(
        # Budgets of clients and penalties go with noise. Without noise no budget would ever
        # suffice.
        forget_clients(protocol),
        channel=channel,
        noise=noise,
        privacy=Privacy(adjacency=adjacency),
    )


def train_silent_twin(
    run: Run,
    *,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    workers: int | None = None,
    on_start: Callable[[Setup, Path], None] = lambda setup, folder: None,
    on_round: Callable[[RoundMetrics], None] = lambda metrics: None,
) -> Run | None:
    """Returns the twin of a run, trained at the first call and kept in the run's folder.

    After an interruption, the next call continues the training.

    Args:
        run: A finished run.
        data: The data of the run, where they were passed in Python.
        model: The model of the run, where it was passed in Python.
        workers: The number of processes that train.
        on_start: Called when a training begins, with its set-up and folder.
        on_round: Called after every round.

    Returns:
        The twin; None where the run itself has no noise.

    Example:
        >>> train_silent_twin(Run.load("runs/digits-1")).protocol.noise.sigma  # doctest: +SKIP
        0.0
    """
    # A silent run is its own twin.
    if mechanism_of(run.protocol.noise).silent and not run.protocol.client:
        return None
    folder = run.folder / "attacks" / "without-noise"
    options: dict[str, Any] = {
        "data": data,
        "model": model,
        "workers": workers,
        "on_start": on_start,
        "on_round": on_round,
        "report": False,
    }
    if not (folder / "protocol.toml").exists():
        # A training that was killed in its first moments may have left files.
        shutil.rmtree(folder, ignore_errors=True)
        return train(
            remove_protocol_noise(run.protocol),
            folder=folder,
            evaluate_every=run.facts["evaluate_every"],
            keep_uploads=run.facts.get("keep_uploads", 0),
            **options,
        )
    twin = Run.load(folder, model=model)
    if twin.status == "unfinished":
        return resume(folder, **options)
    return twin
