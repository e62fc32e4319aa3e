"""`train_many`: independent trainings in one call, their clients trained together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TextIO, cast

from sordino.data import Dataset
from sordino.data.from_python import accept_data
from sordino.engines.choice import check_engine, choose_engine
from sordino.engines.training_cache import TrainingCache
from sordino.engines.training_scheduler import (
    ManyData,
    ManyRequest,
    TrainingScheduler,
    name_training,
)
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.processors import check_device
from sordino.federation.round import refuse_unplayable
from sordino.federation.round_metrics import RoundMetrics
from sordino.federation.store.run import Trained
from sordino.protocol import InvalidValue, Protocol, UserError


def train_many(
    protocols: Iterable[Protocol],
    *,
    data: ManyData | None = None,
    model: ModelSource | None = None,
    folder: str | Path | None = None,
    engine: str = "auto",
    workers: int | None = None,
    device: str = "cpu",
    evaluate_every: int | None = None,
    on_round: Callable[[int, RoundMetrics], None] | None = None,
    on_end: Callable[[int, Trained], None] | None = None,
) -> list[Trained]:
    """Trains many independent federations.

    They may differ in seeds, in settings, or as neighbouring data sets do. Each ends with the model
    that `train` gives, bit for bit. Data and kernels are shared, and clients of many trainings are
    trained together, so that small federations keep all cores busy. Trainings that the native
    engine cannot run are run by torch, one after another.

    Args:
        protocols: The protocols, one for each training.
        data: For all trainings a name, a path, a `Dataset`, arrays (x, y) or a DataFrame; or one
            for each, as a sequence, or as a function of the training's number that is called when
            the training begins, so that few of the data sets need to exist at a time.
        model: A name, a module or a factory, in place of `protocol.model.name`.
        folder: The folder in which every training gets a run folder, named by its number. If called
            again with the same arguments, finished trainings are read and unfinished ones resumed.
            By default nothing is written.
        engine: "native", "torch" or "auto", as in `train`.
        workers: As in `train`; the clients of all trainings share them.
        device: As in `train`.
        evaluate_every: As in `train`.
        on_round: Called after every round, with the number of its training.
        on_end: Called with the number of a training that has ended, and its result. If neither is
            given, a terminal shows how many have ended.

    Returns:
        The ended trainings, in the order of the protocols; with a folder they are runs.

    Raises:
        UserError: Something does not fit; the message names the training. Everything but data that
            a function has still to make is checked before anything is written.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.5))
        >>> noise = Gaussian(sigma=0.01)
        >>> plan = Protocol(clients=4, rounds=3, local=local, noise=noise)
        >>> seeds = [replace(plan, seed=seed) for seed in range(3)]
        >>> [trained.status for trained in train_many(seeds, data="digits", model="logistic")]
        ['finished', 'finished', 'finished']
    """
    if engine == "flower":
        raise UserError(
            'engine = "flower": machines run one training at a time. Use `train`, or engine = '
            '"auto", "native" or "torch".'
        )
    plans = check_plans(protocols)
    request = ManyRequest(
        plans=plans,
        data=share_data(data, plans),
        model=model,
        folder=Path(folder) if folder is not None else None,
        engine=check_engine(engine),
        workers=workers,
        device=check_device(device),
        evaluate_every=evaluate_every,
        on_round=on_round or (lambda number, metrics: None),
    )
    note_end = on_end
    if note_end is None:
        note_end = count_ended(len(request.plans), sys.stderr, shown=on_round is None)
    results: dict[int, Trained] = {}

    def note(number: int, trained: Trained) -> None:
        """Keeps the result of a training, and tells the caller.

        Args:
            number: The number of the training.
            trained: The ended training.
        """
        results[number] = trained
        note_end(number, trained)

    shared = TrainingCache(model)
    # All refusals come first: the last of a hundred trainings must not fail by a typo.
    refuse_early(request, shared)
    TrainingScheduler(request, shared, note).run()
    return [results[number] for number in range(len(request.plans))]


def count_ended(trainings: int, stream: TextIO, *, shown: bool) -> Callable[[int, Trained], None]:
    """Returns a callback for ended trainings that counts them on a terminal.

    Args:
        trainings: The number of trainings of the call.
        stream: The stream that is written to, if it is a terminal.
        shown: Whether the count is shown at all.
    """
    ended = count(1)
    shown = shown and stream.isatty()

    def show(number: int, trained: Trained) -> None:
        """Writes how many trainings have ended.

        Args:
            number: The number of the training.
            trained: The ended training.
        """
        done = next(ended)
        if shown:
            end = "\n" if done == trainings else ""
            print(f"\r{done} of {trainings} trainings", end=end, file=stream, flush=True)

    return show


def share_data(data: Any, plans: Sequence[Protocol]) -> ManyData | None:
    """Returns the data, with arrays or a DataFrame for all trainings turned into data sets.

    Args:
        data: The argument of `train_many`.
        plans: The protocols, which state classes and columns.

    Raises:
        UserError: They do not fit what a protocol says.
    """
    is_frame = hasattr(data, "columns") and not isinstance(data, Dataset)
    if not (is_arrays(data) or is_frame or isinstance(data, Path)):
        return cast(ManyData | None, data)
    # Trainings with the same settings of the data share one data set.
    made = {settings: accept_data(data, settings) for settings in {plan.data for plan in plans}}
    return lambda number: cast(DataSource, made[plans[number].data])


def is_arrays(data: Any) -> bool:
    """Returns whether data are arrays x and y, and not a list with data for each training.

    Args:
        data: The argument of `train_many`.

    Example:
        >>> import numpy as np
        >>> is_arrays((np.ones((2, 1)), np.ones(2))), is_arrays(["digits", "digits"])
        (True, False)
    """
    # Told by its attributes, so that neither pandas nor polars has to be installed.
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(hasattr(part, "shape") and not hasattr(part, "columns") for part in data)
    )


def check_plans(protocols: Iterable[Protocol]) -> tuple[Protocol, ...]:
    """Returns the protocols, if they are protocols.

    Args:
        protocols: One for each training.

    Raises:
        UserError: A single protocol was given, something else is among them, or one has parts with
            which no round can be played.
    """
    if isinstance(protocols, Protocol):
        raise UserError(
            "protocols is a single Protocol: expected one for each training, as a list. For one "
            "training use `train`."
        )
    plans = tuple(protocols)
    for number, plan in enumerate(plans):
        if not isinstance(plan, Protocol):
            raise InvalidValue(f"protocols[{number}]", plan, "a Protocol")
        refuse_unplayable(plan)
    return plans


def refuse_early(request: ManyRequest, shared: TrainingCache) -> None:
    """Refuses a call in which something does not fit, before anything is trained.

    Args:
        request: The arguments of the call.
        shared: Data sets, prices and kernels that the trainings of the call share.

    Raises:
        BudgetExceeded: A budget does not pay for one round.
        UserError: Something else does not fit; the message names the first such training.
    """
    # Data that a function makes exist only while their training runs.
    if callable(request.data):
        return
    seen = set()
    for number, plan in enumerate(request.plans):
        # Of trainings that differ only in their seeds, the first represents all.
        alike = replace(plan, seed=0)
        if alike in seen:
            continue
        seen.add(alike)
        with name_training(number):
            setup = request.prepare_setup(plan, number, shared)
            shared.limits(setup)
            choose_engine(setup, request.engine, request.device, shared.kernel_for)
