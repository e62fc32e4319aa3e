"""Published statements of udp-fl about its noise and its convergence, as printed, and the values that are so; not about privacy.

`step`, `width` and `nu` are the staircase's lambda, Delta and nu, as in `sordino.privacy.staircase`; `dimension` is the number m of
parameters. What T rounds of noise do to a model is taken in the simplest case, where the noises add up.
"""

from __future__ import annotations

import math

from sordino.protocol.errors import UserError


def lemma_1(*, step: float, width: float) -> float:
    """Lemma 1: the staircase's least expected amplitude, at nu = 1/(1 + e^(lambda/2)), is Delta e^(lambda/2)/(e^lambda - 1).

    Example:
        >>> round(lemma_1(step=1.0, width=1.0), 8)
        0.95951738
    """
    return width * math.exp(step / 2) / math.expm1(step)


def usual_amplitude(*, step: float, width: float) -> float:
    """Exact E|X| of the staircase at that nu.

    Example:
        >>> round(usual_amplitude(step=1.0, width=1.0), 8)
        0.95951738
    """
    from sordino.privacy.staircase import Staircase

    return Staircase.usual(step=step, width=width).moments()[0]


def theorem_3(*, step: float, width: float, nu: float, dimension: int) -> float:
    """Theorem 3 at T = 1: m/(1 - e^-lambda) (nu^2 Delta^2 + e^-lambda Delta^2 - e^-lambda nu^2 Delta^2 + Delta e^-lambda).

    Example:
        >>> round(theorem_3(step=1.0, width=10.0, nu=0.3, dimension=1), 1)
        73.0
    """
    fallen = math.exp(-step)
    inner = nu**2 * width**2 + fallen * width**2 - fallen * nu**2 * width**2 + width * fallen
    return dimension / (1 - fallen) * inner


def staircase_distance(*, step: float, width: float, nu: float, dimension: int) -> float:
    """Exact expected l1 distance after one release: m E|X|; the printed one lacks the height y of the density (THEORY B4).

    Example:
        >>> round(staircase_distance(step=1.0, width=10.0, nu=0.3, dimension=1), 3)
        9.629
    """
    from sordino.privacy.staircase import Staircase

    return dimension * Staircase(step=step, width=width, nu=nu).moments()[0]


def theorem_4(*, width: float, epsilon: float) -> float:
    """Theorem 4: additional rounds O(Delta^2 e^epsilon/(e^epsilon - 1)^2), here with the constant 1.

    Example:
        >>> round(theorem_4(width=1.0, epsilon=1.0), 6)
        0.920674
    """
    return width**2 * math.exp(epsilon) / math.expm1(epsilon) ** 2


def additional_rounds(
    *, width: float, epsilon: float, rate: float, curvature: float, start: float, tolerance: float
) -> float:
    """Additional rounds until noisy descent on curvature/2 w^2 is within `tolerance` of the minimum in root mean square; may be infinite.

    theta <- (1 - rate curvature) theta - rate noise: the square of the distance shrinks by the square of the factor and gains
    rate^2 Var(noise) in every round, so that it never falls below their fixed point.

    Example:
        >>> additional_rounds(width=1.0, epsilon=1.0, rate=0.1, curvature=1.0, start=1.0, tolerance=0.1)
        inf
        >>> additional_rounds(width=1.0, epsilon=1.0, rate=0.1, curvature=1.0, start=1.0, tolerance=0.5)
        2
    """
    from sordino.privacy.staircase import Staircase

    factor = 1 - rate * curvature
    if not 0 < factor < 1:
        raise UserError(
            f"rate = {rate!r}: without noise, descent needs a rate below 1/curvature = {1 / curvature:g} here."
        )
    if epsilon == 0:
        raise UserError("epsilon = 0: expected a number above 0 for the staircase.")
    variance = Staircase.usual(step=epsilon, width=width).moments()[1]
    floor = rate**2 * variance / (1 - factor**2)
    if start <= tolerance:
        return 0
    if floor >= tolerance**2:
        return math.inf

    def rounds(target: float) -> int:
        """Smallest t with factor^(2t) at most the target."""
        return math.ceil(math.log(target) / (2 * math.log(factor)))

    return rounds((tolerance**2 - floor) / (start**2 - floor)) - rounds(tolerance**2 / start**2)


