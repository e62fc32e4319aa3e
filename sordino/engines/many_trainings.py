"""`train_many`: independent trainings in one call, their clients trained together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path

from sordino.engines.choice import checked_engine, choose
from sordino.engines.homes import Home, InMemory, OnDisk
from sordino.engines.native_engine import NativeEngine, pooled_uploads
from sordino.engines.run_folders import run_facts
from sordino.engines.shared import Shared
from sordino.engines.torch_engine import TorchEngine, checked_device, worker_count
from sordino.engines.training import scored_every
from sordino.federation.data import Dataset
from sordino.federation.loop import RoundMetrics, Training
from sordino.federation.run import Trained
from sordino.federation.setup import DataSource, ModelSource, Setup, prepare
from sordino.privacy.spending import BudgetExceeded
from sordino.protocol import InvalidValue, Protocol, UserError

ManyData = DataSource | Sequence[DataSource] | Callable[[int], DataSource]

MOST = 64  # trainings under way at a time, however small: each may hold files open


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
    on_round: Callable[[int, RoundMetrics], None] = lambda number, metrics: None,
    on_end: Callable[[int, Trained], None] = lambda number, trained: None,
) -> list[Trained]:
    """Train many federations that have nothing to do with each other: seeds, settings, neighbouring data sets.

    Each ends with the model that `train` gives, bit for bit. Data and kernels are shared, and clients of many trainings are trained
    together, so that small federations keep all cores busy. What the native engine cannot run, torch runs, one after another.

    Args:
        protocols: what is run, one for each training.
        data: for all of them a name, a path or a `Dataset`; or one for each, as a sequence, or as a function of the training's number
            that is called when the training begins, so that few of the data sets need to exist at a time.
        model: a name, a module or a factory, in place of `protocol.model.name`.
        folder: where every training gets a run folder, named by its number. Called again with the same arguments, finished
            trainings are read and unfinished ones go on. By default nothing is written.
        engine: "native", "torch" or "auto", as in `train`.
        workers: as in `train`; the clients of all trainings share them.
        device: as in `train`.
        evaluate_every: as in `train`.
        on_round: called after every round, with the number of its training.
        on_end: called when a training has ended, with its number.

    Returns:
        What became of each, in the order of the protocols; with a folder they are runs.

    Raises:
        UserError: something does not fit, in which training. What is the matter with a protocol, and not with data that a function has
            still to make, is refused before anything is written.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.5))
        >>> seeds = [Protocol(seed=seed, clients=4, rounds=3, local=local, noise=Gaussian(sigma=0.01)) for seed in range(3)]
        >>> [trained.status for trained in train_many(seeds, data="digits", model="logistic")]
        ['finished', 'finished', 'finished']
    """
    if engine == "flower":
        raise UserError(
            'engine = "flower": machines run one training at a time. Use `train`, or engine = "auto", "native" or "torch".'
        )
    asked = Asked(
        plans=checked_plans(protocols),
        data=data,
        model=model,
        folder=Path(folder) if folder is not None else None,
        engine=checked_engine(engine),
        workers=workers,
        device=checked_device(device),
        evaluate_every=evaluate_every,
        on_round=on_round,
    )
    results: dict[int, Trained] = {}

    def note(number: int, trained: Trained) -> None:
        results[number] = trained
        on_end(number, trained)

    shared = Shared(model)
    refuse_early(asked, shared)
    Trainings(asked, shared, note).run()
    return [results[number] for number in range(len(asked.plans))]


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """What the caller of `train_many` wants."""

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
                f"there are {len(self.plans)} protocols and {len(self.data)} data sets; there must be as many, or one for all."
            )

    def data_of(self, number: int) -> DataSource | None:
        """The data of a training; a function makes them now."""
        if self.data is None or isinstance(self.data, (str, Dataset)):
            return self.data
        return self.data(number) if callable(self.data) else self.data[number]

    def setup(self, plan: Protocol, number: int, shared: Shared) -> Setup:
        """A training made concrete, with what it shares with others."""
        return prepare(plan, data=self.data_of(number), model=self.model, load=shared.load)


@dataclass(frozen=True, kw_only=True, eq=False)
class UnderWay:
    """A training that has begun. It holds its home and its engine until it is closed."""

    number: int
    home: Home
    engine: NativeEngine | TorchEngine
    training: Training

    def end(self, model: ModelSource | None) -> Trained:
        """What became of it."""
        try:
            return self.home.end(
                self.training.setup, self.training.state, self.training.status, model
            )
        finally:
            self.close()

    def close(self) -> None:
        """Let go of files and processes."""
        self.engine.close()
        self.home.close()


class Trainings:
    """Runs all trainings of a call. It holds those that are under way: as many as fill the kernel, so that memory is bounded by them."""

    def __init__(
        self, asked: Asked, shared: Shared, on_end: Callable[[int, Trained], None]
    ) -> None:
        self._asked, self._shared, self._on_end = asked, shared, on_end
        self._threads = worker_count(asked.workers, asked.device)
        self._under_way: list[UnderWay] = []

    def run(self) -> None:
        """Begin, run and end all of them."""
        waiting = iter(range(len(self._asked.plans)))
        try:
            while self._begin_some(waiting) or self._under_way:
                self._run_round()
                for one in [one for one in self._under_way if one.training.status != "unfinished"]:
                    self._under_way.remove(one)
                    self._on_end(one.number, one.end(self._asked.model))
        except KeyboardInterrupt:
            for one in self._under_way:
                one.training.keep()
            raise
        finally:
            for one in self._under_way:
                one.close()

    def _begin_some(self, waiting: Iterator[int]) -> bool:
        """Begin trainings until the kernel has enough to do; whether there may be more. Those that only torch can run are run whole."""
        while (
            len(self._under_way) < MOST
            and sum(share_of_a_call(one, self._threads) for one in self._under_way) < 1
        ):
            number = next(waiting, None)
            if number is None:
                return False
            with numbered(number):
                one = begun(self._asked, self._shared, number)
            if (
                isinstance(one, UnderWay)
                and one.training.status == "unfinished"
                and isinstance(one.engine, NativeEngine)
            ):
                self._under_way.append(one)
            else:
                self._on_end(
                    number, run_whole(one, self._asked.model) if isinstance(one, UnderWay) else one
                )
        return True

    def _run_round(self) -> None:
        """A round of every training under way; those that have the same kernel share its threads."""
        opened = [
            (one, one.training.open(), one.engine) for one in sorted(self._under_way, key=kernel_of)
        ]
        for _, group in groupby(opened, key=lambda entry: kernel_of(entry[0])):
            members = list(group)
            work = [
                (engine, opening)
                for _, opening, engine in members
                if isinstance(engine, NativeEngine)
            ]
            uploads = pooled_uploads(work, threads=self._threads)
            for one, opening, engine in members:
                one.training.close(
                    opening, islice(uploads, len(opening.participants)), engine.score
                )


def begun(asked: Asked, shared: Shared, number: int) -> UnderWay | Trained:
    """Begin a training, or take it up where it was left; one that has ended already is read."""
    home: Home = OnDisk(asked.folder / f"{number:05d}") if asked.folder is not None else InMemory()
    try:
        plan = home.planned(asked.plans[number])
        setup = asked.setup(plan, number, shared)
        over = home.ended_before(setup, asked.model)
        if over is not None:
            home.close()
            return over
        choice = choose(setup, home.engine(setup, asked.engine), asked.device, shared.kernel_for)
        every = scored_every(asked.evaluate_every, setup.protocol)
        facts = run_facts(
            setup, choice, worker_count(asked.workers, asked.device), asked.device, every, keep=0
        )
        state, limits = home.enter(setup, choice, facts, shared)
        note = partial(asked.on_round, number)
        training = Training(
            setup,
            home.keeping,
            home.ledger,
            state,
            limits=limits,
            evaluate_every=every,
            on_round=note,
        )
        engine = choice.start(setup, workers=asked.workers, device=asked.device)
        return UnderWay(number=number, home=home, engine=engine, training=training)
    except BaseException:
        home.close()
        raise


def run_whole(one: UnderWay, model: ModelSource | None) -> Trained:
    """Run a training by itself, from where it is to its end."""
    try:
        one.training.run(one.engine)
        return one.end(model)
    finally:
        one.close()


def share_of_a_call(one: UnderWay, threads: int) -> float:
    """How much of one call of its kernel the clients of a training fill."""
    protocol, engine = one.training.setup.protocol, one.engine
    most = engine.at_once(threads) if isinstance(engine, NativeEngine) else 1
    return max(1.0, protocol.participation.expected(clients=protocol.clients)) / most


def kernel_of(one: UnderWay) -> int:
    """Which kernel runs a training."""
    return id(one.engine.kernel) if isinstance(one.engine, NativeEngine) else 0


def checked_plans(protocols: Iterable[Protocol]) -> tuple[Protocol, ...]:
    """The protocols, if that is what they are."""
    if isinstance(protocols, Protocol):
        raise UserError(
            "protocols is a single Protocol: expected one for each training, as a list. For one training use `train`."
        )
    plans = tuple(protocols)
    for number, plan in enumerate(plans):
        if not isinstance(plan, Protocol):
            raise InvalidValue(f"protocols[{number}]", plan, "a Protocol")
    return plans


def refuse_early(asked: Asked, shared: Shared) -> None:
    """Refuse what does not fit before anything is trained. Of trainings that differ in their seed alone, the first speaks for all."""
    if callable(asked.data):
        return
    seen = set()
    for number, plan in enumerate(asked.plans):
        alike = replace(plan, seed=0)
        if alike in seen:
            continue
        seen.add(alike)
        with numbered(number):
            setup = asked.setup(plan, number, shared)
            shared.limits(setup)
            choose(setup, asked.engine, asked.device, shared.kernel_for)


@contextmanager
def numbered(number: int) -> Iterator[None]:
    """Say in which training something does not fit."""
    try:
        yield
    except UserError as error:
        raise UserError(f"training {number}: {error}") from error
    except BudgetExceeded as error:
        raise BudgetExceeded(f"training {number}: {error}") from error
