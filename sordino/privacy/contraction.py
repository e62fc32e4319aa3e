"""Where local training really contracts: clipped generalised linear models (THEORY A9).

For a loss h(<w, x>; y) with h convex and h'' <= curvature, clipping each example's gradient to `clip` gives the gradient of
another convex, smooth loss. With |x| <= feature_norm, weight decay outside the clip and a small enough rate, one step of gradient
descent contracts. Conditions that code must enforce: scalar output, per-example clip, the feature norm including the bias
coordinate, weight decay on every coordinate, rates that do not depend on data.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino.privacy import checks
from sordino.protocol.errors import UserError

LOGISTIC_CURVATURE = 0.25  # largest second derivative of log(1 + e^-z)
SQUARED_CURVATURE = 1.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of gradient descent on the clipped loss.

    Example:
        >>> Step(rate=0.5, decay=0.1, curvature=LOGISTIC_CURVATURE, feature_norm=1.0, clip=1.0).factor
        0.95
    """

    rate: float
    decay: float
    curvature: float
    feature_norm: float
    clip: float

    def __post_init__(self) -> None:
        checks.positive(rate=self.rate)
        checks.finite(decay=self.decay, curvature=self.curvature, feature_norm=self.feature_norm, clip=self.clip)
        limit = self.decay + self.curvature * self.feature_norm**2
        if self.rate * limit >= 2:
            raise UserError(
                f"rate = {self.rate!r}: a clipped linear model contracts only below 2 / (decay + curvature feature_norm^2) = "
                f"{2 / limit:.6g} (THEORY A9); lower the rate, the feature norm or the weight decay."
            )

    @property
    def factor(self) -> float:
        """Lipschitz constant c = max(|1 - eta lambda|, |1 - eta (lambda + beta X^2)|) of the step, at most 1."""
        steepest = self.decay + self.curvature * self.feature_norm**2
        return max(abs(1 - self.rate * self.decay), abs(1 - self.rate * steepest))


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """What one round does to the distance of two neighbouring global models: d <- rho d + gamma.

    Example:
        >>> Dynamics(rho=0.5, gamma=1.0).rho
        0.5
    """

    rho: float
    gamma: float


def full_batch(step: Step, *, steps: int, records: int, weight: float) -> Dynamics:
    """K full-batch steps at the client whose record is replaced; `weight` is that client's weight in the mean.

    rho = c^K, gamma = weight (2 eta V / n_i) (1 - c^K) / (1 - c) (THEORY A9).

    Example:
        >>> step = Step(rate=0.5, decay=0.1, curvature=0.25, feature_norm=1.0, clip=1.0)
        >>> round(full_batch(step, steps=5, records=600, weight=0.01).rho, 8)
        0.77378094
    """
    checks.whole(at_least=1, steps=steps, records=records)
    checks.probability(weight=weight)
    return Dynamics(rho=step.factor**steps, gamma=weight * 2 * step.rate * step.clip / records * _geometric(step.factor, steps))


def cyclic_batches(step: Step, *, epochs: int, batches: int, batch: int, weight: float) -> Dynamics:
    """E passes over a fixed public partition of the records into `batches` batches of `batch` records.

    rho = c^(E n_b), gamma = weight (2 eta V / B) sum_{e<E} c^(e n_b) (THEORY A9): the replaced record is used once in each pass,
    at worst in the last batch, after which E - 1 - e whole passes contract.

    Example:
        >>> step = Step(rate=0.5, decay=0.1, curvature=0.25, feature_norm=1.0, clip=1.0)
        >>> round(cyclic_batches(step, epochs=3, batches=10, batch=60, weight=0.01).rho, 8)
        0.21463876
    """
    checks.whole(at_least=1, epochs=epochs, batches=batches, batch=batch)
    checks.probability(weight=weight)
    one_pass = step.factor**batches
    return Dynamics(rho=one_pass**epochs, gamma=weight * 2 * step.rate * step.clip / batch * _geometric(one_pass, epochs))


def _geometric(ratio: float, terms: int) -> float:
    """1 + ratio + ... + ratio^(terms - 1), summed directly: no cancellation near 1."""
    total, power = 0.0, 1.0
    for _ in range(terms):
        total += power
        power *= ratio
    return total
