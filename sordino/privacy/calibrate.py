"""From a target to the noise that meets it: the smallest whose certified bound does not pass the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sordino.privacy import checks
from sordino.privacy.certify import asked, guaranteed, harmonized, uncapped_bounds, valid_bounds
from sordino.privacy.curves import Curve
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.sizes import parameter, resized
from sordino.protocol import Protocol, UserError, View

CLOSE = 1 + 1e-4  # ratio of the two ends of the bracket at which the search stops
LARGEST = 1e50
NEARLY = (
    1e-12  # distance of a curve whose value meets a target that it does not hold to the last digit
)
LONGEST_SEARCH = 200


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The noise that meets a target.

    Attributes:
        parameter: the entry of [noise] that was searched: sigma, scale, step for a staircase, multiplier for the rule noisy-sgd.
        value: its value.
        protocol: the protocol with that noise.
        guarantee: what it then promises.
        target: what was asked for, such as {"epsilon": 4.0, "delta": 1e-5}.
        achieved: the same quantity as certified with the noise found; never past the target.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
        >>> found = calibrate(Protocol(clients=50, rounds=600, local=local, noise=Gaussian(sigma=1.0)), "rounds", epsilon=4.0)
        >>> 3.98 < found.achieved <= 4.0
        True
    """

    parameter: str
    value: float
    protocol: Protocol
    guarantee: Guarantee
    target: dict[str, float]
    achieved: float

    @property
    def sigma(self) -> float:
        """The standard deviation, of Gaussian noise on uploads."""
        if self.parameter != "sigma":
            raise UserError(f"this noise has no sigma: its size is noise.{self.parameter}.")
        return self.value

    def as_document(self) -> dict[str, Any]:
        """The calibration as JSON says it."""
        delta = self.target.get("delta", 1e-5)
        return {
            self.parameter: self.value,
            "achieved": self.achieved,
            "target": self.target,
            **self.guarantee.as_document(delta),
        }


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is asked of a curve: whether it `holds`, and the `value` reached.

    `excess` says how far a value is from the target, as a logarithm: at most 0 where it is met, and about as many times too large as the
    noise is too small.
    """

    named: dict[str, float]
    holds: Callable[[Curve], bool]
    value: Callable[[Curve], float]
    excess: Callable[[float], float]
    worse: Callable[[float], float] = float  # turns the value so that less is better

    def distance(self, curve: Curve) -> float:
        """How far a curve is from the target; above 0 where it does not hold."""
        found = self.excess(self.value(curve))
        return found if found > 0 or self.holds(curve) else NEARLY


def calibrate(
    protocol: Protocol,
    view: str | View = View.SERVER,
    unit: str = "record",
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    beta: float | None = None,
    at_alpha: float | None = None,
    advantage: float | None = None,
    sizes: Sequence[int] | None = None,
) -> Calibration:
    """The smallest noise that meets one target: (epsilon, delta), or a trade-off point (beta at alpha), or an advantage.

    It meets the target over all rounds, also where budgets in [[client]] would end some clients' part in them earlier.

    Args:
        protocol: what is run; how much noise it has does not matter.
        view: the adversary.
        unit: what is hidden.
        epsilon: largest epsilon, at `delta`.
        delta: for `epsilon`.
        beta: least false negative rate of a test whose false positive rate is `at_alpha`.
        at_alpha: for `beta`.
        advantage: largest advantage over guessing, 1 - FPR - FNR, of any test.
        sizes: number of records of every client, where known; without them the noise suffices for any.

    Raises:
        UserError: not exactly one target, a target outside its range, or one that no noise meets.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> found = calibrate(Protocol(clients=2, rounds=1, local=local, noise=Gaussian(sigma=1.0)), advantage=0.1)
        >>> round(found.sigma, 2)
        3.98
    """
    target = the_target(epsilon, delta, beta, at_alpha, advantage)
    if harmonized(protocol):
        raise UserError(
            "clients of this protocol have noise of their own, found from their budgets in [[client]]: change those."
        )

    def distance(size: float) -> float:
        # Caps are left out: less noise lowers them, so that next to none would meet any target, with nobody taking part.
        question = asked(noisy(protocol, size), view, unit, None, sizes)
        return min(target.distance(bound.curve) for bound in uncapped_bounds(question))

    size = smallest(distance)
    found = noisy(protocol, size)
    question = asked(found, view, unit, None, sizes)
    offered = list(valid_bounds(question))
    best = min(offered, key=lambda bound: target.worse(target.value(bound.curve)))
    free = [bound for bound in offered if best.vouched and not bound.vouched]
    plain = min(free, key=lambda bound: target.worse(target.value(bound.curve))) if free else None
    guarantee = guaranteed(
        question, best, unconditional=guaranteed(question, plain) if plain is not None else None
    )
    name, value = parameter(found.noise)
    reached = target.value(best.curve)
    return Calibration(
        parameter=name,
        value=value,
        protocol=found,
        guarantee=guarantee,
        target=target.named,
        achieved=reached,
    )


def noisy(protocol: Protocol, size: float) -> Protocol:
    """The protocol with more or less noise."""
    return replace(protocol, noise=resized(protocol.noise, size))


def the_target(
    epsilon: float | None,
    delta: float,
    beta: float | None,
    alpha: float | None,
    advantage: float | None,
) -> Target:
    """The one target that was given."""
    if sum(value is not None for value in (epsilon, beta, advantage)) != 1 or (beta is None) != (
        alpha is None
    ):
        raise UserError(
            "expected one target: epsilon (with delta), or beta with at_alpha, or advantage."
        )
    if epsilon is not None:
        most = epsilon
        checks.positive(epsilon=most)
        checks.proper_delta(delta)
        return Target(
            named={"epsilon": most, "delta": delta},
            holds=lambda curve: curve.delta(most) <= delta and curve.epsilon(delta) <= most,
            value=lambda curve: curve.epsilon(delta),
            excess=lambda value: log_ratio(value, most),
        )
    if advantage is not None:
        limit = advantage
        checks.probability(advantage=limit)
        return Target(
            named={"advantage": limit},
            holds=lambda curve: curve.delta(0.0) <= limit,
            value=lambda curve: curve.delta(0.0),
            excess=lambda value: log_ratio(value, limit),
        )
    least, level = float(beta or 0.0), float(alpha or 0.0)
    checks.probability(beta=least, at_alpha=level)
    if level + least >= 1:
        raise UserError(
            f"beta = {least!r} at alpha = {level!r}: expected alpha + beta below 1, since a coin toss reaches 1."
        )
    return Target(
        named={"beta": least, "at_alpha": level},
        holds=lambda curve: curve.beta(level) >= least,
        value=lambda curve: curve.beta(level),
        excess=lambda value: log_ratio(1 - level - value, 1 - level - least),
        worse=lambda value: -value,
    )


def log_ratio(value: float, limit: float) -> float:
    """log(value / limit), for any two numbers of at least 0; at most 0 exactly where the value is at most the limit.

    Example:
        >>> log_ratio(2.0, 2.0), log_ratio(1.0, 0.0), log_ratio(0.0, 1.0)
        (0.0, inf, -50.0)
    """
    if value <= limit:
        return max(-50.0, math.log(value / limit)) if value > 0 else -50.0
    return max(math.log(value / limit), NEARLY) if limit > 0 and math.isfinite(value) else math.inf


def smallest(distance: Callable[[float], float]) -> float:
    """Returns the smallest noise whose `distance` from a target is at most 0, where more noise comes nearer.

    Regula falsi in the logarithm of the noise, since a bound falls about as the noise grows. Guesses are moved a little towards the farther
    end of the bracket, so that both ends close in on the target; the end that meets it is returned.
    """
    low, high, below, above = enclosed(distance)
    if low == -math.inf:
        return math.exp(high)
    close = math.log(CLOSE)
    for step in range(LONGEST_SEARCH):
        width = high - low
        if width <= close:
            break
        middle = low + width / 2
        if step % 4 != 3 and math.isfinite(below):
            guess = high + above * width / (below - above)
            aside = 0.45 * close if high - guess > guess - low else -0.45 * close
            middle = min(max(guess + aside, low + close / 4), high - close / 4)
        found = distance(math.exp(middle))
        if found <= 0:
            high, above = middle, found
        else:
            low, below = middle, found
    return math.exp(high)


def enclosed(distance: Callable[[float], float]) -> tuple[float, float, float, float]:
    """Returns logarithms of noise that misses the target and of noise that meets it, and their distances; -inf where any noise meets it."""
    at, limit = 0.0, math.log(LARGEST)
    found = distance(1.0)
    while True:
        upwards = found > 0
        step = min(max(1.1 * abs(found), 0.05), math.log(64)) if found != math.inf else math.log(4)
        further = at + step if upwards else at - step
        if further > limit:
            raise UserError(
                "no noise is enough for this target in this view: ask for less, or change the protocol."
            )
        if further < -limit:
            return -math.inf, at, math.inf, found
        beyond = distance(math.exp(further))
        if (beyond > 0) != upwards:
            return (at, further, found, beyond) if upwards else (further, at, beyond, found)
        at, found = further, beyond
