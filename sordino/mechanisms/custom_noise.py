"""Noise that a user brings: the factory that makes it, the test of its claim, and its price.

A factory is called with the scale and returns an object with

    uniforms                    how many uniform numbers make one value of noise
    sample(uniforms)            makes (...) independent values of (..., uniforms) numbers in (0, 1)
    divergence(order, shifts)   the Rényi divergence of one coordinate when it is moved by each
                                shift: an array, nondecreasing, the larger of both directions

In place of `divergence` it may have `losses(shift)`: a dp_accounting privacy-loss distribution of
one coordinate, which prices models of one parameter only.

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

# Cells of the density that attacks use.
CELLS = 256
# Each shift of the grid of shifts is this much longer than the one before.
GRID_RATIO = 1.02
# How many shifts show whether the claim for a single coordinate falls somewhere.
CHECKED_SHIFTS = 64

# Earlier names of the example, which files of earlier runs may have.
EARLIER_FACTORIES = {"sordino.privacy.custom:logistic": f"{__name__}:logistic"}


@dataclass(frozen=True, kw_only=True, eq=False)
class TestedNoise:
    """A noise that passed its test.

    Attributes:
        sample: Turns (..., uniforms) numbers in (0, 1) into (...) values.
        uniforms: How many uniform numbers make one value.
        divergences: Turns an order and shifts into the claimed divergences of one coordinate.
        scalar: Whether the claim is a privacy-loss distribution, good for one parameter only.
        moments: E|X| and E X^2, as measured.
        density: Some values, and the logarithm of the density at each, as measured.
        vouched: The claims that nobody has proved, in words: the user vouches for them.
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
        """The noise that the factory makes, after its test."""
        return find_tested_noise(self.noise.factory, self.noise.scale)

    @property
    def always_priced(self) -> bool:
        # The test may contradict the claim.
        return False

    def price(self, norm: str, dimension: int | None) -> NoisePrice:
        """Returns the price that the factory claims, at its worst over all moves.

        Args:
            norm: The norm of the vector that is clipped, "l1" or "l2".
            dimension: The number of coordinates, where it is known.

        Raises:
            UserError: The dimension is needed and not known.
        """
        size = require_dimension(dimension)
        tested = self.tested

        def find_divergence(order: float, shift: float) -> float:
            """Returns the largest divergence over moves of at most a norm.

            Args:
                order: The order of the divergence.
                shift: The largest norm of a move.
            """
            return find_worst_divergence(tested, order, shift, norm, size)

        def tabulate(shifts: np.ndarray, orders: np.ndarray) -> np.ndarray:
            """Returns the divergences of all pairs, with a row for each shift.

            Args:
                shifts: The largest norms of moves.
                orders: The orders of the divergences.
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
            stream: Where the keystream begins that the values are made of.
            trainings: The number of rows, one for each training.
            count: The number of values in a row.
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
        # Only the factory knows what its scale means: a larger one need not be more noise.
        return None

    @property
    def words(self) -> str:
        return f"{self.noise.factory}, scale {self.noise.scale:g}"


@lru_cache(maxsize=16)
def find_tested_noise(factory: str, scale: float) -> TestedNoise:
    """Returns the noise of a factory after its claim was tested.

    Args:
        factory: The factory, as "package.module:name".
        scale: The scale that it is called with.

    Raises:
        UserError: There is no such factory, it makes something else than noise, or its noise is
            smaller than it claims.

    Example:
        >>> noise = find_tested_noise("sordino.mechanisms.custom_noise:logistic", 1.0)
        >>> round(noise.moments[0], 1)
        1.4
    """
    return hold_claim_against_samples(build_noise(factory, scale), factory)


def build_noise(factory: str, scale: float) -> Any:
    """Calls a factory and checks the parts of what it made, but no claim.

    Args:
        factory: The factory, as "package.module:name".
        scale: The scale that it is called with.

    Raises:
        UserError: There is no such factory, or it makes something else than noise.
    """
    module, _, name = EARLIER_FACTORIES.get(factory, factory).partition(":")
    with report_errors_of(factory):
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"noise.mechanism = {factory!r}: {error}.") from None
        maker = getattr(found, name, None)
        if maker is None:
            raise UserError(f"noise.mechanism = {factory!r}: {module} has no {name}.")
        made = maker(scale)
    uniforms = getattr(made, "uniforms", None)
    counted = isinstance(uniforms, int) and uniforms >= 1
    if not counted or not callable(getattr(made, "sample", None)):
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
        name: The name of the factory.

    Raises:
        UserError: The code raised an error; the message names the factory, the error and its line.
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
    """Returns a noise after its claim was held against a histogram of its values.

    Args:
        made: The noise that the factory made.
        name: The name of the factory.

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
        # Both are called long after the test, with uniforms, orders and shifts that it did not try.
        sample=report_errors_of(name)(made.sample),
        uniforms=made.uniforms,
        divergences=report_errors_of(name)(divergences),
        scalar=scalar,
        moments=(float(np.abs(values).mean()), float(np.square(values).mean())),
        density=measure_density(values),
        vouched=(vouched,),
    )


