"""The statements of udp-fl about noise and convergence, as printed, and the true values.

None of them is about privacy. The verdicts are in `udp_fl_claims`; `parameters.PARAMETERS` says
what the parameters mean. The effect of T rounds of noise on a model is that of the simplest case,
where the noises add up.
"""

from __future__ import annotations

import math

from sordino.protocol.errors import UserError


def lemma_1(*, step: float, width: float) -> float:
    """Returns the staircase's least expected amplitude by Lemma 1.

    At nu = 1/(1 + e^(lambda/2)) it is Delta e^(lambda/2)/(e^lambda - 1).

    Example:
        >>> round(lemma_1(step=1.0, width=1.0), 8)
        0.95951738
    """
    return width * math.exp(step / 2) / math.expm1(step)


def usual_amplitude(*, step: float, width: float) -> float:
    """Returns the exact E|X| of the staircase at Lemma 1's nu.

    Example:
        >>> round(usual_amplitude(step=1.0, width=1.0), 8)
        0.95951738
    """
    from sordino.mechanisms.staircase_density import StaircaseDensity

    return StaircaseDensity.usual(step=step, width=width).moments()[0]


def least_saving(*, epsilon: float, width: float) -> float:
    """Returns the variance that a staircase saves at least, for small epsilon.

    Section 4.2 states Delta^2 (1/12 - epsilon^2/720 + O(epsilon^4)).

    Example:
        >>> round(least_saving(epsilon=0.5, width=1.0), 8)
        0.08298611
    """
    return width**2 * (1 / 12 - epsilon**2 / 720)


def saved_variance(*, epsilon: float, width: float, delta: float) -> float:
    """Returns the variance of Laplace or Gaussian noise, the smaller one, less the staircase's.

    It is that of one release of one coordinate. The Gaussian keeps epsilon at delta, which the
    other two do not need, and the staircase has the nu of least variance.

    Example:
        >>> round(saved_variance(epsilon=0.5, width=1.0, delta=1e-300), 4)
        0.083
        >>> saved_variance(epsilon=1e-4, width=1.0, delta=1e-5) < 0
        True
    """
    from scipy.optimize import minimize_scalar

    from sordino.mechanisms.staircase_density import StaircaseDensity
    from sordino.privacy.curves.gaussian import mu_from

    def spread_of(nu: float) -> float:
        """Returns the variance of the staircase with some share of a step at its upper height.

        Args:
            nu: The share.
        """
        return StaircaseDensity(step=epsilon, width=width, nu=nu).moments()[1]

    staircase = float(minimize_scalar(spread_of, bounds=(0.0, 1.0), method="bounded").fun)
    laplace = 2 * (width / epsilon) ** 2
    gaussian = (width / mu_from(epsilon, delta)) ** 2
    return min(laplace, gaussian) - staircase


def mean_of_ends(*, start: float) -> float:
    """Returns the mean cross-entropy of two networks, which would bound that of their midpoint.

    A network of two weights, w and v, gives the logit w v to a record of class 1. The two networks
    are (a, a) and (-a, -a), a being `start`, and equally good.

    Example:
        >>> round(mean_of_ends(start=2.0), 6)
        0.01815
    """
    return math.log1p(math.exp(-(start**2)))


def loss_of_midpoint(*, start: float) -> float:
    """Returns the cross-entropy of the network halfway between the two: that of a logit of 0.

    Example:
        >>> round(loss_of_midpoint(start=2.0), 6)
        0.693147
    """
    midpoint = (start - start) / 2
    return math.log1p(math.exp(-(midpoint * midpoint)))


def theorem_3(*, step: float, width: float, nu: float, dimension: int) -> float:
    """Returns the expected l1 distance of Theorem 3 at T = 1.

    The theorem states m/(1 - e^-lambda) (nu^2 Delta^2 + e^-lambda Delta^2 - e^-lambda nu^2 Delta^2
    + Delta e^-lambda).

    Example:
        >>> round(theorem_3(step=1.0, width=10.0, nu=0.3, dimension=1), 1)
        73.0
    """
    # As printed, although the units of Delta and Delta^2 do not agree.
    fallen = math.exp(-step)
    inner = nu**2 * width**2 + fallen * width**2 - fallen * nu**2 * width**2 + width * fallen
    return dimension / (1 - fallen) * inner


def staircase_distance(*, step: float, width: float, nu: float, dimension: int) -> float:
    """Returns the exact expected l1 distance after one release: m E|X| (docs/theory.md#b4).

    Example:
        >>> round(staircase_distance(step=1.0, width=10.0, nu=0.3, dimension=1), 3)
        9.629
    """
    from sordino.mechanisms.staircase_density import StaircaseDensity

    return dimension * StaircaseDensity(step=step, width=width, nu=nu).moments()[0]


def theorem_4(*, width: float, epsilon: float) -> float:
    """Returns the additional rounds of Theorem 4, Delta^2 e^epsilon/(e^epsilon - 1)^2.

    The theorem states their order only; the constant is taken as 1.

    Example:
        >>> round(theorem_4(width=1.0, epsilon=1.0), 6)
        0.920674
    """
    return width**2 * math.exp(epsilon) / math.expm1(epsilon) ** 2


