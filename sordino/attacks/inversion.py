"""Reconstructs images from an upload by inverting gradients (Geiping et al. 2020).

The papers' tables are convergent-dp, Table 14, and udp-fl, Table 7. Images are invented at random
and changed until the steps that the protocol prescribes, taken on them, move the model in the
direction of the upload. The loss is 1 - cosine similarity, plus a total variation that keeps images
smooth, and is minimised by the signs of its gradients. Only the direction counts, since a clip may
have shortened the update. Labels are inferred first, as by the attack on labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from sordino.attacks.attack import Case, CaseResult, Tick, list_upload_cases, part_progress
from sordino.attacks.gradient_rules import gradient_steps_of
from sordino.attacks.image_similarity import (
    Reconstruction,
    pixel_range,
    refuse_other_than_images,
    score_images,
)
from sordino.attacks.labels import count_by_mixture, count_by_optimisation, read_last_layer
from sordino.attacks.observed import ObservedUpload
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthBatch
from sordino.models.flat import FlatModel
from sordino.protocol import UserError, View

# The most images that an update may mix: memory grows with each, since the graph of every
# simulated step is kept.
MOST_IMAGES = 100
# After these shares of the iterations, steps become a tenth as long (Geiping et al., appendix).
RATE_DROPS = (3 / 8, 5 / 8, 7 / 8)
RATE = 0.1
# Keeps quotients finite.
SMALLEST = 1e-12


@dataclass(frozen=True, kw_only=True)
class InversionAttack:
    """Reconstructs images from uploads.

    Attributes:
        rounds: The number of rounds that are attacked, from first to last.
        uploads: The number of uploads of each round.
        records: The number of records that the attacker has.
        iterations: The steps of the search for images.
        restarts: The number of searches; the one that comes closest to the upload counts.
        variation: The weight of the total variation.
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
        """Returns some uploads of some rounds.

        Args:
            referee: Knows the run.

        Raises:
            UserError: The records are not images, or an upload mixes too many.
        """
        refuse_other_than_images(referee)
        rule = referee.gradient_rule()
        images = rule.steps * (rule.batch or 1)
        mixed = f"{rule.steps} x {rule.batch} images"
        # Of secure sums the server sees one for a round, of what all clients drew.
        if referee.protocol.release.secure_sum is not None:
            clients = referee.protocol.clients
            images *= clients
            mixed += f" of each of {clients} clients"
        if images > MOST_IMAGES:
            raise UserError(
                f"an upload of {referee.run.folder} mixes {mixed}; "
                f"this attack takes up to {MOST_IMAGES} apart. "
                "Attack a run with fewer local.steps or a smaller local.batch."
            )
        return list_upload_cases(
            referee, rounds=self.rounds, uploads=self.uploads, records=self.records
        )

    def attempt(self, seen: ObservedUpload, tick: Tick) -> Reconstruction:
        """Returns the images that best explain an upload.

        Args:
            seen: What the attacker is given.
            tick: Called with the share of the work that is done.
        """
        known = read_last_layer(seen)
        mixture = count_by_mixture(known)
        # Few iterations suffice: wrong labels cost a little of the image, and images take most of
        # the time.
        counts = count_by_optimisation(
            known, mixture, iterations=100, starts=4, tick=lambda share: None
        )
        labels = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        searches = []
        for restart in range(self.restarts):
            progress = part_progress(tick, restart, self.restarts)
            searches.append(self._search_images(seen, labels, restart, progress))
        # The attacker cannot see which images are right, so it takes those that explain the upload
        # best.
        images, _ = min(searches, key=lambda search: search[1])
        return Reconstruction.of(images, seen.federation.auxiliary)

    def score(self, guess: Reconstruction, truth: TruthBatch) -> CaseResult:
        """Returns how near the reconstructions come to the originals, each matched to one.

        Args:
            guess: What `attempt` returned.
            truth: The records that were drawn.
        """
        return score_images(guess, truth.inputs, ordered=False)

    def _search_images(
        self, seen: ObservedUpload, labels: Tensor, restart: int, tick: Tick
    ) -> tuple[Tensor, float]:
        """Returns images, and the distance of their update from the upload's direction."""
        simulator = UpdateSimulator(seen, labels)
        own = seen.federation.auxiliary.inputs
        low, high = pixel_range(own)
        generator = torch.Generator().manual_seed(restart)
        images = torch.randn(len(labels), *own.shape[1:], generator=generator)
        # Images start inside the range of pixels, since they are held there after every step.
        images = images.clamp(min=low, max=high).requires_grad_()
        contrast = float((high - low).mean())
        optimizer = torch.optim.Adam([images], lr=RATE * contrast / 4)
        drops = [int(share * self.iterations) for share in RATE_DROPS]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, drops, gamma=0.1)
        distance = torch.zeros(())
        for iteration in range(self.iterations):
            optimizer.zero_grad()
            distance = simulator.measure_distance(images)
            (distance + self.variation * image_variation(images)).backward()
            # Geiping et al. minimise by the signs of the gradients: a gradient through ReLU is
            # often tiny and far from its true size.
            if images.grad is not None:
                images.grad.sign_()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                images.copy_(images.clamp(min=low, max=high))
            tick((iteration + 1) / self.iterations)
        return images.detach(), distance.item()


