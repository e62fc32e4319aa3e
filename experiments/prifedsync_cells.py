"""The trainings that PriFedSync's tables and figures are made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice

import numpy as np

from experiments.cells import spell_value
from sordino import Constant, Data, Gaussian, Interpolate, Model, NoisySgd, Poisson, Protocol
from sordino.engines.choice import choose_engine
from sordino.federation.own_models import OwnModelScorer
from sordino.federation.round import play_training
from sordino.federation.setup import Setup, prepare
from sordino.papers.prifedsync_tables import PRINTED, PrintedRow
from sordino.protocol import Decay, Dirichlet, Schedule, Shards

# Mean accuracies of personal models at which the paper counts rounds.
TARGETS = {"mnist": 0.90, "cifar10": 0.52}
# The rate that the paper states, and the one by which LeNet-5 reaches 90 % within its rounds.
RATES = {
    ("mnist", "prifedsync-mnist"): 0.001,
    ("mnist", "lenet5"): 0.003,
    ("cifar10", "prifedsync-cifar"): 0.005,
    ("cifar10", "lenet5"): 0.005,
}
# The sizes of a quick look.
QUICK_ROUNDS = 10
QUICK_CELLS = 3
# A training that has not reached its target after this multiple of the paper's rounds is given up.
PATIENCE = 2.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training.

    Attributes:
        data: "mnist" or "cifar10".
        model: Of the registry.
        probability: Of taking part in a round.
        sigma: Of the noise, over the sensitivity of a step's sum; 0 without noise.
        batch: Distinct records in a step.
        steps: In a round.
        rounds: How many there are at most; a private training ends when it reaches its target.
        seed: Of the training.
    """

    data: str
    model: str
    probability: float
    sigma: float
    batch: int = 16
    steps: int = 38
    rounds: int = 0
    seed: int = 1


KEY = tuple(field.name for field in fields(Cell))


