"""The price of a training that is stated by its noise, sampling and steps: is an epsilon true?

Nothing else is known of the training. It is the usual one of papers and libraries: every step
releases a sum of contributions of bounded norm under Gaussian noise, whose standard deviation is
`noise multiplier` times that norm; a step uses a sample of all units, which nobody sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sordino.privacy.amplification import subsampling
from sordino.privacy.amplification.two_sided import price_two_sided
from sordino.privacy.curves import checks
from sordino.privacy.curves.curve import Curve
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.protocol import InvalidValue

SAMPLINGS = ("poisson", "fixed", "full")
# Nobody trains with noise beyond these, and the accountants that are compared fail there.
LEAST_MULTIPLIER = 0.05
MOST_MULTIPLIER = 1e6
GRID = 0.01  # the share of epsilon by which the grid of a loss distribution may be too careful
ADJACENCIES = ("add-or-remove", "replace-one")


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A training as its authors state it.

    Attributes:
        noise_multiplier: The standard deviation of the noise on a step's sum, over the largest norm
            of one contribution.
        steps: The number of steps, or rounds.
        sampling: "poisson": each unit is in a step with probability `rate`; "fixed": a step has a
            fixed number of distinct units, a share `rate` of all; "full": every step has all of
            them.
        rate: The rate of the sampling; 1 for "full".
        adjacency: How two neighbouring data sets differ, "add-or-remove" or "replace-one".

    Example:
        >>> Stated(noise_multiplier=1.0, steps=1000, rate=0.01).sampling
        'poisson'
    """

    noise_multiplier: float
    steps: int
    sampling: str = "poisson"
    rate: float = 1.0
    adjacency: str = "add-or-remove"

    def __post_init__(self) -> None:
        if not LEAST_MULTIPLIER <= self.noise_multiplier <= MOST_MULTIPLIER:
            allowed = f"a number from {LEAST_MULTIPLIER:g} to {MOST_MULTIPLIER:g}"
            raise InvalidValue("noise-multiplier", self.noise_multiplier, allowed)
        checks.require_whole(at_least=1, steps=self.steps)
        if self.sampling not in SAMPLINGS:
            raise InvalidValue("sampling", self.sampling, "poisson, fixed or full")
        if self.adjacency not in ADJACENCIES:
            raise InvalidValue("adjacency", self.adjacency, "add-or-remove or replace-one")
        if not 0 < self.rate <= 1:
            raise InvalidValue("rate", self.rate, "a number above 0, and at most 1")
        # A rate with full batches shows that one of the two was meant otherwise.
        if self.sampling == "full" and self.rate != 1:
            raise InvalidValue("rate", self.rate, "1, or left out, with sampling = full")
        if self.sampling == "fixed" and self.adjacency == "add-or-remove" and self.rate < 1:
            raise InvalidValue(
                "adjacency",
                self.adjacency,
                "replace-one with sampling = fixed",
                "A fixed number of units out of one unit less is another rate, and no bound here "
                "covers that.",
            )

    @property
    def mu(self) -> float:
        """The Gaussian parameter of a step whose sample holds the unit.

        A contribution that is replaced moves the sum by twice its norm.
        """
        # Multipliers are stated in units of one contribution; replacing takes one away and adds
        # another.
        return (2.0 if self.adjacency == "replace-one" else 1.0) / self.noise_multiplier


def find_stated_curve(stated: Stated) -> Curve:
    """Returns a privacy curve that is proved for the training.

    Under replace-one, Poisson sampling gives the two-sided pair (docs/theory.md#a15), and samples
    of a fixed size give C_q(G_mu) (docs/theory.md#c1).

    Args:
        stated: The training, as it is stated.

    Example:
        >>> stated = Stated(noise_multiplier=1.0, rate=0.01, steps=1000)
        >>> round(find_stated_curve(stated).epsilon(1e-5), 2)
        1.83
    """
    # Nothing is drawn, so nothing amplifies: plain Gaussian composition is exact.
    if stated.sampling == "full" or stated.rate == 1:
        return GaussianCurve(mu=stated.mu).repeat(stated.steps)
    if stated.sampling == "fixed":
        return subsampling.compose_fixed_batches(mu=stated.mu, rate=stated.rate, steps=stated.steps)
    if stated.adjacency == "replace-one":
        # Either unit alone moves the sum by its norm.
        return price_two_sided(reach=stated.mu / 2, rate=stated.rate, steps=stated.steps)
    return subsampling.compose_poisson_batches(
        multiplier=stated.noise_multiplier, rate=stated.rate, steps=stated.steps
    )