def theorem_5(*, start: float, optimum: float, rate: float, curvature: float) -> float:
    """Theorem 5, Eq. (5): the best control point is 1.2/L + 1.1 w - 0.1 v, v being one gradient step from w on L/2 (w - optimum)^2.

    Example:
        >>> round(theorem_5(start=1.0, optimum=0.0, rate=0.1, curvature=1.0), 6)
        2.21
    """
    stepped = start - rate * curvature * (start - optimum)
    return 1.2 / curvature + 1.1 * start - 0.1 * stepped


def lemma_4(*, order: float, sensitivity: float, epsilon: float) -> float:
    """Lemma 4: the expected amplitude of the Gaussian is 2 sigma/sqrt(2 pi), sigma = sqrt(alpha Delta^2/(2 epsilon)).

    Example:
        >>> round(lemma_4(order=2.0, sensitivity=1.0, epsilon=1.0), 8)
        0.79788456
    """
    return (
        2
        * calibrated_sigma(order=order, sensitivity=sensitivity, epsilon=epsilon)
        / math.sqrt(2 * math.pi)
    )


def calibrated_sigma(*, order: float, sensitivity: float, epsilon: float) -> float:
    """Theorem 6's noise: sigma^2 = alpha Delta^2/(2 epsilon).

    Example:
        >>> calibrated_sigma(order=2.0, sensitivity=1.0, epsilon=1.0)
        1.0
    """
    return math.sqrt(order * sensitivity**2 / (2 * epsilon))


def lemma_5(*, sensitivity: float, scale: float) -> float:
    """Lemma 5: the expected amplitude of the Laplace mechanism f(Delta, b) is Delta/b.

    Example:
        >>> lemma_5(sensitivity=1.0, scale=2.0)
        0.5
    """
    return sensitivity / scale


def laplace_amplitude(*, scale: float) -> float:
    """Exact E|X| of the density e^(-|x|/b)/(2b) of the paper's Appendices A.3 and D: b.

    Example:
        >>> laplace_amplitude(scale=2.0)
        2.0
    """
    return scale


def theorem_8(*, dimension: int, sigma: float) -> float:
    """Theorem 8: the expected l1 distance after T rounds is sqrt(2 m^2 sigma^2/pi), whatever T.

    Example:
        >>> round(theorem_8(dimension=1, sigma=1.0), 8)
        0.79788456
    """
    return math.sqrt(2 * dimension**2 * sigma**2 / math.pi)


def gaussian_distance(*, dimension: int, sigma: float, rounds: int) -> float:
    """Exact m E|X_1 + ... + X_T| of Gaussian noises: m sigma sqrt(2 T/pi).

    Example:
        >>> round(gaussian_distance(dimension=1, sigma=1.0, rounds=100), 8)
        7.97884561
    """
    return dimension * sigma * math.sqrt(2 * rounds / math.pi)


def theorem_9(*, dimension: int, scale: float, rounds: int) -> float:
    """Theorem 9: the expected l1 distance after T rounds is T m b.

    Example:
        >>> theorem_9(dimension=1, scale=2.0, rounds=3)
        6.0
    """
    return rounds * dimension * scale


def laplace_distance(*, dimension: int, scale: float, rounds: int) -> float:
    """Exact m E|X_1 + ... + X_T| of Laplace noises: 2 m b Gamma(T + 1/2)/(sqrt(pi) Gamma(T)).

    The sum of T Laplace variables is the difference of two Gamma(T) variables, of which this is Gini's mean difference.

    Example:
        >>> round(laplace_distance(dimension=1, scale=1.0, rounds=1), 8), round(laplace_distance(dimension=1, scale=1.0, rounds=100), 6)
        (1.0, 11.269696)
    """
    return (
        2
        * dimension
        * scale
        * math.exp(math.lgamma(rounds + 0.5) - math.lgamma(rounds))
        / math.sqrt(math.pi)
    )