class UpdateSimulator:
    """Takes the protocol's steps on invented images, so that gradients flow back to the images."""

    def __init__(self, seen: ObservedUpload, labels: Tensor) -> None:
        """Prepares the steps.

        Args:
            seen: What the attacker is given.
            labels: The label of each image.

        Raises:
            UserError: Uploads of the protocol hold no gradients.
        """
        steps = gradient_steps_of(seen.federation.protocol)
        if steps is None:
            raise UserError(f"uploads of {seen.federation.protocol.local.tag} hold no gradients.")
        flat = FlatModel(seen.federation.module)
        self._module = flat.module().train()
        self._names = [name for name, _ in flat.layout]
        model = torch.from_numpy(seen.model.astype(np.float32))
        self._start = [block.clone().requires_grad_() for block in flat.blocks(model)]
        self._observed = flat.blocks(seen.gradient.float())
        self._observed_norm = joint_norm(self._observed)
        self._labels = labels
        self._rates = seen.federation.learning_rates(seen.round)
        self._steps = steps

    def measure_distance(self, images: Tensor) -> Tensor:
        """Returns 1 - the cosine of the angle between the images' update and the observed one.

        Args:
            images: The invented images.
        """
        update = self._simulate_update(images)
        products = [
            (ours * theirs).sum() for ours, theirs in zip(update, self._observed, strict=True)
        ]
        product = torch.stack(products).sum()
        return 1 - product / (joint_norm(update) * self._observed_norm + SMALLEST)

    def _simulate_update(self, images: Tensor) -> list[Tensor]:
        """Returns the update that the images make, block by block."""
        weights = self._start
        count = len(self._rates)
        # Each step of the protocol drew its own batch; images and labels are split in the same
        # order.
        batches = zip(self._rates, images.chunk(count), self._labels.chunk(count), strict=True)
        for rate, inputs, labels in batches:
            parameters = dict(zip(self._names, weights, strict=True))
            answers = functional_call(self._module, parameters, (inputs,))
            loss = functional.cross_entropy(answers, labels)
            # The graph is needed: the loss differentiates these gradients once more, with respect
            # to images.
            gradients = torch.autograd.grad(loss, weights, create_graph=True)
            weights = self._take_step(weights, gradients, rate)
        return [start - end for start, end in zip(self._start, weights, strict=True)]

    def _take_step(
        self, weights: list[Tensor], gradients: Sequence[Tensor], rate: float
    ) -> list[Tensor]:
        """Returns the weights after one step."""
        # Clips of single examples are left out: they change lengths more than directions.
        kept: Tensor | float = 1.0
        if self._steps.clip is not None:
            kept = (self._steps.clip / (joint_norm(gradients) + SMALLEST)).clamp(max=1.0)
        stepped = []
        for weight, gradient, start in zip(weights, gradients, self._start, strict=True):
            pull = self._steps.proximal * (weight - start)
            stepped.append(weight - rate * (kept * gradient + pull))
        return stepped


def joint_norm(blocks: Sequence[Tensor]) -> Tensor:
    """Returns the Euclidean norm of all blocks together.

    Args:
        blocks: Parts of one vector.
    """
    squares = torch.stack([block.square().sum() for block in blocks])
    # The root has no derivative at zero, so the sum is kept above it.
    return squares.sum().clamp(min=SMALLEST**2).sqrt()


def image_variation(images: Tensor) -> Tensor:
    """Returns the mean absolute difference of neighbouring pixels, down and across.

    Args:
        images: Images of shape (..., height, width).

    Example:
        >>> image_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])).item()
        1.0
    """
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    across = (images[..., 1:] - images[..., :-1]).abs().mean()
    return down + across


SETTINGS = {
    "quick": InversionAttack(
        rounds=2, uploads=3, records=500, iterations=250, restarts=1, variation=0.01
    ),
    # Geiping et al. take 4,800 iterations. Table 14 has 500 samples.
    "paper": InversionAttack(
        rounds=6, uploads=20, records=4000, iterations=4800, restarts=2, variation=0.01
    ),
}
