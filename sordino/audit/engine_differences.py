"""How far an engine's rounds are from the game's rows, upload by upload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sordino.audit.round_table import RoundTable
from sordino.federation.round import RoundRecord
from sordino.federation.setup import Setup
from sordino.federation.upload import read_sent_model

# Difference that rounding may make, relative to the largest value: a few hundred units in the last
# place of float32.
ROUNDED = 5e-5


@dataclass(frozen=True, kw_only=True)
class EngineSample:
    """Trainings on one data set that one engine repeats.

    Attributes:
        engine: Which engine.
        side: The data set (0) or its neighbour (1).
        trainings: Their numbers.
        start: The first round that is repeated.
        rounds: How many rounds are.
        workers: Workers of the engine.
    """

    engine: str
    side: int
    trainings: range
    start: int
    rounds: int
    workers: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """Holds what came of a sample.

    Attributes:
        sample: What was repeated.
        largest: The largest difference.
        round: The first round with a difference that rounding does not explain; -1 if there is
            none.
        place: Where that is, in words.
        noise: The remainder of the uploads without their means.
        strays: How far released values are from what noisy ones make.
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
) -> Compared:
    """Holds what an engine made against the game's rows, round by round.

    Args:
        setup: The federation.
        sample: What was repeated.
        rows: The game's rounds.
        made: The engine's rounds, one list per training.
    """
    found = Compared(sample=sample, largest=0.0)
    for t, row in enumerate(rows):
        for n, rounds in enumerate(made):
            if t < len(rounds):
                apart = list_differences(setup, sample, row, n, rounds[t])
                found = join_differences(found, apart, t)
    return found


def join_differences(
    found: Compared, seen: Iterator[tuple[float, str]], round_index: int
) -> Compared:
    """Joins the differences of one more round to those before.

    Args:
        found: The largest difference so far, and the first place that rounding does not explain.
        seen: The differences of the round, with their places.
        round_index: Number of the round, from 0.
    """
    for apart, place in seen:
        if apart > ROUNDED and found.round < 0:
            # The first place that rounding does not explain: later ones follow from it.
            found = replace(found, round=round_index, place=place)
        found = replace(found, largest=max(found.largest, apart))
    return found


def list_differences(
    setup: Setup,
    sample: EngineSample,
    row: RoundTable,
    n: int,
    made: RoundRecord,
) -> Iterator[tuple[float, str]]:
    """Yields how far every upload and the next model are from the game's, with words for each.

    Args:
        setup: The federation.
        sample: What was repeated.
        row: The round as the game played it.
        n: The row of the training.
        made: The round as the engine made it.
    """
    where = f"round {row.round} of training {sample.trainings[n]}"
    engine = f"engine {sample.engine}"
    present = tuple(np.flatnonzero(row.present[n]).tolist())
    asked = tuple(made.task.participants.tolist())
    uploads = {upload.client: upload.vector for upload in made.uploads}
    if asked != present or tuple(uploads) != present:
        yield np.inf, f"{engine}, {where}: clients {asked} took part, not {present}"
        return
    before = largest_of(row.before[n])
    for client, vector in uploads.items():
        sent = read_sent_model(setup, client, row.before[n], vector)
        apart = relative_difference(sent, row.uploads[client, n], before)
        yield (
            apart,
            f"{engine}, client {client}, {where}: its upload is {apart:.3g} of its size away",
        )
    apart = relative_difference(made.after.weights, row.after[n], before)
    yield apart, f"{engine}, {where}: the server's model is {apart:.3g} of its size away"


def largest_of(values: np.ndarray) -> float:
    """Returns the largest finite value, regardless of its sign.

    Args:
        values: Any numbers.
    """
    finite = values[np.isfinite(values)]
    return float(np.abs(finite, dtype=np.float64).max(initial=0.0))


def relative_difference(found: np.ndarray, expected: np.ndarray, least: float) -> float:
    """Returns the largest difference over the largest value.

    Args:
        found: What the engine made.
        expected: What the game made.
        least: The smallest size that a difference is relative to.

    Returns:
        The quotient; infinite where only one of the two is finite.

    Example:
        >>> relative_difference(np.array([2.0, 1.5]), np.array([2.0, 1.0]), 5.0)
        0.1
    """
    if found.shape != expected.shape or not np.array_equal(
        np.isfinite(found), np.isfinite(expected)
    ):
        return float("inf")
    both = np.isfinite(found)
    apart = largest_of(found[both].astype(np.float64) - expected[both])
    return apart / (max(largest_of(expected), least) or 1.0)
