"""Noise that a user brings: the factory that makes it, the test of its claim, and its price.

A factory is called with the scale and returns an object with

    uniforms               how many uniform numbers make one value of noise
    sample(uniforms)       (..., uniforms) numbers in (0, 1) to (...) independent values of noise
    divergence(order, shifts)   an array: Rényi divergence of one coordinate moved by each shift, in
                           both directions, nondecreasing

or, in place of `divergence`, `losses(shift)`: a dp_accounting privacy-loss distribution of one
coordinate, good for one parameter only.

The claim is tested before it is used: every value must depend on its own uniforms and on nothing
else, so that values are independent and repeat; and a histogram of them, moved and not moved, must
not be farther apart than claimed. That finds noise that is too small for its claim; it proves
nothing, so every guarantee lists the claim as vouched for.
"""

from __future__ import annotations

import importlib
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sordino.mechanisms.claimed_divergence import (
    SAMPLES,
    TESTED_ORDERS,
    TESTED_SHIFTS,
    Divergences,
    draw_samples,
    refuse_contradicted,
)
from sordino.mechanisms.keystream_noise import draw_words
from sordino.mechanisms.mechanism import MECHANISMS, Mechanism, NoisePrice
from sordino.protocol import Custom
from sordino.protocol.data_entries import require_dimension
from sordino.protocol.errors import UserError
from sordino.randomness import Stream
from sordino.uniform_words import unit_interval

CELLS = 256  # of the density that an attack uses
GRID_RATIO = 1.02

# Earlier names of the example, which files of earlier runs may have.
EARLIER_FACTORIES = {"sordino.privacy.custom:logistic": f"{__name__}:logistic"}


@dataclass(frozen=True, kw_only=True, eq=False)
class TestedNoise:
    """A noise that passed its test.

    Attributes:
        sample: (..., uniforms) numbers in (0, 1) to (...) values.
        uniforms: How many uniform numbers make one value.
        divergences: Order and shifts to one-coordinate divergences.
        scalar: Whether the claim is a privacy-loss distribution, good for one parameter only.
        moments: Measured E|X| and E X^2.
        density: Places, and the logarithm of the density there, as measured.
        vouched: What the user vouches for.
    """

    sample: Callable[[np.ndarray], np.ndarray]
    uniforms: int
    divergences: Divergences
    scalar: bool
    moments: tuple[float, float]
    density: tuple[np.ndarray, np.ndarray]
    vouched: tuple[str, ...]


@MECHANISMS.register(Custom)
class CustomMechanism(Mechanism[Custom]):
    """Noise of a user's factory, used after its claim was tested."""

    @property
    def tested(self) -> TestedNoise:
        """What the factory gives, after the test."""
        return find_tested_noise(self.noise.factory, self.noise.scale)

    @property
    def always_priced(self) -> bool:
        # The test may contradict the claim.
        return False

    def price(self, norm: str, dimension: int | None) -> NoisePrice:
        """Returns the price that the factory claims, at its worst over all moves.

        Args:
            norm: Which norm of the vector is clipped, "l1" or "l2".
            dimension: Number of coordinates, where it is known.

        Raises:
            UserError: The dimension is needed and not known.
        """
        size = require_dimension(dimension)
        tested = self.tested

        def find_divergence(order: float, shift: float) -> float:
            """Returns the largest divergence over moves of at most a norm.

            Args:
                order: Order of the divergence.
                shift: The largest norm of the move.
            """
            return find_worst_divergence(tested, order, shift, norm, size)

        def tabulate(shifts: np.ndarray, orders: np.ndarray) -> np.ndarray:
            """Returns the divergences of all pairs, a shift a row.

            Args:
                shifts: Norms of moves.
                orders: Orders of the divergences.
            """
            rows = []
            for shift in shifts.tolist():
                rows.append([find_divergence(order, shift) for order in orders.tolist()])
            return np.array(rows)

        return NoisePrice(
            divergence=find_divergence,
            table=tabulate,
            pure=lambda shift: math.inf if shift > 0 else 0.0,
            reason=(
                f"the worst of all ways in which {size} coordinates can share the shift, by the "
                "concave majorant of the given divergence"
            ),
            vouched=tested.vouched,
        )

    def draw(self, stream: Stream, trainings: int, count: int) -> np.ndarray:
        """Returns independent values of noise; equal calls give equal values.

        Args:
            stream: The place in the keystream that the values are made of.
            trainings: Number of rows, one for each training side by side.
            count: Number of values in a row.
        """
        tested = self.tested
        words = draw_words(stream, trainings, count, tested.uniforms)
        return np.asarray(tested.sample(unit_interval(words)), dtype=float)

    def log_density(self, values: np.ndarray) -> np.ndarray:
        """Returns the logarithm of the density of one coordinate's noise at each value.

        Args:
            values: Values of one coordinate's noise.
        """
        # Measured, which is good enough for an attack.
        places, logarithms = self.tested.density
        log_densities: np.ndarray = np.interp(values, places, logarithms)
        return log_densities

    @property
    def law(self) -> None:
        return None

    @property
    def moments(self) -> tuple[float, float]:
        return self.tested.moments

    @property
    def size_entry(self) -> str:
        return "scale"

    @property
    def growing_entry(self) -> None:
        # What the scale means, only the factory knows.
        return None

    @property
    def words(self) -> str:
        return f"{self.noise.factory}, scale {self.noise.scale:g}"


