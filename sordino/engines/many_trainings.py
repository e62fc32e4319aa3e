"""`train_many`: independent trainings in one call, their clients trained together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import Any, TextIO, cast

from sordino.data import Dataset
from sordino.data.from_python import accept_data
from sordino.engines.choice import check_engine, choose
from sordino.engines.compiled import NativeEngine, pooled_uploads
from sordino.engines.run_folders import run_facts
from sordino.engines.storage_backends import FolderBackend, MemoryBackend, StorageBackend
from sordino.engines.torch_engine import TorchEngine
from sordino.engines.train_one import scored_every
from sordino.engines.training_cache import TrainingCache
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.processors import check_device, worker_count
from sordino.federation.round import RoundTask, play_rounds, refuse_unplayable
from sordino.federation.round_metrics import RoundMetrics
from sordino.federation.setup import Setup, prepare
from sordino.federation.store.run import Trained
from sordino.federation.training import Training, TrainingOptions
from sordino.federation.upload import Upload
from sordino.privacy.spending import BudgetExceeded
from sordino.protocol import InvalidValue, Protocol, UserError

ManyData = DataSource | Sequence[DataSource] | Callable[[int], DataSource]

# Trainings under way at a time, however small: each may hold files open.
MOST = 64


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
    """Trains many federations that have nothing to do with each other.

    They may differ in seeds, in settings, or as neighbouring data sets do. Each ends with the model
    that `train` gives, bit for bit. Data and kernels are shared, and clients of many trainings are
    trained together, so that small federations keep all cores busy. What the native engine cannot
    run, torch runs, one after another.

    Args:
        protocols: The protocols, one for each training.
        data: For all of them a name, a path, a `Dataset`, arrays (x, y) or a DataFrame; or one for
            each, as a sequence, or as a function of the training's number that is called when the
            training begins, so that few of the data sets need to exist at a time.
        model: A name, a module or a factory, in place of `protocol.model.name`.
        folder: Where every training gets a run folder, named by its number. Called again with the
            same arguments, finished trainings are read and unfinished ones go on. By default
            nothing is written.
        engine: "native", "torch" or "auto", as in `train`.
        workers: As in `train`; the clients of all trainings share them.
        device: As in `train`.
        evaluate_every: As in `train`.
        on_round: Called after every round, with the number of its training.
        on_end: Called when a training has ended, with its number. If neither is given, a terminal
            shows how many have ended.

    Returns:
        What became of each, in the order of the protocols; with a folder they are runs.

    Raises:
        UserError: Something does not fit, in which training. A fault of a protocol, though not
            one of data that a function has still to make, is refused before anything is written.

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
    asked = Asked(
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
        note_end = count_ended(len(asked.plans), sys.stderr, shown=on_round is None)
    results: dict[int, Trained] = {}

    def note(number: int, trained: Trained) -> None:
        """Keeps the result of a training, and tells the caller.

        Args:
            number: Number of the training.
            trained: What became of it.
        """
        results[number] = trained
        note_end(number, trained)

    shared = TrainingCache(model)
    # All refusals come first: nobody wants the last of a hundred trainings to fail by a typo.
    refuse_early(asked, shared)
    Trainings(asked, shared, note).run()
    return [results[number] for number in range(len(asked.plans))]


def count_ended(trainings: int, stream: TextIO, *, shown: bool) -> Callable[[int, Trained], None]:
    """Returns a callback for ended trainings, which counts them on a terminal.

    Args:
        trainings: How many there are.
        stream: Where to; nothing is written if it is not a terminal.
        shown: Whether anything is shown at all.
    """
    ended = count(1)
    shown = shown and stream.isatty()

    def show(number: int, trained: Trained) -> None:
        """Writes how many trainings have ended.

        Args:
            number: Number of the training.
            trained: What became of it.
        """
        done = next(ended)
        if shown:
            end = "\n" if done == trainings else ""
            print(f"\r{done} of {trainings} trainings", end=end, file=stream, flush=True)

    return show


def share_data(data: Any, plans: Sequence[Protocol]) -> ManyData | None:
    """Returns data with arrays and DataFrames that are for all trainings made into data sets.

    Args:
        data: As the caller has them.
        plans: The protocols, whose classes and columns they are read by.

    Raises:
        UserError: They do not fit what a protocol says.
    """
    is_frame = hasattr(data, "columns") and not isinstance(data, Dataset)
    if not (is_arrays(data) or is_frame or isinstance(data, Path)):
        return cast(ManyData | None, data)
    # One data set for trainings that read it alike, so that they share it.
    made = {settings: accept_data(data, settings) for settings in {plan.data for plan in plans}}
    return lambda number: cast(DataSource, made[plans[number].data])


def is_arrays(data: Any) -> bool:
    """Returns whether data are arrays x and y, and not a list with data for each training.

    Args:
        data: As the caller has them.

    Example:
        >>> import numpy as np
        >>> is_arrays((np.ones((2, 1)), np.ones(2))), is_arrays(["digits", "digits"])
        (True, False)
    """
    # By what it offers, so that neither pandas nor polars has to be installed.
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(hasattr(part, "shape") and not hasattr(part, "columns") for part in data)
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """Describes what the caller of `train_many` wants; see there for the entries."""

    plans: tuple[Protocol, ...]
    data: ManyData | None
    model: ModelSource | None
    folder: Path | None
    engine: str
    workers: int | None
    device: str
    evaluate_every: int | None
    on_round: Callable[[int, RoundMetrics], None]

    def __post_init__(self) -> None:
        worker_count(self.workers, self.device)
        for plan in self.plans:
            scored_every(self.evaluate_every, plan)
        if (
            isinstance(self.data, Sequence)
            and not isinstance(self.data, str)
            and len(self.data) != len(self.plans)
        ):
            raise UserError(
                f"there are {len(self.plans)} protocols and {len(self.data)} data sets; there must "
                "be as many, or one for all."
            )

    def data_of(self, number: int) -> DataSource | None:
        """Returns the data of a training; a function makes them now.

        Args:
            number: The training.
        """
        if self.data is None or isinstance(self.data, (str, Dataset)):
            return self.data
        if callable(self.data):
            return self.data(number)
        return self.data[number]

    def setup(self, plan: Protocol, number: int, shared: TrainingCache) -> Setup:
        """Returns a training made concrete, with what it shares with others.

        Args:
            plan: Its protocol.
            number: Its number.
            shared: What the trainings of the call share.
        """
        return prepare(plan, data=self.data_of(number), model=self.model, load=shared.load)


@dataclass(frozen=True, kw_only=True, eq=False)
class UnderWay:
    """Holds a training that has begun, with its storage and its engine, until it is closed.

    Attributes:
        number: Its place among the protocols.
        storage: Where it lives.
        engine: What trains its clients.
        training: The training itself.
    """

    number: int
    storage: StorageBackend
    engine: NativeEngine | TorchEngine
    training: Training

    def end(self, model: ModelSource | None) -> Trained:
        """Returns what became of it, and lets go of it.

        Args:
            model: The model, where it was passed in Python.
        """
        try:
            return self.storage.end(
                self.training.setup, self.training.state, self.training.status, model
            )
        finally:
            self.close()

    def close(self) -> None:
        """Lets go of files and processes."""
        self.engine.close()
        self.storage.close()


class Trainings:
    """Runs all trainings of a call.

    It holds those that are under way: as many as fill the kernel, so that they bound the memory.
    """

    def __init__(
        self, asked: Asked, shared: TrainingCache, on_end: Callable[[int, Trained], None]
    ) -> None:
        """Takes what was asked for; nothing begins yet.

        Args:
            asked: The trainings.
            shared: What they share.
            on_end: Called when a training has ended, with its number.
        """
        self._asked = asked
        self._shared = shared
        self._on_end = on_end
        self._threads = worker_count(asked.workers, asked.device)
        self._under_way: list[UnderWay] = []

    def run(self) -> None:
        """Begins, runs and ends all of them."""
        waiting = iter(range(len(self._asked.plans)))
        try:
            while self._begin_some(waiting) or self._under_way:
                self._run_round()
                # The list has no name here: it would keep ended trainings in memory.
                for one in self._list_ended():
                    self._under_way.remove(one)
                    self._on_end(one.number, one.end(self._asked.model))
        except KeyboardInterrupt:
            # An interrupted call continues from here when it is called again.
            for one in self._under_way:
                one.training.save()
            raise
        finally:
            for one in self._under_way:
                one.close()

    def _list_ended(self) -> list[UnderWay]:
        return [one for one in self._under_way if one.training.status != "unfinished"]

    def _begin_some(self, waiting: Iterator[int]) -> bool:
        """Begins trainings until the kernel has enough to do.

        Those that only torch can run are run whole.

        Returns:
            Whether there may be more.
        """
        while (
            len(self._under_way) < MOST
            and sum(share_of_a_call(one, self._threads) for one in self._under_way) < 1
        ):
            number = next(waiting, None)
            if number is None:
                return False
            with name_training(number):
                one = begin_training(self._asked, self._shared, number)
            if not isinstance(one, UnderWay):
                self._on_end(number, one)
            elif one.training.status == "unfinished" and isinstance(one.engine, NativeEngine):
                self._under_way.append(one)
            else:
                self._on_end(number, run_whole(one, self._asked.model))
        return True

    def _run_round(self) -> None:
        """Plays a round of every training under way; those of one kernel share its threads."""
        waiting = sorted(self._under_way, key=kernel_of)
        for _, group in groupby(waiting, key=kernel_of):
            self._run_group(list(group))

    def _run_group(self, group: list[UnderWay]) -> None:
        """Plays a round of trainings that have the same kernel."""
        engines = [one.engine for one in group if isinstance(one.engine, NativeEngine)]

        def train(tasks: Sequence[RoundTask]) -> Iterator[Upload]:
            """Trains the clients of all trainings together.

            Args:
                tasks: A round of each training.
            """
            work = list(zip(engines, tasks, strict=True))
            return pooled_uploads(work, threads=self._threads)

        rounds = [one.training.next_round() for one in group]
        for one, record in zip(group, play_rounds(rounds, train), strict=True):
            one.training.finish_round(record, one.engine.score)


def begin_training(asked: Asked, shared: TrainingCache, number: int) -> UnderWay | Trained:
    """Begins a training, or takes it up where it was left; one that has ended already is read.

    Args:
        asked: What the caller wants.
        shared: What the trainings of the call share.
        number: The training.

    Returns:
        The training under way, or what became of it before.
    """
    storage: StorageBackend
    if asked.folder is None:
        storage = MemoryBackend()
    else:
        storage = FolderBackend(asked.folder / f"{number:05d}")
    try:
        plan = storage.complete_plan(asked.plans[number])
        setup = asked.setup(plan, number, shared)
        over = storage.find_ended(setup, asked.model)
        if over is not None:
            storage.close()
            return over
        wanted = storage.engine(setup, asked.engine)
        choice = choose(setup, wanted, asked.device, shared.kernel_for)
        every = scored_every(asked.evaluate_every, setup.protocol)
        facts = run_facts(
            setup, choice, worker_count(asked.workers, asked.device), asked.device, every, keep=0
        )
        state, limits = storage.enter(setup, choice, facts, shared)
        note = partial(asked.on_round, number)
        training = Training(
            setup,
            storage.store,
            storage.ledger,
            state,
            limits=limits,
            options=TrainingOptions(evaluate_every=every, on_round=note),
        )
        engine = choice.start(setup, workers=asked.workers, device=asked.device)
        return UnderWay(
            number=number,
            storage=storage,
            engine=engine,
            training=training,
        )
    except BaseException:
        # Whatever happened, Ctrl-C included, the folder must not stay locked.
        storage.close()
        raise


def run_whole(one: UnderWay, model: ModelSource | None) -> Trained:
    """Runs a training by itself, from where it is to its end.

    Args:
        one: The training.
        model: The model, where it was passed in Python.

    Returns:
        What became of it.
    """
    try:
        one.training.run(one.engine)
        return one.end(model)
    finally:
        one.close()


def share_of_a_call(one: UnderWay, threads: int) -> float:
    """Returns how much of one call of its kernel the clients of a training fill.

    Args:
        one: The training.
        threads: How many threads the kernel has.
    """
    protocol = one.training.setup.protocol
    most = 1
    if isinstance(one.engine, NativeEngine):
        most = one.engine.count_at_once(threads)
    return max(1.0, protocol.participation.count_expected(clients=protocol.clients)) / most


def kernel_of(one: UnderWay) -> int:
    """Returns a number that trainings of the same kernel share.

    Args:
        one: The training.
    """
    if isinstance(one.engine, NativeEngine):
        return id(one.engine.kernel)
    return 0


def check_plans(protocols: Iterable[Protocol]) -> tuple[Protocol, ...]:
    """Returns the protocols, if they are protocols.

    Args:
        protocols: One for each training.

    Raises:
        UserError: A single protocol, something else among them, or one that no round can play.
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


def refuse_early(asked: Asked, shared: TrainingCache) -> None:
    """Refuses what does not fit before anything is trained.

    Args:
        asked: What the caller wants.
        shared: What the trainings of the call share.

    Raises:
        BudgetExceeded: A budget does not pay for one round.
        UserError: It names the first training that does not fit.
    """
    # Data that a function makes exist only while their training runs.
    if callable(asked.data):
        return
    seen = set()
    for number, plan in enumerate(asked.plans):
        # Of trainings that differ only in their seeds, the first represents all.
        alike = replace(plan, seed=0)
        if alike in seen:
            continue
        seen.add(alike)
        with name_training(number):
            setup = asked.setup(plan, number, shared)
            shared.limits(setup)
            choose(setup, asked.engine, asked.device, shared.kernel_for)


@contextmanager
def name_training(number: int) -> Iterator[None]:
    """Says in which training something does not fit.

    Args:
        number: The training.

    Raises:
        BudgetExceeded: As it was raised, with the number before it.
        UserError: As it was raised, with the number before it.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"training {number}: {error}") from error
    except BudgetExceeded as error:
        raise BudgetExceeded(f"training {number}: {error}") from error
