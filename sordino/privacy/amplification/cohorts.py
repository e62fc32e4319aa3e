"""Laws of who else is in a round, and of when a record is first used in it.

The mixtures of docs/theory.md#a10 and #a11 are made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sordino.privacy.curves import checks
from sordino.privacy.curves.combinatorics import log_binomial, log_choose
from sordino.privacy.curves.mixtures import GaussianMixtureCurve, compose_mixtures, mix_gaussians
from sordino.privacy.curves.round_family import FEW, RoundFamily
from sordino.protocol import Everyone, FixedSize, Participation, Poisson, Registry, UserError

# Probability below which a number of participants is counted as the worst one.
_NEGLIGIBLE = 1e-20


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Whether the attacked client takes part in a round, and with how many honest clients.

    Its noise is averaged with that of the other honest participants. The server sees every upload
    by itself: `Cohort.alone`.

    Attributes:
        probability: The probability that the attacked client takes part.
        counts: The possible numbers of honest participants, itself included, given that it does.
        masses: The probability of each number.

    Example:
        >>> [round(mass, 9) for mass in Cohort.poisson(clients=3, rate=0.5).masses]
        [0.25, 0.5, 0.25]
    """

    probability: float
    counts: tuple[float, ...]
    masses: tuple[float, ...]

    @classmethod
    def everyone(cls, *, clients: int, colluding: int = 0) -> Cohort:
        """Returns the cohort of all clients, `colluding` of which know their own noise.

        Args:
            clients: The number of clients of the federation.
            colluding: The number of clients who know their own noise.

        Returns:
            A cohort of one size.

        Example:
            >>> Cohort.everyone(clients=50, colluding=1).counts
            (49,)
        """
        _check_colluders(clients, colluding)
        return cls(probability=1.0, counts=(clients - colluding,), masses=(1.0,))

    @classmethod
    def poisson(cls, *, clients: int, rate: float, colluding: int = 0) -> Cohort:
        """Returns the cohort when each client takes part with probability `rate`.

        There are 1 + Bin(m - 1 - k, rate) honest participants (docs/theory.md#a10).

        Args:
            clients: The number m of clients of the federation.
            rate: The probability that a client takes part.
            colluding: The number k of clients who know their own noise.

        Returns:
            A cohort of random size.

        Example:
            >>> Cohort.poisson(clients=50, rate=0.1, colluding=49).counts
            (1,)
        """
        _check_colluders(clients, colluding)
        checks.require_probability(rate=rate)
        others = clients - 1 - colluding
        counts = np.arange(others + 1)
        return cls._from_logs(rate, 1 + counts, log_binomial(others, rate))

    @classmethod
    def fixed(cls, *, clients: int, size: int, colluding: int = 0) -> Cohort:
        """Returns the cohort when `size` clients take part, drawn uniformly.

        There are 1 + a hypergeometric number of honest participants, with probability size / m.

        Args:
            clients: The number m of clients of the federation.
            size: Number of participants.
            colluding: The number of clients who know their own noise.

        Returns:
            A cohort whose size depends on how many colluding clients are drawn.

        Example:
            >>> drawn = Cohort.fixed(clients=10, size=4)
            >>> drawn.counts, drawn.probability
            ((4,), 0.4)
        """
        _check_colluders(clients, colluding)
        checks.require_whole(at_least=1, size=size)
        if size > clients:
            raise UserError(f"size = {size}: expected at most the {clients} clients.")
        honest = clients - 1 - colluding
        counts = np.arange(max(0, size - 1 - colluding), min(honest, size - 1) + 1)
        logs = (
            log_choose(honest, counts)
            + log_choose(colluding, size - 1 - counts)
            - log_choose(clients - 1, np.array(size - 1))
        )
        return cls._from_logs(size / clients, 1 + counts, logs)

    def alone(self) -> Cohort:
        """Returns the same draws where each upload is seen: no other client's noise helps.

        Example:
            >>> Cohort.fixed(clients=10, size=4).alone().counts
            (1,)
        """
        return Cohort(probability=self.probability, counts=(1,), masses=(1.0,))

    @classmethod
    def _from_logs(cls, probability: float, counts: np.ndarray, logs: np.ndarray) -> Cohort:
        """Returns a cohort whose improbable counts join the smallest, where noise is weakest."""
        masses = np.exp(logs - np.logaddexp.reduce(logs))
        kept = masses > _NEGLIGIBLE
        kept[0] = True
        masses[0] += masses[~kept].sum()
        return cls(
            probability=float(probability),
            counts=tuple(counts[kept].tolist()),
            masses=tuple(masses[kept].tolist()),
        )


COHORTS: Registry[Callable[[Any, int, int], Cohort]] = Registry(
    "law of who takes part", "participation", Participation
)


def find_cohort_law(rule: Participation, *, clients: int, colluding: int = 0) -> Cohort:
    """Returns who takes part in a round with the attacked client, by a protocol's participation.

    Args:
        rule: The participation of the protocol.
        clients: The number of clients of the federation.
        colluding: The number of clients who know their own noise.

    Returns:
        The law of the honest participants.

    Example:
        >>> find_cohort_law(FixedSize(size=4), clients=10).counts
        (4,)
    """
    return COHORTS.of(rule)(rule, clients, colluding)


@COHORTS.register(Everyone)
def _everyone(rule: Everyone, clients: int, colluding: int) -> Cohort:
    return Cohort.everyone(clients=clients, colluding=colluding)


@COHORTS.register(Poisson)
def _poisson(rule: Poisson, clients: int, colluding: int) -> Cohort:
    return Cohort.poisson(clients=clients, rate=rule.rate, colluding=colluding)


