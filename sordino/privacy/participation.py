"""Who else is in a round, and when a record is first used in it: the laws that the mixtures of THEORY A10 and A11 are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from sordino.privacy import checks
from sordino.privacy.families import FEW, Family
from sordino.privacy.mixtures import GaussianMixtureCurve, composed_mixtures, mixture
from sordino.protocol.errors import UserError

_NEGLIGIBLE = 1e-20  # probability below which a number of participants is counted as the worst one


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Whether the attacked client takes part in a round and, if so, how many honest clients do, itself included.

    `counts` with their `masses` are given that it takes part; its noise is averaged with that of the other honest participants.
    The server sees every upload by itself: `Cohort.alone`.

    Example:
        >>> [round(mass, 9) for mass in Cohort.poisson(clients=3, rate=0.5).masses]
        [0.25, 0.5, 0.25]
    """

    probability: float
    counts: tuple[float, ...]
    masses: tuple[float, ...]

    @classmethod
    def everyone(cls, *, clients: int, colluding: int = 0) -> Cohort:
        """All clients take part, `colluding` of which know their own noise.

        Example:
            >>> Cohort.everyone(clients=50, colluding=1).counts
            (49,)
        """
        _check_colluders(clients, colluding)
        return cls(probability=1.0, counts=(clients - colluding,), masses=(1.0,))

    @classmethod
    def poisson(cls, *, clients: int, rate: float, colluding: int = 0) -> Cohort:
        """Each client takes part with probability `rate`: 1 + Bin(m - 1 - k, rate) honest ones (THEORY A10).

        Example:
            >>> Cohort.poisson(clients=50, rate=0.1, colluding=49).counts
            (1,)
        """
        _check_colluders(clients, colluding)
        checks.probability(rate=rate)
        others = clients - 1 - colluding
        counts = np.arange(others + 1)
        logs = _log_choose(others, counts) + xlogy(counts, rate) + xlog1py(others - counts, -rate)
        return cls._from_logs(rate, 1 + counts, logs)

    @classmethod
    def fixed(cls, *, clients: int, size: int, colluding: int = 0) -> Cohort:
        """`size` clients take part, drawn uniformly: 1 + a hypergeometric number of honest ones, with probability size / m.

        Example:
            >>> Cohort.fixed(clients=10, size=4).counts, Cohort.fixed(clients=10, size=4).probability
            ((4,), 0.4)
        """
        _check_colluders(clients, colluding)
        checks.whole(at_least=1, size=size)
        if size > clients:
            raise UserError(f"size = {size}: expected at most the {clients} clients.")
        honest = clients - 1 - colluding
        counts = np.arange(max(0, size - 1 - colluding), min(honest, size - 1) + 1)
        logs = (
            _log_choose(honest, counts)
            + _log_choose(colluding, size - 1 - counts)
            - _log_choose(clients - 1, np.array(size - 1))
        )
        return cls._from_logs(size / clients, 1 + counts, logs)

    def alone(self) -> Cohort:
        """The same draws seen by who sees each upload: no other client's noise helps.

        Example:
            >>> Cohort.fixed(clients=10, size=4).alone().counts
            (1,)
        """
        return Cohort(probability=self.probability, counts=(1,), masses=(1.0,))

    @classmethod
    def _from_logs(cls, probability: float, counts: np.ndarray, logs: np.ndarray) -> Cohort:
        """Normalised; improbable counts join the smallest, where noise is weakest."""
        masses = np.exp(logs - np.logaddexp.reduce(logs))
        kept = masses > _NEGLIGIBLE
        kept[0] = True
        masses[0] += masses[~kept].sum()
        return cls(
            probability=float(probability),
            counts=tuple(counts[kept].tolist()),
            masses=tuple(masses[kept].tolist()),
        )