def accountant_epsilon(stated: Stated, delta: float) -> tuple[float, str]:
    """Returns the epsilon that dp_accounting gives, and the name of its accountant.

    Args:
        stated: The training, as it is stated.
        delta: The delta of the guarantee, above 0 and below 1.
    """
    import dp_accounting
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    plain = stated.sampling == "full" or stated.rate == 1
    # Its multiplier is in units of the change between neighbours, which is twice the norm where a
    # contribution is replaced.
    gaussian = dp_accounting.GaussianDpEvent(1 / stated.mu)
    event: Any = gaussian
    accountant: Any = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    name = "dp_accounting, privacy loss distributions"
    if not plain and stated.sampling == "fixed":
        size = 10**6
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            size, max(1, math.ceil(stated.rate * size)), gaussian
        )
        accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
        name = "dp_accounting, Rényi accountant"
    elif not plain:
        if stated.adjacency == "replace-one":
            # Here its multiplier is in units of one contribution.
            gaussian = dp_accounting.GaussianDpEvent(stated.noise_multiplier)
            accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
        event = dp_accounting.PoissonSampledDpEvent(stated.rate, gaussian)
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, stated.steps))
    return float(accountant.get_epsilon(delta)), name


@dataclass(frozen=True, kw_only=True)
class StatedVerdict:
    """Whether a stated epsilon is true.

    Attributes:
        stated: The training, as it is stated.
        epsilon, delta: The guarantee that was claimed.
        bound: The epsilon at `delta` that is proved.
        accountant: The epsilon that dp_accounting gives at `delta`.
        accountant_name: The name of its accountant.
    """

    stated: Stated
    epsilon: float
    delta: float
    bound: float
    accountant: float
    accountant_name: str

    @property
    def true(self) -> bool:
        """Whether the claim follows from the proved bound."""
        # The bound is rounded up, so a claim at or above it is certainly true.
        return self.bound <= self.epsilon

    @property
    def verdict(self) -> str:
        """The verdict: "true", "false", or "not proved" where the bound may be too large."""
        if self.true:
            return "true"
        # Of a fixed number of units no pair is known that is the worst in both directions.
        tight = self.stated.sampling != "fixed" or self.stated.rate == 1
        return "false" if tight and self.bound * (1 - GRID) > self.epsilon else "not proved"

    def as_document(self) -> dict[str, Any]:
        """Returns the verdict as a JSON object."""
        return {
            "true": self.true,
            "verdict": self.verdict,
            "epsilon": self.bound,
            "claimed": self.epsilon,
            "delta": self.delta,
            "dp_accounting": self.accountant,
            "accountant": self.accountant_name,
            "noise_multiplier": self.stated.noise_multiplier,
            "steps": self.stated.steps,
            "sampling": self.stated.sampling,
            "rate": self.stated.rate,
            "adjacency": self.stated.adjacency,
        }


def check_stated(stated: Stated, *, epsilon: float, delta: float) -> StatedVerdict:
    """Checks whether a training satisfies a claimed epsilon at a delta.

    Args:
        stated: The training, as it is stated.
        epsilon: The epsilon that was claimed.
        delta: The delta at which it was claimed.

    Raises:
        InvalidValue: An epsilon or a delta out of its range.

    Example:
        >>> stated = Stated(noise_multiplier=1.0, rate=0.01, steps=1000)
        >>> check_stated(stated, epsilon=2.0, delta=1e-5).true
        True
    """
    if not 0 <= epsilon < math.inf:
        raise InvalidValue("epsilon", epsilon, "a finite number of at least 0")
    if not 0 < delta < 1:
        raise InvalidValue("delta", delta, "a number between 0 and 1")
    accountant, name = accountant_epsilon(stated, delta)
    return StatedVerdict(
        stated=stated,
        epsilon=epsilon,
        delta=delta,
        bound=find_stated_curve(stated).epsilon(delta),
        accountant=accountant,
        accountant_name=name,
    )
