"""The local rule of PriFedSync (Algorithm 2): noisy gradient steps, and what a client does with their result is free of charge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.entries import Choice, Integer, Number, Tagged, Value, entry
from sordino.protocol.schedules import SCHEDULES, Schedule

SAMPLINGS = ("fixed", "poisson")
OPTIMIZERS = ("sgd", "momentum", "adam", "adagrad")
DRAWS = ("secret", "public")
DRAWS_DOC = "whether adversaries know which records a step draws: secret as the noise is, or public"


@dataclass(frozen=True, kw_only=True)
class NoisySgd(Value):
    """K noisy steps: every example's gradient is clipped to norm C, noise joins their sum, which is divided by the public constant B.

    The noise is `Gaussian(multiplier=...)`: its standard deviation on the sum is multiplier x 2C for batches of a fixed size, whose sum
    moves by 2C when a record is replaced, and multiplier x C for Poisson batches, whose sum moves by C when a record is added or
    removed. The optimizer, weight decay and all else that is made of noisy sums is post-processing.

    Example:
        >>> from sordino.protocol import Constant
        >>> rule = NoisySgd(steps=38, batch=16, clip=1, schedule=Constant(rate=0.001), optimizer="adam")
        >>> rule.sampling, rule.clip_norm, rule.noise_unit
        ('fixed', 'l2', 2.0)
    """

    tag: ClassVar[str] = "noisy-sgd"
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
    def noise_unit(self) -> float:
        """Standard deviation of the noise on the sum of clipped gradients, for a multiplier of 1."""
        return self.clip * (2.0 if self.sampling == "fixed" else 1.0)
