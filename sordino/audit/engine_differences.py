"""Measures how far an engine's rounds are from the game's rows, upload by upload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sordino.audit.round_table import RoundTable
from sordino.federation.round import RoundRecord
from sordino.federation.setup import Setup
from sordino.federation.upload import read_sent_model

# The largest difference, relative to the largest value, that rounding explains: a few hundred units
# in the last place of float32.
ROUNDED = 5e-5


@dataclass(frozen=True, kw_only=True)
class EngineSample:
    """Trainings on one data set that one engine repeats.

    Attributes:
        engine: The name of the engine.
        side: 0 for the data set, 1 for its neighbour.
        trainings: The numbers of the trainings.
        start: The first round that is repeated.
        rounds: How many rounds are repeated.
        workers: How many processes or threads the engine has.
    """

    engine: str
    side: int
    trainings: range
    start: int
    rounds: int
    workers: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """The outcome of comparing a sample with the game's rows.

    Attributes:
        sample: The trainings that were repeated.
        largest: The largest difference, relative to the largest value.
        round: The first round with a difference that rounding does not explain; -1 if there is
            none.
        place: The engine, client and round of that difference, in words.
        noise: The noise of the engine's uploads (see `replay`).
        strays: How far released values are from those that follow from noisy ones
            (`Replay.strays`).
    """

    sample: EngineSample
    largest: float
    round: int = -1
    place: str = ""
    noise: np.ndarray | None = None
    strays: np.ndarray | None = None


def compare_sample(
    setup: Setup,
    sample: EngineSample,
    rows: Sequence[RoundTable],
    made: Sequence[list[RoundRecord]],
    first: int,
) -> Compared:
    """Compares an engine's rounds with the game's rows.

    Args:
        setup: The federation.
        sample: The trainings that were repeated.
        rows: The game's rounds.
        made: The engine's rounds, one list per training.
        first: The row of the first training.
    """
    found = Compared(sample=sample, largest=0.0)
    for t, row in enumerate(rows):
        for n, rounds in enumerate(made, first):
            if t < len(rounds):
                training = sample.trainings[n - first]
                differences = list_differences(setup, sample.engine, training, row, n, rounds[t])
                found = add_differences(found, differences, t)
    return found


def add_differences(
    found: Compared, differences: Iterator[tuple[float, str]], round_index: int
) -> Compared:
    """Returns the outcome with the differences of one more round.

    Args:
        found: The outcome of the rounds before.
        differences: The differences of the round, with their places.
        round_index: The number of the round, from 0.
    """
    for apart, place in differences:
        if apart > ROUNDED and found.round < 0:
            # Only the first place is named: later differences follow from it.
            found = replace(found, round=round_index, place=place)
        found = replace(found, largest=max(found.largest, apart))
    return found


def list_differences(
    setup: Setup,
    name: str,
    training: int,
    row: RoundTable,
    n: int,
    made: RoundRecord,
) -> Iterator[tuple[float, str]]:
    """Yields how far every upload and the next model are from the game's, with words for each.

    Args:
        setup: The federation.
        name: Which engine.
        training: The number of the training.
        row: The round as the game played it.
        n: The row of the training.
        made: The round as the engine played it.
    """
    where = f"round {row.round} of training {training}"
    engine = f"engine {name}"
    present = tuple(np.flatnonzero(row.present[n]).tolist())
    asked = tuple(made.task.participants.tolist())
    uploads = {upload.client: upload.vector for upload in made.uploads}
    if asked != present or tuple(uploads) != present:
        yield np.inf, f"{engine}, {where}: clients {asked} took part, not {present}"
        return
    before = find_largest(row.before[n])
    for client, vector in uploads.items():
        sent = read_sent_model(setup, client, row.before[n], vector)
        apart = measure_difference(sent, row.uploads[client, n], before)
        yield (
            apart,
            f"{engine}, client {client}, {where}: its upload is {apart:.3g} of its size away",
        )
    apart = measure_difference(made.after.weights, row.after[n], before)
    yield apart, f"{engine}, {where}: the server's model is {apart:.3g} of its size away"


def find_largest(values: np.ndarray) -> float:
    """Returns the largest absolute value of the finite ones; 0 if there are none.

    Args:
        values: Any numbers.
    """
    finite = values[np.isfinite(values)]
    return float(np.abs(finite, dtype=np.float64).max(initial=0.0))


def measure_difference(found: np.ndarray, expected: np.ndarray, least: float) -> float:
    """Returns the largest difference over the largest value.

    Args:
        found: The values of the engine.
        expected: The values of the game.
        least: The smallest value that a difference is divided by.

    Returns:
        The quotient; infinite if some value is finite in only one of the two.

    Example:
        >>> measure_difference(np.array([2.0, 1.5]), np.array([2.0, 1.0]), 5.0)
        0.1
    """
    finite = np.isfinite(found)
    if found.shape != expected.shape or not np.array_equal(finite, np.isfinite(expected)):
        return float("inf")
    apart = find_largest(found[finite].astype(np.float64) - expected[finite])
    return apart / (max(find_largest(expected), least) or 1.0)
