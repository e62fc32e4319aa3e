"""The local rule of PriFedSync (Algorithm 2): noisy gradient steps.

Whatever a client makes of the noisy sums costs nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Tagged, entry
from sordino.protocol.local_rule import RuleKind
from sordino.protocol.schedules import SCHEDULES, Schedule
from sordino.protocol.value_checks import Choice, Integer, Number

# A record of a fixed batch can only be replaced; one of a Poisson batch may also be absent.
SAMPLINGS = ("fixed", "poisson")
# Each works only on noisy sums, so none of them changes the price.
OPTIMIZERS = ("sgd", "momentum", "adam", "adagrad")
DRAWS = ("secret", "public")
DRAWS_DOC = "whether adversaries know which records a step draws: secret as the noise is, or public"


@dataclass(frozen=True, kw_only=True)
class NoisySgd(RuleKind):
    """K noisy steps on sums of clipped example gradients.

    Every example's gradient is clipped to norm C, noise joins their sum, which is divided by the
    public constant B. Of `Gaussian(multiplier=...)` the standard deviation on the sum is multiplier
    x 2C for batches of a fixed size, whose sum moves by 2C when a record is replaced, and
    multiplier x C for Poisson batches, whose sum moves by C when a record is added or removed. The
    size of other noise is absolute.
    The optimizer, weight decay and all else that is made of noisy sums is post-processing.

    Example:
        >>> from sordino.protocol import Constant
        >>> schedule = Constant(rate=0.001)
        >>> rule = NoisySgd(steps=38, batch=16, clip=1, schedule=schedule, optimizer="adam")
        >>> rule.sampling, rule.clip_norm, rule.noise_unit
        ('fixed', 'l2', 2.0)
    """

    tag: ClassVar[str] = "noisy-sgd"
    noise_in_steps: ClassVar[bool] = True
    steps: int = entry(Integer(at_least=1), "K: local steps in a round")
    batch: int = entry(
        Integer(at_least=1), "B: records that a step draws, exactly (fixed) or on average (poisson)"
    )
    clip: float = entry(Number(above=0), "C: largest norm of an example's gradient")
    schedule: Schedule = entry(Tagged(SCHEDULES, "kind"), "learning rate of every step")
    sampling: str = entry(
        Choice(SAMPLINGS),
        "fixed: B distinct records; poisson: each record with probability B/records",
        "fixed",
    )
    optimizer: str = entry(
        Choice(OPTIMIZERS),
        "what is made of the noisy gradients; its state stays with the client",
        "sgd",
    )
    clip_norm: str = entry(Choice(("l2", "l1")), "which norm is clipped", "l2")
    weight_decay: float = entry(
        Number(at_least=0), "lambda: lambda x weights joins every noisy gradient", 0.0
    )
    minibatches: str = entry(Choice(DRAWS), DRAWS_DOC, "secret")

    @property
    def varying_batches(self) -> bool:
        """Whether the size of a batch is random, each record being in it by a separate coin."""
        return self.sampling == "poisson"

    @property
    def noise_unit(self) -> float:
        """Standard deviation of the noise on a sum of clipped gradients, for a multiplier of 1."""
        # A replaced record takes away one clipped gradient and brings another; an added or removed
        # one is a single gradient.
        return self.clip * (1.0 if self.varying_batches else 2.0)
