"""The local rule dp-sgd: one step a round, on a lot that all clients draw together.

It is DP-SGD of one data set (Abadi et al. 2016) whose records lie with the clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.protocol.adaptive_clip import AdaptiveClip
from sordino.protocol.entries import Table, Tagged, entry
from sordino.protocol.local_rule import RuleKind
from sordino.protocol.noisy_sgd_rule import SAMPLINGS
from sordino.protocol.schedules import SCHEDULES, Constant, Schedule
from sordino.protocol.value_checks import Choice, Integer, Maybe, Number


@dataclass(frozen=True, kw_only=True)
class DpSgd(RuleKind):
    """Every client sends its sum of clipped example gradients and its share of one noise.

    The server divides the sum over all clients by the expected size of the lot, a public number,
    and steps. The noise is `Gaussian(multiplier=...)`: its standard deviation on the sum over all
    clients is multiplier x V.

    Example:
        >>> rule = DpSgd(batch=6, clip=1)
        >>> rule.sampling, rule.steps, rule.schedule.rate
        ('poisson', 1, 1.0)
    """

    tag: ClassVar[str] = "dp-sgd"
    joins_lot: ClassVar[bool] = True
    # With a second local step one record would move all later gradients (docs/theory.md#a8).
    steps: ClassVar[int] = 1
    # The norm that normal noise is priced by (docs/theory.md#a13).
    clip_norm: ClassVar[str] = "l2"
    batch: int = entry(
        Integer(at_least=1),
        "B: records that a client draws on average (poisson) or exactly (fixed); a lot has B of "
        "every client",
    )
    clip: float = entry(Number(above=0), "V: largest norm of an example's gradient")
    schedule: Schedule = entry(
        Tagged(SCHEDULES, "kind"),
        "learning rate of the server's step; it multiplies the server optimizer's",
        Constant(rate=1.0),
    )
    sampling: str = entry(
        Choice(SAMPLINGS),
        "poisson: each record with probability B / (mean records of a client), unseen; "
        "fixed: B distinct records of every client, unseen",
        "poisson",
    )
    adaptive: AdaptiveClip | None = entry(
        Maybe(Table(AdaptiveClip)),
        "the clip follows a quantile of the gradients' norms, from local.clip on; left out: it "
        "stays",
        None,
    )

    @property
    def varying_batches(self) -> bool:
        """Whether the size of a lot is random, each record being in it by a separate coin."""
        return self.sampling == "poisson"