def measure_density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the middles of cells of equal mass, and the logarithm of the density there.

    Attacks use it; no guarantee rests on it.

    Args:
        values: Values of the noise.
    """
    # Cells of equal mass resolve the density where the values are.
    edges = np.unique(np.quantile(values, np.linspace(0, 1, CELLS + 1)))
    masses = np.histogram(values, edges)[0] / len(values)
    heights = np.maximum(masses, 1 / len(values)) / np.diff(edges)
    return (edges[1:] + edges[:-1]) / 2, np.log(heights)


def _divergences_of_losses(losses: Callable[[float], Any]) -> Divergences:
    """Returns the divergences of the privacy-loss distributions that a factory claims."""
    # The same few shifts are priced at many orders.
    distributions = lru_cache(maxsize=64)(losses)

    def find_divergences(order: float, shifts: np.ndarray) -> np.ndarray:
        """Returns the divergence at each shift.

        Args:
            order: The order of the divergences.
            shifts: The shifts of one coordinate.
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
    """Returns the Rényi divergence of a privacy-loss distribution, the larger of both directions.

    Args:
        distribution: The distribution, as dp_accounting has it: on a grid of losses.
        order: The order of the divergence, finite and above 1.
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
        noise: The noise with its claim.
        order: The order of the divergences.
        shift: The largest norm of a shift vector.
        norm: The norm, "l1" or "l2".
        dimension: The number of coordinates.

    Raises:
        UserError: The claim is good for one coordinate only, or is not a nondecreasing function.
    """
    if shift == 0:
        return 0.0
    if dimension == 1:
        return _read_claim(noise, order, shift)
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


def _read_claim(noise: TestedNoise, order: float, shift: float) -> float:
    """Returns the claimed divergence of one coordinate that moves by at most a shift."""
    shifts = np.array([shift])
    if not noise.scalar:
        # Shorter moves must cost no more. Distributions of losses are too slow for many shifts.
        shifts = np.linspace(0, shift, CHECKED_SHIFTS + 1)[1:]
    values = np.asarray(noise.divergences(order, shifts), dtype=float)
    # Infinity is a price; NaN and negative numbers are none.
    if not (values >= 0).all() or (values[:-1] * (1 - 1e-9) > values[1:]).any():
        raise UserError(
            f"its divergence of order {order:g} is not a nondecreasing function of "
            f"shifts up to {shift:g}, or below 0 there: nothing can be promised."
        )
    return float(values[-1])


def _evaluate_concave_majorant(starts: np.ndarray, values: np.ndarray, at: float) -> float:
    """Returns the least concave function above a rising staircase, at one point.

    The staircase takes each of `values` from its place in `starts` on.
    """
    # The corners on the upper convex hull, from left to right: a corner is dropped where it lies on
    # or below the line from the one before it to the one after it.
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
            order: The order of the divergence, which does not matter.
            shifts: The shifts of one coordinate.
        """
        divergences: np.ndarray = np.abs(shifts) / self.scale
        return divergences
