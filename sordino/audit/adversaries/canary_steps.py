"""Scores a training of a real model by the likelihood ratio of every noisy step.

The adversary knows the model before each step, which is computed from noisy sums that it has seen,
and which other records are in the minibatch; whether the canary's place is in it stays hidden. Of a
minibatch of fixed size it knows all records but one, which is the canary's place or some other, so
that its knowledge does not depend on which. All clipped gradients are computed by the client's own
code.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sordino.audit.repeated_work import WorkRepeater
from sordino.audit.replay import SeenSums
from sordino.audit.round_table import RoundTable
from sordino.audit.worst_cases.neighbours import Pair
from sordino.federation.assignment import minibatches
from sordino.federation.setup import Setup
from sordino.mechanisms import mechanism_of
from sordino.models.per_example import ClippedSum
from sordino.protocol import Gaussian, Noise
from sordino.protocol.release import noisy_steps_of

# Adds up the clipped gradients of some records of one of the federations.
SumGradients = Callable[[Setup, np.ndarray], Tensor]
ScoreStep = Callable[[Tensor, np.ndarray, SumGradients], float]


class CanarySteps:
    """Scores one training by the attacked client's noisy steps.

    Args:
        pair: The federation with its own records, and with the canary.
        setup: The side that is trained, with the number of the training.
        clients: Repeats the clients' work.
        unit: "record" or "client".

    Attributes:
        scores: The score so far, as an array of one entry.
    """

    def __init__(
        self,
        pair: Pair,
        setup: Setup,
        clients: WorkRepeater,
        unit: str,
    ) -> None:
        self._pair = pair
        self._setup = setup
        self._clients = clients
        self._unit = unit
        self._release = noisy_steps_of(setup.protocol)
        noise: Noise = self._release.sum_noise
        if mechanism_of(noise).silent:
            # Without noise every ratio is infinite; a scale of 1 keeps it finite.
            noise = Gaussian(sigma=1.0)
        self._mechanism = mechanism_of(noise)
        self.scores = np.zeros(1)

    def see(self, seen: RoundTable) -> None:
        """Takes in one round.

        Args:
            seen: The round.
        """
        attacked = self._pair.attacked
        if attacked not in seen.means:
            return
        batches = minibatches(self._setup, client=attacked, round_index=seen.round)
        steps = ScoredSums(seen.means[attacked], self._release.batch, batches, self._score_step)
        self._clients.work(
            client=attacked,
            round_index=seen.round,
            weights=seen.broadcast,
            first=self._setup.training,
            kept=seen.kept.get(attacked, {}),
            sums=steps.replace_sums,
        )
        self.scores += steps.score

    def _score_step(self, seen: Tensor, rows: np.ndarray, sums: SumGradients) -> float:
        """Returns the log-likelihood ratio of one noisy sum."""
        if self._unit == "client":
            return self._score_client(seen, rows, sums)
        return self._score_record(seen, rows, sums)

    def _score_client(self, seen: Tensor, rows: np.ndarray, sums: SumGradients) -> float:
        # The bound for a client does not count on the draw of records, so the minibatch is known.
        low = sums(self._pair.zero, rows)
        high = sums(self._pair.one, rows)
        return self._log_density(seen - high) - self._log_density(seen - low)

    def _score_record(self, seen: Tensor, rows: np.ndarray, sums: SumGradients) -> float:
        """Returns the ratio of a mixture: the record in question is in the minibatch, or is not."""
        zero = self._pair.zero
        part = self._setup.parts[self._pair.attacked]
        place = part[0]
        fixed = not self._release.varying_batches
        known = rows[rows != place]
        if fixed and len(known) == len(rows):
            known = known[1:]
        base = sums(zero, known)
        rest = seen - base
        # In a minibatch of fixed size, an average record fills the place that stays open.
        other = torch.zeros_like(rest)
        if fixed:
            other = base / max(1, len(known))
        alone = np.array([place])
        log_other = self._log_density(rest - other)
        log_canary = self._log_density(rest - sums(self._pair.one, alone))
        log_record = self._log_density(rest - sums(zero, alone))
        rate = self._release.batch / len(part)
        with np.errstate(divide="ignore"):
            log_absent = np.log1p(-rate) + log_other
        with_canary = np.logaddexp(log_absent, np.log(rate) + log_canary)
        with_record = np.logaddexp(log_absent, np.log(rate) + log_record)
        return float(with_canary - with_record)

    def _log_density(self, values: Tensor) -> float:
        return float(self._mechanism.log_density(values.numpy()).sum())


class ScoredSums(SeenSums):
    """Replaces a client's sums by the noisy ones that were seen, and scores each of them.

    Args:
        means: The noisy means that were seen.
        batch: The divisor by which sums became means.
        batches: The records of every minibatch.
        score_step: Returns the log-likelihood ratio of a noisy sum.

    Attributes:
        score: The sum of the ratios so far.
    """

    def __init__(
        self,
        means: np.ndarray,
        batch: int,
        batches: list[np.ndarray],
        score_step: ScoreStep,
    ) -> None:
        super().__init__(means, batch)
        self._batches = batches
        self._score_step = score_step
        self.score = 0.0

    def clipped_sum(
        self,
        inputs: Tensor,
        targets: Tensor,
        /,
        *,
        clip: float,
        norm: str = "l2",
    ) -> ClippedSum:
        """Scores the next step and returns its noisy sum.

        Args:
            inputs: Inputs of the minibatch.
            targets: Its targets.
            clip: The largest norm of an example's gradient.
            norm: "l1" or "l2", the norm that is clipped.
        """
        step = len(self.noise)

        def sum_gradients(setup: Setup, rows: np.ndarray) -> Tensor:
            """Returns the sum of the clipped gradients of some records.

            Args:
                setup: The federation that has the records.
                rows: Their row numbers.
            """
            chosen = torch.from_numpy(rows)
            found = self._clean.clipped_sum(
                setup.train.inputs(chosen),
                setup.train.y.index_select(0, chosen),
                clip=clip,
                norm=norm,
            )
            return found.total.double()

        seen = torch.from_numpy(self._means[0, step]).double() * self._batch
        self.score += self._score_step(seen, self._batches[step], sum_gradients)
        return super().clipped_sum(inputs, targets, clip=clip, norm=norm)
