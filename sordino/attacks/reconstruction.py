"""Reconstructs images from a model's answers about them (udp-fl, appendix E and Table 9).

The attacker overhears the logits that the model gives for clients' images. On its own images it
trains a network that turns logits back into images: near to the originals, and such that the
attacked model answers to them as it did to the originals.

An untrained model's answers give much away too: training adds only the difference to round 0.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.attacks.attack import Case, CaseResult, Tick
from sordino.attacks.image_similarity import (
    Reconstruction,
    pixel_range,
    refuse_other_than_images,
    score_images,
)
from sordino.attacks.observed import ObservedModel
from sordino.attacks.reading import ModelReader
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthRecords
from sordino.models.flat import FlatModel
from sordino.protocol import View

BATCH_SIZE = 64
LEARNING_RATE = 1e-3
# The weight of the answers relative to the pixels.
ANSWER_WEIGHT = 0.01


@dataclass(frozen=True, kw_only=True)
class ReconstructionAttack:
    """Reconstructs images from answers.

    Attributes:
        rounds: The number of models that are attacked, from the initial to the last.
        images: The number of clients' images that are reconstructed.
        records: The number of images that the attacker has.
        iterations: The training steps of the decoder.
        width: The width of the decoder's two hidden layers.
    """

    rounds: int
    images: int
    records: int
    iterations: int
    width: int
    name: str = "reconstruction"
    view: View = View.ROUNDS
    paper: str = "udp-fl, Table 9"
    headline: str = "SSIM"

    def cases(self, referee: Referee) -> list[Case[ObservedModel, TruthRecords]]:
        """Returns some models, each with its answers about the same images.

        Args:
            referee: Knows the run.

        Raises:
            UserError: The records are not images.
        """
        refuse_other_than_images(referee)
        federation = referee.public_federation(self.records)
        rows = referee.client_rows(self.images)
        cases = []
        for round_index, weights in referee.global_models(self.rounds):
            case = Case(
                key=f"{round_index:06d}",
                round=round_index,
                observe=partial(referee.observe_model, federation, round_index, weights, rows),
                reveal=partial(referee.reveal_records, rows),
            )
            cases.append(case)
        return cases

    def attempt(self, seen: ObservedModel, tick: Tick) -> Reconstruction:
        """Returns the image that each answer is most likely about.

        Args:
            seen: What the attacker is given.
            tick: Called with the share of the work that is done.
        """
        own = seen.federation.auxiliary
        _, answers = ModelReader(seen.federation.module, seen.model, own.inputs).read(own.inputs)
        # Layers draw from torch's global generator, whose state belongs to the caller.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            decoder = Decoder(answers, own.inputs, self.width)
        attacked = FlatModel(seen.federation.module)
        attacked.load(torch.from_numpy(seen.model))
        self._train_decoder(decoder, attacked.module(), answers, own.inputs, tick)
        with torch.no_grad():
            return Reconstruction.of(decoder(seen.answers), own)

    def score(self, guess: Reconstruction, truth: TruthRecords) -> CaseResult:
        """Returns how near the reconstructions come to the originals.

        Args:
            guess: What `attempt` returned.
            truth: The clients' images.
        """
        return score_images(guess, truth.inputs, ordered=True)

    def _train_decoder(
        self, decoder: Decoder, attacked: nn.Module, answers: Tensor, images: Tensor, tick: Tick
    ) -> None:
        """Trains the decoder on the attacker's own images."""
        # The attacked model is fixed: only the decoder learns.
        attacked.requires_grad_(False)
        optimizer = torch.optim.Adam(decoder.parameters(), lr=LEARNING_RATE)
        generator = torch.Generator().manual_seed(0)
        for iteration in range(self.iterations):
            rows = torch.randint(0, len(images), (BATCH_SIZE,), generator=generator)
            made = decoder(answers[rows])
            # Logits and pixels are each compared on their own scale, or one would decide alone.
            answer_loss = functional.mse_loss(
                decoder.standardise(attacked(made)), decoder.standardise(answers[rows])
            )
            # In the units of pixels, a channel with a wide range weighs no more than the others.
            pixel_loss = functional.mse_loss(
                decoder.as_pixels(made), decoder.as_pixels(images[rows])
            )
            optimizer.zero_grad()
            (pixel_loss + ANSWER_WEIGHT * answer_loss).backward()
            optimizer.step()
            tick((iteration + 1) / self.iterations)


class Decoder(nn.Module):
    """Turns logits into images within the range of the attacker's own pixels."""

    def __init__(self, answers: Tensor, images: Tensor, width: int) -> None:
        """Builds an untrained network.

        Args:
            answers: Logits about the attacker's images.
            images: The images.
            width: The width of the two hidden layers.
        """
        super().__init__()
        self._shape = images.shape[1:]
        self._centre = answers.mean(dim=0)
        # A logit that never changes would divide by zero.
        self._spread = answers.std(dim=0) + 1e-6
        self._low, self._high = pixel_range(images)
        sizes = (answers.shape[1], width, width, math.prod(self._shape))
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        # The sigmoid in place of the last ReLU keeps every pixel in its range.
        self._layers = nn.Sequential(*layers[:-1], nn.Sigmoid())

    def standardise(self, answers: Tensor) -> Tensor:
        """Returns logits in units of their spread.

        Args:
            answers: Logits.
        """
        return (answers - self._centre) / self._spread

    def as_pixels(self, images: Tensor) -> Tensor:
        """Returns images with values in [0, 1].

        Args:
            images: As a model sees them.
        """
        return (images - self._low) / (self._high - self._low)

    def forward(self, answers: Tensor) -> Tensor:
        """Returns an image for each answer.

        Args:
            answers: Logits.
        """
        pixels = self._layers(self.standardise(answers)).reshape(-1, *self._shape)
        images: Tensor = pixels * (self._high - self._low) + self._low
        return images


SETTINGS = {
    "quick": ReconstructionAttack(rounds=2, images=100, records=1500, iterations=300, width=256),
    "paper": ReconstructionAttack(
        rounds=6, images=500, records=10000, iterations=10000, width=1024
    ),
}