def first_use(*, batch: int, records: int, steps: int) -> np.ndarray:
    """Probability that a record is first drawn at step k = 0, ..., K-1 of a round: (B/n)(1 - B/n)^k; they sum to less than 1.

    Every step draws `batch` distinct records of `records`, fresh and independent of the data (THEORY A11).

    Example:
        >>> first_use(batch=1, records=2, steps=3).tolist()
        [0.5, 0.25, 0.125]
    """
    checks.whole(at_least=1, batch=batch, records=records, steps=steps)
    if batch > records:
        raise UserError(
            f"batch = {batch}: expected at most the {records} records, since a step draws distinct ones."
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
    """One round in which the attacked client's upload moves by a random shift under the noise of a random cohort.

    Args:
        shifts: How far the upload can move: one number, or one per first-used step (`sensitivity.first_used`).
        sigma: Standard deviation of each participant's noise.
        cohort: Who takes part and is honest.
        use: Probability of each of the shifts, such as `first_use`; the remainder is no shift at all. None: the shift is certain.

    Example:
        >>> cohort = Cohort.poisson(clients=50, rate=0.1)
        >>> round(round_curve(1.0, sigma=1.0, cohort=cohort).repeat(10).epsilon(1e-4), 2)
        2.72
    """
    moved = checks.vector("shifts", [shifts] if isinstance(shifts, (int, float)) else shifts)
    used = np.ones(1) if use is None else checks.vector("use", use)
    checks.not_negative(sigma=sigma)
    if used.size != moved.size or used.sum() > 1 + 1e-9:
        raise UserError("use: expected one probability for each shift, summing to at most 1.")
    with np.errstate(divide="ignore", invalid="ignore"):
        mus = np.divide.outer(moved / sigma, np.sqrt(np.array(cohort.counts, dtype=float)))
    mus = np.where(np.isnan(mus), 0.0, mus)  # no shift stays hidden without noise
    masses = cohort.probability * np.multiply.outer(used, np.array(cohort.masses))
    return mixture(
        [0.0, *mus.ravel().tolist()], [max(0.0, 1 - float(masses.sum())), *masses.ravel().tolist()]
    )


def rounds_curve(
    shifts: np.ndarray,
    counts: np.ndarray,
    *,
    sigma: float,
    cohort: Cohort,
    use: np.ndarray | None = None,
) -> GaussianMixtureCurve:
    """The composition of rounds as in `round_curve`: one a row of `shifts`, each so many times.

    Example:
        >>> curve = rounds_curve(np.array([[1.0], [0.5]]), np.array([1, 4]), sigma=1.0, cohort=Cohort.everyone(clients=2))
        >>> round(curve.epsilon(1e-5), 3)  # mu = 1
        4.377
    """
    used = np.ones(1) if use is None else use
    return _composed(
        shifts.tobytes(),
        shifts.shape,
        counts.astype(np.int64).tobytes(),
        sigma,
        cohort,
        used.tobytes(),
    )


@lru_cache(maxsize=32)  # views ask for the same curve, and a curve remembers its sums
def _composed(
    shifts: bytes, shape: tuple[int, int], counts: bytes, sigma: float, cohort: Cohort, use: bytes
) -> GaussianMixtureCurve:
    rows, often, used = (
        np.frombuffer(shifts).reshape(shape),
        np.frombuffer(counts, dtype=np.int64),
        np.frombuffer(use),
    )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        squares = (rows / sigma) ** 2
        finite = bool(np.isfinite(squares / min(cohort.counts)).all())
    if len(rows) <= FEW or not finite:
        curves = (round_curve(row, sigma=sigma, cohort=cohort, use=used) for row in rows)
        return composed_mixtures(
            [curve.repeat(count) for curve, count in zip(curves, often.tolist(), strict=True)]
        )
    distinct, at = np.unique(squares, axis=0, return_inverse=True)
    family = Family(
        squares=distinct,
        use=used,
        factors=1 / np.array(cohort.counts, dtype=float),
        masses=cohort.probability * np.array(cohort.masses),
        counts=np.bincount(at.ravel(), weights=often).astype(np.int64),
    )
    return GaussianMixtureCurve(rounds=(), families=(family,))


def _check_colluders(clients: int, colluding: int) -> None:
    checks.whole(at_least=1, clients=clients)
    checks.whole(at_least=0, colluding=colluding)
    if colluding > clients - 1:
        raise UserError(
            f"colluding = {colluding}: expected at most {clients - 1}, all clients but the attacked one."
        )


def _log_choose(whole: int, part: np.ndarray) -> np.ndarray:
    if whole == 0:
        return np.where(part == 0, 0.0, -math.inf)
    return gammaln(whole + 1) - gammaln(part + 1) - gammaln(whole - part + 1)
