"""Noisy-sgd with a real model: what every noisy step of the attacked client says about the canary.

The adversary knows the model before each step, since that is made of noisy sums that it has seen, and the records of the batch but one:
whether the canary's place is in the batch stays hidden. Of a batch of fixed size it is told all records but one, which is the canary's
place or any other; so what it is told does not depend on which. All clipped gradients are those of the client's own code.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sordino.audit.replay import LocalWork, SeenSums
from sordino.audit.worst_case import Pair
from sordino.federation.assignment import minibatches
from sordino.federation.many import ManyRound
from sordino.federation.models.per_example import ClippedSum
from sordino.federation.setup import Setup
from sordino.privacy.sizes import size_of
from sordino.protocol import NoisySgd


class CanarySteps:
    """Scores one training by the attacked client's noisy steps. It holds the score so far.

    Args:
        pair: the federation with its own records, and with the canary.
        setup: the side that is trained, with the number of the training.
        clients: who repeats local work.
        unit: "record" or "client".
    """

    def __init__(self, pair: Pair, setup: Setup, clients: LocalWork, unit: str) -> None:
        self._pair, self._setup, self._clients, self._unit = pair, setup, clients, unit
        self.scores = np.zeros(1)

    def see(self, seen: ManyRound) -> None:
        """Take in one round."""
        attacked, rule = self._pair.attacked, self._setup.protocol.local
        if attacked not in seen.means or not isinstance(rule, NoisySgd):
            return
        drawn = minibatches(self._setup, rule, client=attacked, round=seen.round)
        steps = ScoredSums(seen.means[attacked], rule, drawn, self._ratio)
        self._clients.work(
            client=attacked,
            round=seen.round,
            weights=seen.broadcast,
            first=self._setup.training,
            kept=seen.kept.get(attacked, {}),
            sums=steps.instead,
        )
        self.scores += steps.score

    def _ratio(
        self, seen: Tensor, rows: np.ndarray, sums: Callable[[Setup, np.ndarray], Tensor]
    ) -> float:
        """The logarithm of the likelihood ratio of one noisy sum; `sums` adds up the clipped gradients of some records of either side."""
        rule, place = self._setup.protocol.local, self._setup.parts[self._pair.attacked][0]
        if not isinstance(rule, NoisySgd):
            raise TypeError(f"{rule.tag} has no noisy steps")
        deviation = size_of(self._setup.protocol.noise) * rule.noise_unit or 1.0
        zero, one = self._pair.zero, self._pair.one
        if self._unit == "client":  # its bound counts on no draw, so the batch is known
            low, high = sums(zero, rows), sums(one, rows)
            return float((seen - (low + high) / 2) @ (high - low)) / deviation**2
        fixed = rule.sampling == "fixed"
        told = rows[rows != place]
        told = told[1:] if fixed and len(told) == len(rows) else told
        rest = seen - sums(zero, told)
        other = (
            sums(zero, told) / max(1, len(told)) if fixed else torch.zeros_like(rest)
        )  # what else may stand in that place
        rate = rule.batch / len(self._setup.parts[self._pair.attacked])
        sides = [sums(setup, np.array([place])) for setup in (one, zero)]
        logs = [
            -float((rest - moved) @ (rest - moved)) / (2 * deviation**2)
            for moved in (other, *sides)
        ]
        with np.errstate(divide="ignore"):
            absent = np.log1p(-rate) + logs[0]
        there, here = (np.logaddexp(absent, np.log(rate) + log) for log in logs[1:])
        return float(there - here)


class ScoredSums(SeenSums):
    """Noisy sums that were seen, each weighed before it is used. It holds the score."""

    def __init__(
        self,
        means: np.ndarray,
        rule: NoisySgd,
        drawn: list[np.ndarray],
        ratio: Callable[[Tensor, np.ndarray, Callable[[Setup, np.ndarray], Tensor]], float],
    ) -> None:
        super().__init__(means, rule.batch)
        self._rule, self._drawn, self._ratio = rule, drawn, ratio
        self.score = 0.0

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, /, *, clip: float, norm: str = "l2"
    ) -> ClippedSum:
        """The sum of the step that is next."""
        step = len(self.noise)

        def sums(setup: Setup, rows: np.ndarray) -> Tensor:
            chosen = torch.from_numpy(rows)
            found = self._clean.clipped_sum(
                setup.train.inputs(chosen),
                setup.train.y.index_select(0, chosen),
                clip=clip,
                norm=norm,
            )
            return found.total.double()

        seen = torch.from_numpy(self._means[0, step]).double() * self._batch
        self.score += self._ratio(seen, self._drawn[step], sums)
        return super().clipped_sum(inputs, targets, clip=clip, norm=norm)
