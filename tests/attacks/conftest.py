"""Runs on real data that several tests attack: with no noise, and with so much that nothing should be left to find."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import pytest

from sordino import Constant, Data, Dataset, FedAvg, Gaussian, Iid, Model, Protocol, Run, train
from sordino.data import load_dataset
from sordino.protocol import Partition
from tests.support import BESIDE, real_data_folder

EVENLY = Iid()
STRONG = 1.0  # ten times as large as a step's rate times a gradient of norm 1


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Callable[..., Run]:
    """Trains on real data, once for the same settings."""
    folder = real_data_folder()
    made: dict[str, Run] = {}

    def train_once(
        data: str,
        *,
        sigma: float,
        model: str = "mlp",
        rounds: int = 20,
        batch: int = 4,
        dealt: Partition = EVENLY,
        **changes: object,
    ) -> Run:
        settings: dict[str, object] = {
            "seed": 1,
            "clients": 10,
            "rounds": rounds,
            "local": FedAvg(steps=1, batch=batch, clip=10.0, schedule=Constant(rate=0.1)),
            "noise": Gaussian(sigma=sigma),
            "data": Data(name=data, records=100, partition=dealt),
            "model": Model(name=model),
        }
        protocol = Protocol(**{**settings, **changes})
        if repr(protocol) not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SORDINO_DATA", str(folder))
                place = tmp_path_factory.mktemp("runs") / "run"
                made[repr(protocol)] = train(
                    protocol,
                    folder=place,
                    keep_uploads=5,
                    evaluate_every=rounds,
                    workers=1,
                    report=False,
                )
        return made[repr(protocol)]

    return train_once


@pytest.fixture(scope="session")
def cached() -> Callable[[str], Dataset]:
    """Loads real data once."""
    return functools.cache(load_dataset)


@pytest.fixture(autouse=True)
def _real_data(monkeypatch, cached) -> None:
    if "SORDINO_DATA" not in os.environ and BESIDE.is_dir():
        monkeypatch.setenv("SORDINO_DATA", str(BESIDE))
    monkeypatch.setattr("sordino.federation.record_tensors.load_dataset", cached)