@COHORTS.register(FixedSize)
def _fixed_size(rule: FixedSize, clients: int, colluding: int) -> Cohort:
    return Cohort.fixed(clients=clients, size=rule.size, colluding=colluding)


def first_use(*, batch: int, records: int, steps: int) -> np.ndarray:
    """Returns the probability that a record is first drawn at each step of a round.

    (B/n)(1 - B/n)^k for k = 0, ..., K - 1, which sum to less than 1. Every step draws distinct
    records, fresh and independent of the data (docs/theory.md#a11).

    Args:
        batch: B, records that a step draws.
        records: n, records of the client.
        steps: K, steps of a round.

    Example:
        >>> first_use(batch=1, records=2, steps=3).tolist()
        [0.5, 0.25, 0.125]
    """
    checks.require_whole(
        at_least=1,
        batch=batch,
        records=records,
        steps=steps,
    )
    if batch > records:
        raise UserError(
            f"batch = {batch}: expected at most the {records} records, "
            "since a step draws distinct ones."
        )
    rate = batch / records
    return rate * (1 - rate) ** np.arange(steps)


def round_curve(
    shifts: float | Iterable[float],
    *,
    sigma: float,
    cohort: Cohort,
    use: Iterable[float] | None = None,
) -> GaussianMixtureCurve:
    """Returns the curve of a round with a random shift under the noise of a random cohort.

    Args:
        shifts: How far the upload can move: one number, or one for every step at which the record
            may be used first (`sensitivity.first_used`).
        sigma: The standard deviation of each participant's noise.
        cohort: The honest participants.
        use: The probability of each of the shifts, such as `first_use`; with the rest nothing
            moves. None where the shift is certain.

    Example:
        >>> cohort = Cohort.poisson(clients=50, rate=0.1)
        >>> round(round_curve(1.0, sigma=1.0, cohort=cohort).repeat(10).epsilon(1e-4), 2)
        2.72
    """
    moved = checks.read_vector("shifts", [shifts] if isinstance(shifts, (int, float)) else shifts)
    used = np.ones(1) if use is None else checks.read_vector("use", use)
    checks.require_nonnegative(sigma=sigma)
    if used.size != moved.size or used.sum() > 1 + 1e-9:
        raise UserError("use: expected one probability for each shift, summing to at most 1.")
    with np.errstate(divide="ignore", invalid="ignore"):
        mus = np.divide.outer(moved / sigma, np.sqrt(np.array(cohort.counts, dtype=float)))
    # No shift stays hidden without noise.
    mus = np.where(np.isnan(mus), 0.0, mus)
    masses = cohort.probability * np.multiply.outer(used, np.array(cohort.masses))
    # With the rest of the mass the client is absent, and nothing moves.
    absent = max(0.0, 1 - float(masses.sum()))
    return mix_gaussians(
        [0.0, *mus.ravel().tolist()],
        [absent, *masses.ravel().tolist()],
    )


def rounds_curve(
    shifts: np.ndarray,
    counts: np.ndarray,
    *,
    sigma: float,
    cohort: Cohort,
    use: np.ndarray | None = None,
) -> GaussianMixtureCurve:
    """Returns the composition of rounds as in `round_curve`.

    Args:
        shifts: How far the upload can move, one row per round.
        counts: How often each round occurs.
        sigma: The standard deviation of each participant's noise.
        cohort: The honest participants.
        use: The probability of each column of `shifts`; None for a single, certain one.

    Example:
        >>> shifts = np.array([[1.0], [0.5]])
        >>> pair = Cohort.everyone(clients=2)
        >>> curve = rounds_curve(shifts, np.array([1, 4]), sigma=1.0, cohort=pair)
        >>> round(curve.epsilon(1e-5), 3)  # mu = 1
        4.377
    """
    used = np.ones(1) if use is None else use
    return _compose_rounds(
        shifts.tobytes(),
        shifts.shape,
        counts.astype(np.int64).tobytes(),
        sigma,
        cohort,
        used.tobytes(),
    )


# Views ask for the same curve, and a curve remembers its sums; a cache needs bytes, not arrays.
@lru_cache(maxsize=32)
def _compose_rounds(
    shifts: bytes,
    shape: tuple[int, int],
    counts: bytes,
    sigma: float,
    cohort: Cohort,
    use: bytes,
) -> GaussianMixtureCurve:
    """Returns `rounds_curve` of arrays given as bytes."""
    rows = np.frombuffer(shifts).reshape(shape)
    often = np.frombuffer(counts, dtype=np.int64)
    used = np.frombuffer(use)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        squares = (rows / sigma) ** 2
        finite = bool(np.isfinite(squares / min(cohort.counts)).all())
    if len(rows) <= FEW or not finite:
        curves = (round_curve(row, sigma=sigma, cohort=cohort, use=used) for row in rows)
        return compose_mixtures(
            [curve.repeat(count) for curve, count in zip(curves, often.tolist(), strict=True)]
        )
    distinct, at = np.unique(squares, axis=0, return_inverse=True)
    family = RoundFamily(
        squares=distinct,
        use=used,
        factors=1 / np.array(cohort.counts, dtype=float),
        masses=cohort.probability * np.array(cohort.masses),
        counts=np.bincount(at.ravel(), weights=often).astype(np.int64),
    )
    return GaussianMixtureCurve(rounds=(), families=(family,))


def _check_colluders(clients: int, colluding: int) -> None:
    checks.require_whole(at_least=1, clients=clients)
    checks.require_whole(at_least=0, colluding=colluding)
    if colluding > clients - 1:
        raise UserError(
            f"colluding = {colluding}: expected at most {clients - 1}, "
            "all clients but the attacked one."
        )
