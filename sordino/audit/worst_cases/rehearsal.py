"""Rehearsals: cheap trainings that choose among candidates for a worst case.

A rehearsal has two clients, the attacked one and one for all others, and the noise of a mean is one
draw. Reported numbers come from other trainings, in which every client draws its noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from scipy.stats import norm

from sordino.audit.worst_cases.neighbours import Pair, PairRequest
from sordino.engines.table_engine import TableEngine
from sordino.federation.aggregation.joining import upload_weights
from sordino.federation.round import RoundTask, play_training
from sordino.federation.setup import Setup
from sordino.federation.upload import Upload
from sordino.mechanisms import mechanism_of
from sordino.protocol import Direct, Everyone, Gaussian, Mean

# The number of trainings of a rehearsal on each data set.
REHEARSALS = 2000


def shrink_request(request: PairRequest) -> PairRequest:
    """Returns the request for a federation of two clients without noise.

    The attacked client keeps its weight in the mean, the second client has the weight of all
    others, and both take part in every round.

    Args:
        request: The protocol and the adversary.
    """
    protocol = request.protocol
    sizes = request.sizes
    own = sizes[request.attacked]
    others = (len(sizes) - 1) * own
    if protocol.aggregation.weighs_records:
        others = sum(sizes) - own
    held = (own, others) if others > 0 else (own,)
    rehearsal = replace(
        protocol,
        clients=len(held),
        participation=Everyone(),
        channel=Direct(),
        client=(),
        penalty=False,
        privacy=replace(protocol.privacy, budget=None),
        aggregation=Mean(mixing=protocol.aggregation.mixing, weights="records"),
        noise=Gaussian(sigma=0.0),
    )
    return replace(
        request,
        protocol=rehearsal,
        sizes=held,
        caps={},
        attacked=0,
    )


def find_mean_deviation(request: PairRequest) -> float:
    """Returns the standard deviation of the clients' noise in a mean of all uploads.

    Args:
        request: The protocol and the adversary.
    """
    shares = upload_weights(request.protocol.aggregation, np.asarray(request.sizes))
    deviation = mechanism_of(request.protocol.noise).deviation
    return deviation * float(np.linalg.norm(shares / shares.sum()))


class RehearsalEngine:
    """Trains a table of trainings without noise, and adds the noise of a mean in one draw.

    It holds a random generator.
    """

    def __init__(self, setup: Setup, trainings: range, spread: float) -> None:
        """Makes the rows.

        Args:
            setup: A federation whose clients add no noise.
            trainings: The numbers of the trainings.
            spread: The standard deviation of the noise of a mean.
        """
        self._table = TableEngine(setup, trainings)
        self._spread = spread * float(setup.sizes.sum() / setup.sizes[0])
        # Both sides of a pair draw the same noise, so that even a small difference shows.
        self._generator = np.random.default_rng(1)

    @property
    def absent(self) -> Mapping[int, str]:
        """Nobody: clients that are simulated always answer."""
        return {}

    def train(self, task: RoundTask) -> Iterator[Upload]:
        """Yields the uploads of the clients, the first one's with the noise of all.

        Args:
            task: The round, with its participants.
        """
        for upload in self._table.train(task):
            if upload.client > 0:
                yield upload
                continue
            noise = self._spread * self._generator.standard_normal(upload.vector.shape)
            yield replace(upload, vector=upload.vector + noise)


def rehearse_pair(pair: Pair, rounds: int, spread: float) -> float:
    """Returns how well the two last models can be told apart, as a Gaussian parameter.

    Args:
        pair: Two neighbouring federations whose clients add no noise.
        rounds: The number of rounds that are trained.
        spread: The standard deviation of the noise of a mean.
    """
    ends = []
    trainings = range(REHEARSALS)
    for setup in (pair.zero, pair.one):
        engine = RehearsalEngine(setup, trainings, spread)
        for record in play_training(setup, engine, rounds, trainings=trainings):
            last = record.after.weights
        ends.append(last.sum(axis=1, dtype=np.float64))
    apart = abs((ends[1] - ends[0]).mean())
    deviation = max(ends[0].std(), 1e-300)
    distance = float(apart / deviation)
    if distance < 1:
        return distance
    # Models that were driven far apart are no longer normal.
    return measure_balanced_mu(ends[0], ends[1])


def measure_balanced_mu(zero: np.ndarray, one: np.ndarray) -> float:
    """Returns the Gaussian parameter of the threshold test that errs equally often on both sides.

    Args:
        zero: A sample on the data set.
        one: A sample on its neighbour.

    Example:
        >>> round(measure_balanced_mu(np.arange(100.0), np.arange(100.0) + 50.0), 2)
        1.35
    """
    sign = 1.0 if one.mean() >= zero.mean() else -1.0
    thresholds = np.quantile(np.concatenate([zero, one]), np.linspace(0.02, 0.98, 97))
    thresholds = np.sort(sign * thresholds)
    missed = np.searchsorted(np.sort(sign * one), thresholds) / len(one)
    alarms = 1 - np.searchsorted(np.sort(sign * zero), thresholds) / len(zero)
    errors = np.maximum(missed, alarms).min()
    # A sample shows no rate smaller than one error in its size.
    shown = max(errors, 1 / len(zero))
    return float(-2 * norm.ppf(shown))
