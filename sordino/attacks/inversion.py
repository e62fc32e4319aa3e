"""Images from an upload: inverting gradients (Geiping et al. 2020; convergent-dp, Table 14; udp-fl, Table 7).

Images are invented at random and changed until the steps that the protocol prescribes, taken on them, move the model in the direction of
the upload: 1 - cosine similarity, plus a total variation that keeps them smooth, by the signs of gradients. The direction only: a clip
may have shortened the update. Labels are inferred first, as by the attack on labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from sordino.attacks.game import Case, Scored, Tick, part_of, upload_cases
from sordino.attacks.images import (
    Reconstruction,
    pixel_range,
    refuse_other_than_images,
    score_images,
)
from sordino.attacks.labels import by_mixture, by_optimisation, evidence
from sordino.attacks.observed import ObservedUpload
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthBatch
from sordino.federation.models.flat import FlatModel
from sordino.protocol import FedProx, NoisySgd, UserError, View

MOST = 100  # images in an update
DECAYS = (
    3 / 8,
    5 / 8,
    7 / 8,
)  # after these shares of the iterations, steps become a tenth as long (Geiping et al., appendix)
PACE = 0.1
SMALLEST = 1e-12


@dataclass(frozen=True, kw_only=True)
class InversionAttack:
    """Images from uploads.

    Attributes:
        rounds: how many rounds are attacked, from first to last.
        uploads: how many uploads of each.
        records: how many records the attacker has.
        iterations: of the search for images.
        restarts: searches; the one that comes closest to the upload counts.
        variation: weight of the total variation.
    """

    rounds: int
    uploads: int
    records: int
    iterations: int
    restarts: int
    variation: float
    name: str = "inversion"
    view: View = View.SERVER
    paper: str = "convergent-dp, Table 14; udp-fl, Table 7"
    headline: str = "SSIM"

    def cases(self, referee: Referee) -> list[Case[ObservedUpload, TruthBatch]]:
        """Some uploads of some rounds."""
        refuse_other_than_images(referee)
        rule = referee.gradient_rule()
        if rule.steps * rule.batch > MOST:
            raise UserError(
                f"an upload of {referee.run.folder} mixes {rule.steps} x {rule.batch} images; this attack takes up to {MOST} apart. "
                "Attack a run with fewer local.steps or a smaller local.batch."
            )
        return upload_cases(referee, rounds=self.rounds, uploads=self.uploads, records=self.records)

    def attempt(self, seen: ObservedUpload, tick: Tick) -> Reconstruction:
        """The images that best explain an upload."""
        known = evidence(seen)
        counts = by_optimisation(
            known, by_mixture(known), iterations=100, starts=4, tick=lambda share: None
        )
        labels = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        found = []
        for restart in range(self.restarts):
            found.append(
                self._searched(seen, labels, restart, part_of(tick, restart, self.restarts))
            )
        return Reconstruction.of(min(found, key=lambda one: one[1])[0], seen.federation.auxiliary)

    def _searched(
        self, seen: ObservedUpload, labels: Tensor, restart: int, tick: Tick
    ) -> tuple[Tensor, float]:
        """One search: the images, and how far the update that they give is from the upload's direction."""
        replay, (low, high) = Replay(seen, labels), pixel_range(seen.federation.auxiliary.inputs)
        images = torch.randn(
            len(labels),
            *low.shape[1:2],
            *seen.federation.auxiliary.inputs.shape[2:],
            generator=seeded(restart),
        )
        images = images.clamp(min=low, max=high).requires_grad_()
        optimizer = torch.optim.Adam([images], lr=PACE * float((high - low).mean()) / 4)
        pace = torch.optim.lr_scheduler.MultiStepLR(
            optimizer, [int(share * self.iterations) for share in DECAYS], gamma=0.1
        )
        distance = torch.zeros(())
        for iteration in range(self.iterations):
            optimizer.zero_grad()
            distance = replay.distance(images)
            (distance + self.variation * total_variation(images)).backward()
            if images.grad is not None:
                images.grad.sign_()
            optimizer.step()
            pace.step()
            with torch.no_grad():
                images.copy_(images.clamp(min=low, max=high))
            tick((iteration + 1) / self.iterations)
        return images.detach(), distance.item()

    def score(self, guess: Reconstruction, truth: TruthBatch) -> Scored:
        """Reconstructions, matched to the originals, beside the mean of the attacker's own images."""
        return score_images(guess, truth.inputs, ordered=False)


class Replay:
    """The protocol's steps, taken on invented images so that gradients flow back to them. It holds the model and the upload."""

    def __init__(self, seen: ObservedUpload, labels: Tensor) -> None:
        flat = FlatModel(seen.federation.module)
        self._module, self._names = flat.module().train(), [name for name, _ in flat.layout]
        self._start = [
            block.clone().requires_grad_()
            for block in flat.blocks(torch.from_numpy(seen.model.astype(np.float32)))
        ]
        self._observed = flat.blocks(seen.gradient.float())
        self._length = norm(self._observed)
        self._labels, self._rates = labels, seen.federation.rates(seen.round)
        self._rule = seen.federation.protocol.local

    def distance(self, images: Tensor) -> Tensor:
        """1 - the cosine of the angle between the update that the images give and the one that was observed."""
        update = self._update(images)
        product = torch.stack(
            [(mine * theirs).sum() for mine, theirs in zip(update, self._observed, strict=True)]
        ).sum()
        return 1 - product / (norm(update) * self._length + SMALLEST)

    def _update(self, images: Tensor) -> list[Tensor]:
        weights, steps = self._start, len(self._rates)
        for rate, inputs, labels in zip(
            self._rates, images.chunk(steps), self._labels.chunk(steps), strict=True
        ):
            answers = functional_call(
                self._module, dict(zip(self._names, weights, strict=True)), (inputs,)
            )
            gradients = torch.autograd.grad(
                functional.cross_entropy(answers, labels), weights, create_graph=True
            )
            weights = self._stepped(weights, gradients, rate)
        return [start - end for start, end in zip(self._start, weights, strict=True)]

    def _stepped(
        self, weights: list[Tensor], gradients: Sequence[Tensor], rate: float
    ) -> list[Tensor]:
        """A step of FedAvg or FedProx. Clips of single examples (noisy-sgd) are left out: they change lengths more than directions."""
        kept = (
            1.0
            if isinstance(self._rule, NoisySgd)
            else (self._rule.clip / (norm(gradients) + SMALLEST)).clamp(max=1.0)
        )
        near = self._rule.proximal if isinstance(self._rule, FedProx) else 0.0
        return [
            weight - rate * (kept * gradient + near * (weight - start))
            for weight, gradient, start in zip(weights, gradients, self._start, strict=True)
        ]


def norm(blocks: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all blocks together."""
    return (
        torch.stack([block.square().sum() for block in blocks]).sum().clamp(min=SMALLEST**2).sqrt()
    )


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down and across.

    Example:
        >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])).item()
        1.0
    """
    return (images[..., 1:, :] - images[..., :-1, :]).abs().mean() + (
        images[..., 1:] - images[..., :-1]
    ).abs().mean()


def seeded(number: int) -> torch.Generator:
    """A generator that always begins alike."""
    return torch.Generator().manual_seed(number)


SETTINGS = {
    "quick": InversionAttack(
        rounds=2, uploads=3, records=500, iterations=250, restarts=1, variation=0.01
    ),
    # Geiping et al.: 4,800 iterations. Table 14 has 500 samples.
    "paper": InversionAttack(
        rounds=6, uploads=20, records=4000, iterations=4800, restarts=2, variation=0.01
    ),
}
