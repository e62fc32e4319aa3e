"""Federations that `train_many` is tried on, and what it means that two trainings ended alike."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from sordino import (
    Constant,
    FedAvg,
    FedProx,
    Gaussian,
    Interpolate,
    Laplace,
    Mean,
    Median,
    Model,
    NoisySgd,
    Poisson,
    Privacy,
    Protocol,
    Run,
    Scaffold,
    Trained,
    train,
)
from sordino.native.library import list_runnable
from tests.support import toy_dataset, toy_protocol, without_seconds

needs_kernel = pytest.mark.skipif(not list_runnable(), reason="the native kernel was not built")
LOCAL = FedAvg(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3))

VARIED = [
    toy_protocol(seed=1),
    toy_protocol(seed=2, rounds=7),
    toy_protocol(seed=3, participation=Poisson(rate=0.3)),
    toy_protocol(seed=4, local=replace(LOCAL, steps=5, clip=0.1)),
    toy_protocol(
        seed=5,
        local=FedProx(steps=2, batch=20, clip=1.0, proximal=0.4, schedule=Constant(rate=0.2)),
        clients=4,
    ),
    toy_protocol(seed=6, noise=Gaussian(sigma=0.5), aggregation=Median()),
    toy_protocol(seed=7, aggregation=Mean(mixing=0.5), channel="shuffler"),
    toy_protocol(
        seed=8,
        local=NoisySgd(steps=3, batch=6, clip=0.5, schedule=Constant(rate=0.3)),
        noise=Gaussian(multiplier=0.7),
    ),
    toy_protocol(seed=1),
]

# What clients or the server keep from round to round, batches that vary, noise that is drawn in Python.
KEEPING = [
    toy_protocol(seed=1, local=Scaffold(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3))),
    toy_protocol(seed=2, personalization=Interpolate(alpha=0.3), participation=Poisson(rate=0.7)),
    toy_protocol(seed=3, noise=Laplace(scale=0.1)),
    toy_protocol(seed=4, noise=Gaussian(sigma=0.05, where="server")),
    toy_protocol(
        seed=5,
        local=NoisySgd(
            steps=3,
            batch=6,
            clip=0.5,
            schedule=Constant(rate=0.01),
            sampling="poisson",
            optimizer="adam",
        ),
        noise=Gaussian(multiplier=0.7),
        privacy=Privacy(adjacency="add-or-remove"),
    ),
    toy_protocol(seed=6, local=replace(LOCAL, clip_norm="l1", clip_target="update")),
]


def softplus(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A model that the kernel does not have."""
    return nn.Sequential(nn.Linear(shape[0], 4), nn.Softplus(), nn.Linear(4, outputs))


ELSEWHERE = Model(name="tests.engines.many:softplus")


def assert_same(one: Trained, other: Trained) -> None:
    """Bit for bit, but for the clock."""
    assert one.state is not None
    assert other.state is not None
    assert {name: value.numpy().tobytes() for name, value in one.state.items()} == {
        name: value.numpy().tobytes() for name, value in other.state.items()
    }
    assert without_seconds(one.metrics) == without_seconds(other.metrics)
    assert (one.ledger, one.status, one.protocol, one.sizes) == (
        other.ledger,
        other.status,
        other.protocol,
        other.sizes,
    )
    assert (one.engine, one.facts["engine_reason"]) == (other.engine, other.facts["engine_reason"])


def alone(protocols: list[Protocol], folder: Path, data=None, model="mlp") -> list[Run]:
    own = data if isinstance(data, list) else [data or toy_dataset()] * len(protocols)
    return [
        train(
            protocol,
            data=own[n],
            model=None if protocol.model else model,
            folder=folder / f"alone-{n}",
        )
        for n, protocol in enumerate(protocols)
    ]