@lru_cache(maxsize=16)
def find_tested_noise(factory: str, scale: float) -> TestedNoise:
    """Returns the noise of a factory after its claim was tested.

    Args:
        factory: Its name, "package.module:name".
        scale: What it is called with.

    Raises:
        UserError: There is no such factory, it gives something else than noise, or its noise is
            smaller than it claims.

    Example:
        >>> noise = find_tested_noise("sordino.mechanisms.custom_noise:logistic", 1.0)
        >>> round(noise.moments[0], 1)
        1.4
    """
    return hold_claim_against_samples(build_noise(factory, scale), factory)


def build_noise(factory: str, scale: float) -> Any:
    """Returns what a factory gives.

    Args:
        factory: Its name, "package.module:name".
        scale: Handed to it.

    Raises:
        UserError: There is no such factory, or it gives something else than noise.
    """
    module, _, name = EARLIER_FACTORIES.get(factory, factory).partition(":")
    try:
        maker = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UserError(f"noise.mechanism = {factory!r}: {error}.") from None
    except AttributeError:
        raise UserError(f"noise.mechanism = {factory!r}: {module} has no {name}.") from None
    with report_errors_of(factory):
        made = maker(scale)
    uniforms = getattr(made, "uniforms", None)
    samples = callable(getattr(made, "sample", None)) and isinstance(uniforms, int)
    if not samples or made.uniforms < 1:
        raise UserError(
            f"noise.mechanism = {factory!r}: expected an object with `uniforms`, `sample` and "
            "`divergence` or `losses`."
        )
    claims = [callable(getattr(made, claim, None)) for claim in ("divergence", "losses")]
    if not any(claims):
        raise UserError(
            f"noise.mechanism = {factory!r}: expected `divergence(order, shifts)` or "
            "`losses(shift)`: nothing prices it."
        )
    return made


@contextmanager
def report_errors_of(name: str) -> Iterator[None]:
    """Turns any error in a user's code into one line that says where it happened.

    Args:
        name: Name of the factory.

    Raises:
        UserError: Names the factory, the error and its line.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}, line {where.lineno}"
        text = f"{type(error).__name__}: {error} ({place})"
        raise UserError(f"noise.mechanism = {name!r} failed: {text}.") from None


def hold_claim_against_samples(made: Any, name: str) -> TestedNoise:
    """Returns a noise after its claim was held against a histogram of its sampler.

    Args:
        made: What the factory gave.
        name: Name of the factory.

    Raises:
        UserError: The samples contradict the claim.
    """
    who = f"noise.mechanism = {name!r}"
    scalar = not callable(getattr(made, "divergence", None))
    if scalar:
        divergences = _divergences_of_losses(made.losses)
    else:
        divergences = made.divergence
    with report_errors_of(name):
        values = draw_samples(made, who)
        middle = float(np.median(np.abs(values)))
        if middle == 0:
            raise UserError(f"{who}: most of its noise is exactly 0.")
        refuse_contradicted(values, divergences, middle, who)
    vouched = (
        f"the noise of {name} diverges by no more than it says (a histogram of {SAMPLES} values "
        f"did not contradict it at {len(TESTED_SHIFTS)} shifts and {len(TESTED_ORDERS)} orders)"
    )
    return TestedNoise(
        sample=made.sample,
        uniforms=made.uniforms,
        divergences=divergences,
        scalar=scalar,
        moments=(float(np.abs(values).mean()), float(np.square(values).mean())),
        density=measure_density(values),
        vouched=(vouched,),
    )


def measure_density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the middles of cells of equal mass, and the logarithm of the density there.

    It promises nothing: attacks use it.

    Args:
        values: Values of the noise.
    """
    # Cells of equal mass resolve the density where the values are.
    edges = np.unique(np.quantile(values, np.linspace(0, 1, CELLS + 1)))
    masses = np.histogram(values, edges)[0] / len(values)
    heights = np.maximum(masses, 1 / len(values)) / np.diff(edges)
    return (edges[1:] + edges[:-1]) / 2, np.log(heights)


