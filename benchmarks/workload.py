"""Defines the work of every contender: Noisy-FedAvg of a network on random records."""

from __future__ import annotations

import time
from types import TracebackType

import numpy as np
from torch import nn

from benchmarks.task import BATCH, CLASSES, CLIENTS, CLIP, RATE, SIGMA, WORKERS
from sordino import Constant, Data, Dataset, Everyone, FedAvg, FixedSize, Gaussian, Model, Protocol
from sordino.engines.choice import choose_engine
from sordino.federation.attendance import Attendance
from sordino.federation.round import Round, play_round
from sordino.federation.setup import prepare
from sordino.federation.state import first_state


def dataset(images: np.ndarray, labels: np.ndarray) -> Dataset:
    """Images in Sordino's form. Nothing is scored, so the test records are a few of the same."""
    classes = tuple(str(label) for label in range(CLASSES))
    test = {"x_test": images[:BATCH], "y_test": labels[:BATCH]}
    scale = np.float32(1 / 255 if images.dtype == np.uint8 else 1)
    return Dataset(
        name="random",
        x_train=images,
        y_train=labels,
        **test,
        classes=classes,
        scale=np.asarray(scale),
    )


def protocol(
    *,
    steps: int,
    clients: int = CLIENTS,
    participants: int | None = None,
    data: str = "random",
    model: str = "lenet5",
) -> Protocol:
    """Returns the training of all contenders; everyone takes part unless a number is given."""
    return Protocol(
        seed=1,
        clients=clients,
        rounds=1_000_000,
        local=FedAvg(steps=steps, batch=BATCH, clip=CLIP, schedule=Constant(rate=RATE)),
        noise=Gaussian(sigma=SIGMA),
        participation=Everyone() if participants is None else FixedSize(size=participants),
        data=Data(name=data),
        model=Model(name=model),
    )


class Federation:
    """Trains by one of the engines, round by round.

    In a round participants are drawn, train and upload, and the server aggregates.
    Nothing is scored and nothing is kept on disk. It holds worker processes: use it as a context.
    """

    def __init__(
        self,
        plan: Protocol,
        data: Dataset,
        *,
        engine: str = "torch",
        workers: int = WORKERS,
        model: nn.Module | None = None,
    ) -> None:
        self._setup = prepare(plan, data=data, model=model)
        self._state = first_state(self._setup)
        self._attendance = Attendance({}, (), next_round=0)
        self._engine = choose_engine(self._setup, engine).start(
            self._setup, workers=workers, device="cpu"
        )

    def __enter__(self) -> Federation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine.close()

    def round(self) -> float:
        """Run one round; the seconds that it took."""
        started = time.perf_counter()
        one = Round(self._setup, self._state, self._attendance)
        self._state = play_round(one, self._engine).after
        return time.perf_counter() - started