def make_protocol(cell: Cell) -> Protocol:
    """Returns the protocol of a cell (sections 4.1 and 4.2).

    Args:
        cell: The cell.
    """
    rate = RATES[cell.data, cell.model]
    schedule: Schedule = Constant(rate=rate)
    decay = 0.0
    data = Data(name="mnist", partition=Shards(per_client=4), records=600)
    if cell.data == "cifar10":
        # A hundredth less every ten epochs.
        schedule = Decay(rate=rate, factor=0.99, every=10 * cell.steps)
        decay = 0.0005
        data = Data(name="cifar10", partition=Dirichlet(beta=0.5), records=500)
    rule = NoisySgd(
        steps=cell.steps,
        batch=cell.batch,
        clip=1.0,
        schedule=schedule,
        optimizer="adam",
        weight_decay=decay,
    )
    return Protocol(
        seed=cell.seed,
        clients=100,
        rounds=cell.rounds,
        participation=Poisson(rate=cell.probability),
        personalization=Interpolate(alpha=0.1),
        local=rule,
        noise=Gaussian(multiplier=cell.sigma),
        data=data,
        model=Model(name=cell.model),
    )


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The accuracy of models, round by round.

    Attributes:
        rounds: After which the models were scored.
        own: Mean accuracy of clients' personal models.
        worst: The lowest of them.
        shared: Mean accuracy of the global model on the same records.
        seconds: Of processor time.
    """

    rounds: list[int]
    own: list[float]
    worst: list[float]
    shared: list[float]
    seconds: float


def trace_cell(cell: Cell, every: int) -> Trace:
    """Trains a cell, until its personal models reach the target where it is private.

    Args:
        cell: The cell.
        every: Rounds between two scores.
    """
    # Not `train`: a training ends here when its personal models are good enough.
    began = time.process_time()
    setup: Setup = prepare(make_protocol(cell))
    scorer = OwnModelScorer(setup)
    trace = Trace(rounds=[], own=[], worst=[], shared=[], seconds=0.0)
    with choose_engine(setup, "auto").start(setup, workers=None, device="cpu") as work:
        for done, record in enumerate(play_training(setup, work, cell.rounds), start=1):
            if done % every != 0 and done != cell.rounds:
                continue
            scores = scorer.score(record.after)
            trace.rounds.append(done)
            trace.own.append(scores.mean)
            trace.worst.append(scores.worst)
            trace.shared.append(scorer.score(replace(record.after, clients={})).mean)
            if cell.sigma > 0 and scores.mean >= TARGETS[cell.data]:
                break
    return replace(trace, seconds=time.process_time() - began)


def cell_of(row: PrintedRow, model: str) -> Cell:
    """Returns the training of a printed row.

    Args:
        row: Of the paper's tables.
        model: Of the registry.
    """
    return Cell(
        data="cifar10" if row.table == 3 else "mnist",
        model=model,
        probability=row.probability,
        sigma=row.sigma,
        batch=row.batch,
        steps=row.steps,
        rounds=round(PATIENCE * row.rounds),
    )


def list_table(number: int, model: str) -> Iterator[Cell]:
    """Yields the trainings of a table's private columns, then those without noise.

    One training without noise serves all rows of the same participation and batch: it is read after
    the rounds that a row took.

    Args:
        number: Of the table.
        model: Of the registry.
    """
    cells = [cell_of(row, model) for row in PRINTED if row.table == number]
    yield from cells
    for probability, batch in dict.fromkeys((cell.probability, cell.batch) for cell in cells):
        alike = [one for one in cells if (one.probability, one.batch) == (probability, batch)]
        yield replace(alike[0], sigma=0.0, rounds=max(one.rounds for one in alike))


def own_network(data: str, lenet: bool) -> str:
    """Returns the model that an experiment trains.

    Args:
        data: "mnist" or "cifar10".
        lenet: Whether LeNet-5 takes the place of the paper's network.
    """
    if lenet:
        return "lenet5"
    return {"mnist": "prifedsync-mnist", "cifar10": "prifedsync-cifar"}[data]


# The cells of tables; Figures 1, 2 and 5 are of Tables 1 and 2, Figures 3 and 6b of Table 3.
EXPERIMENTS: dict[str, Callable[[bool], Iterator[Cell]]] = {
    "table-1": lambda lenet: list_table(1, own_network("mnist", lenet)),
    "table-2": lambda lenet: list_table(2, own_network("mnist", lenet)),
    "table-3": lambda lenet: list_table(3, own_network("cifar10", lenet)),
}


def list_cells(names: Sequence[str], seeds: int, quick: bool, lenet: bool = True) -> Iterator[Cell]:
    """Yields the cells of experiments, each once, all of one seed before any of the next.

    Args:
        names: Of `EXPERIMENTS`.
        seeds: How many.
        quick: Whether a few rounds of the first cells are enough.
        lenet: Whether LeNet-5 takes the place of the paper's networks.
    """
    for seed in range(1, 1 + (1 if quick else seeds)):
        # Rows that two tables share are trained once.
        cells = dict.fromkeys(cell for name in names for cell in EXPERIMENTS[name](lenet))
        if quick:
            cells = dict.fromkeys(replace(cell, rounds=QUICK_ROUNDS) for cell in cells)
        for cell in islice(cells, QUICK_CELLS if quick else None):
            yield replace(cell, seed=seed)


def read_key(cell: Cell) -> tuple[str, ...]:
    """Returns the values that identify a cell, as they are written in the file.

    Args:
        cell: The cell.
    """
    return tuple(spell_value(getattr(cell, name)) for name in KEY)


def find_reached(rounds: Sequence[int], own: Sequence[float], target: float) -> int | None:
    """Returns the first scored round in which personal models reached a target, or None.

    Args:
        rounds: After which they were scored.
        own: Their mean accuracies.
        target: What they have to reach.

    Example:
        >>> find_reached([5, 10, 15], [0.7, 0.91, 0.9], 0.9)
        10
    """
    reached = np.flatnonzero(np.asarray(own) >= target)
    return int(rounds[reached[0]]) if len(reached) > 0 else None