def _divergences_of_losses(losses: Callable[[float], Any]) -> Divergences:
    distributions = lru_cache(maxsize=64)(losses)

    def find_divergences(order: float, shifts: np.ndarray) -> np.ndarray:
        """Returns the divergence at each shift.

        Args:
            order: Order of the divergences.
            shifts: Shifts of one coordinate.
        """
        found = []
        for shift in np.ravel(shifts).tolist():
            divergence = 0.0
            if shift > 0:
                divergence = divergence_of_distribution(distributions(shift), order)
            found.append(divergence)
        return np.array(found)

    return find_divergences


def divergence_of_distribution(distribution: Any, order: float) -> float:
    """Returns the Rényi divergence of a dp_accounting privacy-loss distribution, both directions.

    Args:
        distribution: Distribution of privacy losses, on a grid.
        order: Finite, above 1.
    """
    found = []
    for part in (distribution._pmf_remove, distribution._pmf_add):
        pmf = part.to_dense_pmf()
        # An infinite loss of positive probability makes every moment infinite.
        if pmf._infinity_mass > 0:
            return math.inf
        masses = np.asarray(pmf._probs)
        losses = (pmf._lower_loss + np.arange(len(masses))) * pmf._discretization
        with np.errstate(divide="ignore"):
            moment = np.logaddexp.reduce(np.log(masses) + (order - 1) * losses)
        found.append(float(moment) / (order - 1))
    return max(found)


def find_worst_divergence(
    noise: TestedNoise,
    order: float,
    shift: float,
    norm: str,
    dimension: int,
) -> float:
    """Returns the largest sum of one-coordinate divergences over shift vectors.

    Args:
        noise: Noise with its claim.
        order: Order of the divergences.
        shift: The largest norm of a vector.
        norm: Which norm, "l1" or "l2".
        dimension: Number of coordinates.

    Raises:
        UserError: The claim is good for one coordinate only, or is not a nondecreasing function.
    """
    if shift == 0:
        return 0.0
    if dimension == 1:
        return float(np.asarray(noise.divergences(order, np.array([shift])))[0])
    if noise.scalar:
        raise UserError(
            "this noise is priced by a privacy-loss distribution of one coordinate: its worst case "
            "in many is not known."
        )
    # With u = |s| (l1) or s^2 (l2), the sum of d values g(u_j) with sum u_j <= c is at most
    # d h(c/d), h any concave function above g (Jensen). g does not decrease, so above each cell of
    # a grid it is at most its value at the cell's end.
    power = 1.0 if norm == "l1" else 2.0
    whole = shift**power
    start = whole / dimension * 1e-8
    number = math.ceil(math.log(whole / start) / math.log(GRID_RATIO))
    ends = start * GRID_RATIO ** np.arange(number)
    ends = np.append(ends[ends < whole], whole)
    values = np.asarray(noise.divergences(order, ends ** (1 / power)), dtype=float)
    falls = (np.diff(values) < -1e-9 * values[1:]).any()
    if not np.isfinite(values).all() or falls or values[0] < 0:
        raise UserError(
            f"its divergence of order {order:g} is not a nondecreasing, finite function of the "
            "shift: nothing can be promised."
        )
    starts = np.concatenate([[0.0], ends[:-1]])
    highest = np.maximum.accumulate(values)
    return dimension * _evaluate_concave_majorant(starts, highest, whole / dimension)


def _evaluate_concave_majorant(starts: np.ndarray, values: np.ndarray, at: float) -> float:
    """Returns the least concave function above a rising staircase, at one point.

    The staircase takes `values` from `starts` on.
    """
    hull: list[int] = []
    for index in range(len(starts)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            rise = (values[b] - values[a]) * (starts[index] - starts[a])
            if rise > (values[index] - values[a]) * (starts[b] - starts[a]):
                break
            hull.pop()
        hull.append(index)
    return float(np.interp(at, starts[hull], values[hull]))


class logistic:
    """Noise with the logistic density, an example of a factory.

    It has two exponential tails around a round top. Its log-density has a slope of at most 1/scale,
    so a shift costs at most shift/scale, and no order costs more.

    Example:
        >>> logistic(2.0).divergence(2.0, np.array([1.0])).tolist()
        [0.5]
    """

    uniforms = 1

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def sample(self, uniforms: np.ndarray) -> np.ndarray:
        """Returns values by the inverse of the cumulative distribution.

        Args:
            uniforms: Numbers in (0, 1), the last axis of length 1.
        """
        quantiles: np.ndarray = self.scale * (
            np.log(uniforms[..., 0]) - np.log1p(-uniforms[..., 0])
        )
        return quantiles

    def divergence(self, order: float, shifts: np.ndarray) -> np.ndarray:
        """Returns the pure bound, which holds at every order.

        Args:
            order: Order of the divergence, which does not matter.
            shifts: Shifts of one coordinate.
        """
        divergences: np.ndarray = np.abs(shifts) / self.scale
        return divergences
