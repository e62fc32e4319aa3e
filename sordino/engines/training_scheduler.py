"""Runs the trainings of one call: as many side by side as fill the compiled kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from sordino.data import Dataset
from sordino.engines.choice import choose_engine
from sordino.engines.compiled import NativeEngine, pooled_uploads
from sordino.engines.run_folders import collect_facts
from sordino.engines.storage_backends import FolderBackend, MemoryBackend, StorageBackend
from sordino.engines.torch_engine import TorchEngine
from sordino.engines.train_one import find_scoring_interval
from sordino.engines.training_cache import TrainingCache
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.processors import worker_count
from sordino.federation.round import RoundTask, play_rounds
from sordino.federation.round_metrics import RoundMetrics
from sordino.federation.setup import Setup, prepare
from sordino.federation.store.run import Trained
from sordino.federation.training import Training, TrainingOptions
from sordino.federation.upload import Upload
from sordino.privacy.spending import BudgetExceeded
from sordino.protocol import Protocol, UserError

ManyData = DataSource | Sequence[DataSource] | Callable[[int], DataSource]

# The most trainings under way at a time, however small: each may hold files open.
MOST = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class ManyRequest:
    """Holds the arguments of `train_many`, which says what they are."""

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
            find_scoring_interval(self.evaluate_every, plan)
        if isinstance(self.data, str) or not isinstance(self.data, Sequence):
            return
        if len(self.data) != len(self.plans):
            raise UserError(
                f"there are {len(self.plans)} protocols and {len(self.data)} data sets: give one "
                "data set for each protocol, or one for all."
            )

    def data_of(self, number: int) -> DataSource | None:
        """Returns the data of a training, which are made now if `data` is a function.

        Args:
            number: The number of the training.
        """
        if self.data is None or isinstance(self.data, (str, Dataset)):
            return self.data
        if callable(self.data):
            return self.data(number)
        return self.data[number]

    def prepare_setup(self, plan: Protocol, number: int, shared: TrainingCache) -> Setup:
        """Returns the federation of a training, with its data and its model.

        Args:
            plan: The protocol of the training.
            number: The number of the training.
            shared: Data sets, prices and kernels that the trainings of the call share.
        """
        return prepare(plan, data=self.data_of(number), model=self.model, load=shared.load)


@dataclass(frozen=True, kw_only=True, eq=False)
class ActiveTraining:
    """Holds a training that has begun, with its storage and its engine, until it is closed.

    Attributes:
        number: The place of its protocol in the call.
        storage: Where the training is kept.
        engine: The engine that trains its clients.
        training: The training itself.
    """

    number: int
    storage: StorageBackend
    engine: NativeEngine | TorchEngine
    training: Training

    def end(self, model: ModelSource | None) -> Trained:
        """Returns the ended training, and closes its storage and engine.

        Args:
            model: The model, if it was passed in Python.
        """
        try:
            return self.storage.end(
                self.training.setup, self.training.state, self.training.status, model
            )
        finally:
            self.close()

    def close(self) -> None:
        """Closes files and processes."""
        self.engine.close()
        self.storage.close()


class TrainingScheduler:
    """Runs all trainings of a call.

    It holds those that are under way: no more than fill the kernel, which bounds the memory.
    """

    def __init__(
        self, request: ManyRequest, shared: TrainingCache, on_end: Callable[[int, Trained], None]
    ) -> None:
        """Takes the request; nothing begins yet.

        Args:
            request: The arguments of the call.
            shared: Data sets, prices and kernels that the trainings of the call share.
            on_end: Called with the number of a training that has ended, and its result.
        """
        self._request = request
        self._shared = shared
        self._on_end = on_end
        self._threads = worker_count(request.workers, request.device)
        self._under_way: list[ActiveTraining] = []

    def run(self) -> None:
        """Begins, runs and ends all trainings."""
        waiting = iter(range(len(self._request.plans)))
        try:
            while self._begin_some(waiting) or self._under_way:
                self._run_round()
                # The list is bound to no name, which would keep ended trainings in memory.
                for one in self._list_ended():
                    self._under_way.remove(one)
                    self._on_end(one.number, one.end(self._request.model))
        except KeyboardInterrupt:
            # An interrupted call continues from here when it is called again.
            for one in self._under_way:
                one.training.save()
            raise
        finally:
            for one in self._under_way:
                one.close()

    def _list_ended(self) -> list[ActiveTraining]:
        return [one for one in self._under_way if one.training.status != "unfinished"]

    def _begin_some(self, waiting: Iterator[int]) -> bool:
        """Begins trainings until the kernel has enough to do.

        Trainings that only torch can run are run to their end.

        Returns:
            Whether some may still be waiting.
        """
        while (
            len(self._under_way) < MOST
            and sum(measure_call_share(one, self._threads) for one in self._under_way) < 1
        ):
            number = next(waiting, None)
            if number is None:
                return False
            with name_training(number):
                one = begin_training(self._request, self._shared, number)
            if not isinstance(one, ActiveTraining):
                self._on_end(number, one)
            elif one.training.status == "unfinished" and isinstance(one.engine, NativeEngine):
                self._under_way.append(one)
            else:
                self._on_end(number, run_whole(one, self._request.model))
        return True

    def _run_round(self) -> None:
        """Plays a round of every training under way; trainings of one kernel share its threads."""
        waiting = sorted(self._under_way, key=find_kernel_id)
        for _, group in groupby(waiting, key=find_kernel_id):
            self._run_group(list(group))

    def _run_group(self, group: list[ActiveTraining]) -> None:
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


def begin_training(
    request: ManyRequest, shared: TrainingCache, number: int
) -> ActiveTraining | Trained:
    """Begins a training or resumes an unfinished one; one that has ended already is read.

    Args:
        request: The arguments of the call.
        shared: Data sets, prices and kernels that the trainings of the call share.
        number: The number of the training.

    Returns:
        The training under way, or the one that had ended before the call.
    """
    storage: StorageBackend
    if request.folder is None:
        storage = MemoryBackend()
    else:
        storage = FolderBackend(request.folder / f"{number:05d}")
    try:
        plan = storage.complete_plan(request.plans[number])
        setup = request.prepare_setup(plan, number, shared)
        over = storage.find_ended(setup, request.model)
        if over is not None:
            storage.close()
            return over
        wanted = storage.choose_engine(setup, request.engine)
        choice = choose_engine(setup, wanted, request.device, shared.kernel_for)
        every = find_scoring_interval(request.evaluate_every, setup.protocol)
        facts = collect_facts(
            setup,
            choice,
            worker_count(request.workers, request.device),
            request.device,
            every,
            keep=0,
        )
        state, limits = storage.enter(setup, choice, facts, shared)
        note = partial(request.on_round, number)
        training = Training(
            setup,
            storage.store,
            storage.ledger,
            state,
            limits=limits,
            options=TrainingOptions(evaluate_every=every, on_round=note),
        )
        engine = choice.start(setup, workers=request.workers, device=request.device)
        return ActiveTraining(
            number=number,
            storage=storage,
            engine=engine,
            training=training,
        )
    except BaseException:
        # Whatever was raised, Ctrl-C included, the folder must not stay locked.
        storage.close()
        raise


def run_whole(one: ActiveTraining, model: ModelSource | None) -> Trained:
    """Runs a training alone, from its present round to its end.

    Args:
        one: The training.
        model: The model, if it was passed in Python.

    Returns:
        The ended training.
    """
    try:
        one.training.run(one.engine)
        return one.end(model)
    finally:
        one.close()


def measure_call_share(one: ActiveTraining, threads: int) -> float:
    """Returns the share of one call of its kernel that the clients of a training fill.

    Args:
        one: The training.
        threads: The number of threads of the kernel.
    """
    protocol = one.training.setup.protocol
    most = 1
    if isinstance(one.engine, NativeEngine):
        most = one.engine.count_at_once(threads)
    return max(1.0, protocol.participation.count_expected(clients=protocol.clients)) / most


def find_kernel_id(one: ActiveTraining) -> int:
    """Returns a number that is the same for trainings of the same kernel.

    Args:
        one: The training.
    """
    if isinstance(one.engine, NativeEngine):
        return id(one.engine.kernel)
    return 0


@contextmanager
def name_training(number: int) -> Iterator[None]:
    """Puts the number of a training before the message of an error.

    Args:
        number: The number of the training.

    Raises:
        BudgetExceeded: A budget does not pay for the training.
        UserError: Something else does not fit.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"training {number}: {error}") from error
    except BudgetExceeded as error:
        raise BudgetExceeded(f"training {number}: {error}") from error
