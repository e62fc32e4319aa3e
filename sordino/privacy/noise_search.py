"""The smallest noise that meets a target, where all clients have the same noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sordino.mechanisms import mechanism_of
from sordino.privacy.bounds.question import Bound, pose_question
from sordino.privacy.bounds.shared_noise import find_shared_bounds
from sordino.privacy.curves import checks
from sordino.privacy.curves.curve import Curve
from sordino.protocol import Protocol, UserError, View

CLOSE = 1 + 1e-4  # ratio of the two ends of the bracket at which the search stops
LARGEST = 1e50
# Distance of a curve whose value meets a target that it does not hold to the last digit.
NEARLY = 1e-12
LONGEST_SEARCH = 200


@dataclass(frozen=True, kw_only=True)
class Target:
    """A demand on a curve.

    Attributes:
        named: The target in numbers, such as {"epsilon": 4.0, "delta": 1e-5}.
        holds: Tells whether a curve meets the target, down to the last digit.
        value: Returns what a curve reaches, such as its epsilon.
        excess: Returns how far a value is from the target, as a logarithm: at most 0 where the
            target is met, otherwise about that of the factor by which the noise is too small.
        worse: Maps a value to a number that is smaller for a better guarantee.
    """

    named: dict[str, float]
    holds: Callable[[Curve], bool]
    value: Callable[[Curve], float]
    excess: Callable[[float], float]
    worse: Callable[[float], float] = float

    def distance(self, curve: Curve) -> float:
        """Returns how far a curve is from the target; above 0 where it does not hold.

        Args:
            curve: The curve of a noise that is tried.
        """
        found = self.excess(self.value(curve))
        return found if found > 0 or self.holds(curve) else NEARLY


def search_noise(
    protocol: Protocol,
    view: str | View,
    unit: str,
    target: Target,
    sizes: Sequence[int] | None,
) -> Protocol:
    """Returns the protocol with the smallest noise that meets a target over all rounds.

    Args:
        protocol: The protocol; how much noise it has does not matter.
        view: The adversary.
        unit: The hidden unit, "record" or "client".
        target: The demand on the curve.
        sizes: The number of records of every client, where known.

    Raises:
        UserError: No noise meets the target.
    """

    def find_distance(size: float) -> float:
        """Returns how far the best bound under a noise is from the target.

        Args:
            size: The size of the noise.
        """
        # Budgets in [[client]] are left out: less noise lets clients take part less often, so that
        # next to none would meet any target, with nobody taking part.
        question = pose_question(resize_noise(protocol, size), view, unit, sizes=sizes)
        return distances.find_least(size, find_shared_bounds(question))

    distances = Distances(target)
    return resize_noise(protocol, find_smallest_size(find_distance))


class Distances:
    """How far bounds are from a target, of which only those that matter are evaluated.

    A bound falls as the noise grows: what missed a target by much under more noise misses it by as
    much under less, and need not be asked where another bound is nearer.
    """

    def __init__(self, target: Target) -> None:
        """Starts with no distance known.

        Args:
            target: The demand on a curve.
        """
        self._target = target
        # By the place of a bound and its method: the sizes of noise that were tried, and distances.
        self._known: dict[tuple[int, str], list[tuple[float, float]]] = {}

    def find_least(self, size: float, bounds: Iterable[Bound]) -> float:
        """Returns the distance of the nearest bound.

        Args:
            size: The size of the noise.
            bounds: All bounds that hold under it.
        """
        ranked = []
        for place, bound in enumerate(bounds):
            known = self._known.setdefault((place, bound.method), [])
            more = [distance for tried, distance in known if tried >= size]
            ranked.append((max(more, default=-math.inf), place, bound, known))
        least = math.inf
        # Those that were the nearest come first, and then spare the others.
        for floor, _, bound, known in sorted(ranked, key=lambda entry: entry[:2]):
            if floor >= least:
                break
            distance = self._target.distance(bound.curve)
            known.append((size, distance))
            least = min(least, distance)
        return least


def resize_noise(protocol: Protocol, size: float) -> Protocol:
    """Returns the protocol with more or less noise.

    Args:
        protocol: The federation that is priced.
        size: The size of the noise.
    """
    return replace(protocol, noise=mechanism_of(protocol.noise).resize(size))


def make_target(
    epsilon: float | None = None,
    delta: float = 1e-5,
    beta: float | None = None,
    alpha: float | None = None,
    advantage: float | None = None,
) -> Target:
    """Returns the one target that is given.

    Args:
        epsilon: The largest epsilon allowed, at `delta`.
        delta: The delta that belongs to `epsilon`.
        beta: The least false negative rate that any test may have whose false positive rate is
            `alpha`.
        alpha: The false positive rate at which `beta` is demanded.
        advantage: The largest advantage over guessing allowed.

    Raises:
        UserError: Not exactly one target, or one outside its range.
    """
    given = [value for value in (epsilon, beta, advantage) if value is not None]
    # Two targets would leave open which of them the noise was found for.
    if len(given) != 1 or (beta is None) != (alpha is None):
        raise UserError(
            "expected one target: epsilon (with delta), or beta with at_alpha, or advantage."
        )
    if epsilon is not None:
        most = epsilon
        checks.require_positive(epsilon=most)
        checks.require_delta(delta)
        return Target(
            named={"epsilon": most, "delta": delta},
            holds=lambda curve: curve.delta(most) <= delta,
            value=lambda curve: curve.epsilon(delta),
            excess=lambda value: log_ratio(value, most),
        )
    if advantage is not None:
        limit = advantage
        checks.require_probability(advantage=limit)
        return Target(
            named={"advantage": limit},
            holds=lambda curve: curve.delta(0.0) <= limit,
            value=lambda curve: curve.delta(0.0),
            excess=lambda value: log_ratio(value, limit),
        )
    least = float(beta or 0.0)
    level = float(alpha or 0.0)
    checks.require_probability(beta=least, at_alpha=level)
    if level + least >= 1:
        raise UserError(
            f"beta = {least!r} at alpha = {level!r}: expected alpha + beta below 1, since a coin "
            "toss reaches 1."
        )
    return Target(
        named={"beta": least, "at_alpha": level},
        holds=lambda curve: curve.beta(level) >= least,
        value=lambda curve: curve.beta(level),
        excess=lambda value: log_ratio(1 - level - value, 1 - level - least),
        worse=lambda value: -value,
    )


def log_ratio(value: float, limit: float) -> float:
    """Returns log(value / limit), at most 0 exactly where the value is at most the limit.

    Args:
        value: A number of at least 0.
        limit: The number to compare it with, of at least 0.

    Example:
        >>> log_ratio(2.0, 2.0), log_ratio(1.0, 0.0), log_ratio(0.0, 1.0)
        (0.0, inf, -50.0)
    """
    if value == 0 or limit == 0 or not math.isfinite(value):
        return -50.0 if value <= limit else math.inf
    ratio = math.log(value / limit)
    if value <= limit:
        return max(-50.0, ratio)
    return max(ratio, NEARLY)


def find_smallest_size(distance: Callable[[float], float]) -> float:
    """Returns the smallest noise that meets a target.

    Guesses are interpolated in the logarithm of the noise, since a bound falls about as the noise
    grows.

    Args:
        distance: Takes a size of noise; returns how far it is from the target, at most 0 where it
            meets it. More noise comes nearer.
    """
    tried = bracket_size(distance)
    close = math.log(CLOSE)
    for step in range(LONGEST_SEARCH):
        low = max((at for at, found in tried if found > 0), default=-math.inf)
        high = min(at for at, found in tried if found <= 0)
        width = high - low
        # Without a lower end any noise meets the target.
        if width <= close or low == -math.inf:
            break
        middle = low + width / 2
        # Every sixth step halves the bracket: interpolation alone may creep up from one side.
        if step % 6 != 5:
            guess = interpolate_root(tried, low, high)
            # A little towards the farther end, so that both ends close in on the target.
            aside = 0.45 * close if high - guess > guess - low else -0.45 * close
            middle = min(max(guess + aside, low + close / 4), high - close / 4)
        tried.append((middle, distance(math.exp(middle))))
    return math.exp(high)


def interpolate_root(tried: Sequence[tuple[float, float]], low: float, high: float) -> float:
    """Returns where a falling function is about 0: a parabola in its value, else a chord.

    Args:
        tried: Pairs of an argument and its value; `low` and `high` are among the arguments.
        low: The largest argument whose value is above 0.
        high: The smallest argument whose value is at most 0.

    Returns:
        A guess between the two.

    Example:
        >>> tried = [(0.0, 3.0), (1.0, 1.0), (3.0, -1.0)]
        >>> interpolate_root(tried, 1.0, 3.0)
        1.875
    """
    values = dict(tried)
    if math.isinf(values[low]):
        return low + (high - low) / 2
    nearest = sorted(values.items(), key=lambda entry: abs(entry[1]))[:3]
    ordinates = [value for _, value in nearest]
    if len(set(ordinates)) == 3 and math.isfinite(sum(ordinates)):
        guess = 0.0
        for at, value in nearest:
            others = [other for other in ordinates if other != value]
            guess += at * math.prod(other / (other - value) for other in others)
        if low < guess < high:
            return guess
    return high + values[high] * (high - low) / (values[low] - values[high])


def bracket_size(distance: Callable[[float], float]) -> list[tuple[float, float]]:
    """Returns logarithms of noise that were tried, and how far from a target each is.

    Args:
        distance: See `find_smallest_size`.

    Returns:
        Tries of which one meets the target, and one misses it unless any noise meets it.

    Raises:
        UserError: No noise meets the target.
    """
    at = 0.0
    limit = math.log(LARGEST)
    found = distance(1.0)
    tried = [(at, found)]
    while True:
        upwards = found > 0
        step = math.log(4)
        if found != math.inf:
            step = min(max(1.1 * abs(found), 0.05), math.log(64))
        further = at + step if upwards else at - step
        if further > limit:
            raise UserError(
                "no noise is enough for this target in this view: ask for less, or change the "
                "protocol."
            )
        # Next to no noise meets the target already, as where nothing is released.
        if further < -limit:
            return tried
        at = further
        found = distance(math.exp(at))
        tried.append((at, found))
        if (found > 0) != upwards:
            return tried