def additional_rounds(
    *, width: float, epsilon: float, rate: float, curvature: float, start: float, tolerance: float
) -> float:
    """Returns how many more rounds noisy descent on curvature/2 w^2 needs; may be infinite.

    It begins at the distance `start` from the minimum and ends within `tolerance` of it, in root
    mean square. With theta <- (1 - rate curvature) theta - rate noise, the square of the distance
    shrinks by the square of the factor and gains rate^2 Var(noise) in every round, so that it never
    falls below their fixed point.

    Raises:
        UserError: Descent without noise would not converge, or epsilon is 0.

    Example:
        >>> setting = {"width": 1.0, "epsilon": 1.0, "rate": 0.1, "curvature": 1.0, "start": 1.0}
        >>> additional_rounds(**setting, tolerance=0.1)
        inf
        >>> additional_rounds(**setting, tolerance=0.5)
        2
    """
    from sordino.mechanisms.staircase_density import StaircaseDensity

    factor = 1 - rate * curvature
    if not 0 < factor < 1:
        raise UserError(
            f"rate = {rate!r}: without noise, descent needs a rate below "
            f"1/curvature = {1 / curvature:g} here."
        )
    if epsilon == 0:
        raise UserError("epsilon = 0: expected a number above 0 for the staircase.")
    variance = StaircaseDensity.usual(step=epsilon, width=width).moments()[1]
    # The stationary variance of descent whose noise never shrinks.
    floor = rate**2 * variance / (1 - factor**2)
    # Neither needs any round.
    if start <= tolerance:
        return 0
    if floor >= tolerance**2:
        return math.inf

    def rounds_until(target: float) -> int:
        """Returns the smallest t with factor^(2t) at most the target.

        Args:
            target: The share of the squared distance that may be left.
        """
        return math.ceil(math.log(target) / (2 * math.log(factor)))

    with_noise = rounds_until((tolerance**2 - floor) / (start**2 - floor))
    without_noise = rounds_until(tolerance**2 / start**2)
    return with_noise - without_noise


def theorem_5(*, start: float, optimum: float, rate: float, curvature: float) -> float:
    """Returns the control point of Theorem 5, Eq. (5): 1.2/L + 1.1 w - 0.1 v.

    Here v is one gradient step from w, on the loss L/2 (w - optimum)^2.

    Example:
        >>> round(theorem_5(start=1.0, optimum=0.0, rate=0.1, curvature=1.0), 6)
        2.21
    """
    stepped = start - rate * curvature * (start - optimum)
    return 1.2 / curvature + 1.1 * start - 0.1 * stepped


def lemma_4(*, order: float, sensitivity: float, epsilon: float) -> float:
    """Returns the expected amplitude of Gaussian noise by Lemma 4: 2 sigma/sqrt(2 pi).

    Sigma is that of Theorem 6.

    Example:
        >>> round(lemma_4(order=2.0, sensitivity=1.0, epsilon=1.0), 8)
        0.79788456
    """
    sigma = calibrated_sigma(order=order, sensitivity=sensitivity, epsilon=epsilon)
    return 2 * sigma / math.sqrt(2 * math.pi)


def calibrated_sigma(*, order: float, sensitivity: float, epsilon: float) -> float:
    """Returns the sigma of Theorem 6: sigma^2 = alpha Delta^2/(2 epsilon).

    Example:
        >>> calibrated_sigma(order=2.0, sensitivity=1.0, epsilon=1.0)
        1.0
    """
    return math.sqrt(order * sensitivity**2 / (2 * epsilon))


def lemma_5(*, sensitivity: float, scale: float) -> float:
    """Returns the expected amplitude of the Laplace mechanism f(Delta, b) by Lemma 5: Delta/b.

    Example:
        >>> lemma_5(sensitivity=1.0, scale=2.0)
        0.5
    """
    return sensitivity / scale


def laplace_amplitude(*, scale: float) -> float:
    """Returns the exact E|X| of the density e^(-|x|/b)/(2b) of Appendices A.3 and D: b.

    Example:
        >>> laplace_amplitude(scale=2.0)
        2.0
    """
    return scale


def theorem_8(*, dimension: int, sigma: float) -> float:
    """Returns the expected l1 distance of Theorem 8, sqrt(2 m^2 sigma^2/pi), for every T.

    Example:
        >>> round(theorem_8(dimension=1, sigma=1.0), 8)
        0.79788456
    """
    return math.sqrt(2 * dimension**2 * sigma**2 / math.pi)


def gaussian_distance(*, dimension: int, sigma: float, rounds: int) -> float:
    """Returns the exact m E|X_1 + ... + X_T| of Gaussian noises: m sigma sqrt(2 T/pi).

    Example:
        >>> round(gaussian_distance(dimension=1, sigma=1.0, rounds=100), 8)
        7.97884561
    """
    return dimension * sigma * math.sqrt(2 * rounds / math.pi)


def theorem_9(*, dimension: int, scale: float, rounds: int) -> float:
    """Returns the expected l1 distance after T rounds by Theorem 9: T m b.

    Example:
        >>> theorem_9(dimension=1, scale=2.0, rounds=3)
        6.0
    """
    return rounds * dimension * scale


def laplace_distance(*, dimension: int, scale: float, rounds: int) -> float:
    """Returns the exact m E|X_1 + ... + X_T| of Laplace noises.

    It is 2 m b Gamma(T + 1/2)/(sqrt(pi) Gamma(T)): the sum of T Laplace variables is the difference
    of two Gamma(T) variables, of which this is Gini's mean difference.

    Example:
        >>> round(laplace_distance(dimension=1, scale=1.0, rounds=1), 8)
        1.0
        >>> round(laplace_distance(dimension=1, scale=1.0, rounds=100), 6)
        11.269696
    """
    # The logarithm of the gamma function, since the function itself overflows at 171 rounds.
    gamma_ratio = math.exp(math.lgamma(rounds + 0.5) - math.lgamma(rounds))
    return 2 * dimension * scale * gamma_ratio / math.sqrt(math.pi)
