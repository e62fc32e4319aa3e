"""Images from a model's answers about them, by a trained reconstruction model (udp-fl, appendix E and Table 9).

The attacker overhears the logits that the model gives for clients' images. On images of its own it trains a network that turns logits
back into images: near to the originals, and such that the attacked model answers to them as it did to the originals.

An untrained model's answers give much away too: what training adds is the difference to round 0.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.attacks.game import Case, Scored, Tick
from sordino.attacks.images import (
    Reconstruction,
    pixel_range,
    refuse_other_than_images,
    score_images,
)
from sordino.attacks.observed import ObservedModel
from sordino.attacks.reading import Reader
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthRecords
from sordino.federation.models.flat import FlatModel
from sordino.protocol import View

BATCH = 64
RATE = 1e-3
FEEDBACK = 0.01  # weight of the answers beside the pixels


@dataclass(frozen=True, kw_only=True)
class ReconstructionAttack:
    """Images from answers.

    Attributes:
        rounds: how many models are attacked, from the initial to the last.
        images: how many of the clients' images.
        records: how many the attacker has.
        iterations: of the training of the reconstruction model.
        width: of its two hidden layers.
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
        """Some models, each with its answers about the same images."""
        refuse_other_than_images(referee)
        federation, rows = referee.federation(self.records), referee.private_rows(self.images)
        return [
            Case(
                key=f"{t:06d}",
                round=t,
                observe=partial(referee.model, federation, t, weights, rows),
                reveal=partial(referee.private, rows),
            )
            for t, weights in referee.models(self.rounds)
        ]

    def attempt(self, seen: ObservedModel, tick: Tick) -> Reconstruction:
        """The image that each answer is most likely about."""
        own = seen.federation.auxiliary
        _, answers = Reader(seen.federation.module, seen.model, own.inputs).read(own.inputs)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            decoder = Decoder(answers, own.inputs, self.width)
        attacked = FlatModel(seen.federation.module)
        attacked.load(torch.from_numpy(seen.model))
        self._trained(decoder, attacked.module(), answers, own.inputs, tick)
        with torch.no_grad():
            return Reconstruction.of(decoder(seen.answers), own)

    def _trained(
        self, decoder: Decoder, attacked: nn.Module, answers: Tensor, images: Tensor, tick: Tick
    ) -> None:
        """Train the reconstruction model on the attacker's own images."""
        attacked.requires_grad_(False)
        optimizer = torch.optim.Adam(decoder.parameters(), lr=RATE)
        generator = torch.Generator().manual_seed(0)
        for iteration in range(self.iterations):
            rows = torch.randint(0, len(images), (BATCH,), generator=generator)
            made = decoder(answers[rows])
            heard = functional.mse_loss(
                decoder.standardised(attacked(made)), decoder.standardised(answers[rows])
            )
            near = functional.mse_loss(decoder.as_pixels(made), decoder.as_pixels(images[rows]))
            optimizer.zero_grad()
            (near + FEEDBACK * heard).backward()
            optimizer.step()
            tick((iteration + 1) / self.iterations)

    def score(self, guess: Reconstruction, truth: TruthRecords) -> Scored:
        """Reconstructions beside the mean of the attacker's own images."""
        return score_images(guess, truth.inputs, ordered=True)


class Decoder(nn.Module):
    """Logits to images within the range of pixels. It holds the means and ranges of the attacker's own records."""

    def __init__(self, answers: Tensor, images: Tensor, width: int) -> None:
        super().__init__()
        self._shape = images.shape[1:]
        self._centre, self._spread = answers.mean(dim=0), answers.std(dim=0) + 1e-6
        self._low, self._high = pixel_range(images)
        sizes = (answers.shape[1], width, width, math.prod(self._shape))
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self._layers = nn.Sequential(*layers[:-1], nn.Sigmoid())

    def standardised(self, answers: Tensor) -> Tensor:
        """Logits in units of their spread."""
        return (answers - self._centre) / self._spread

    def as_pixels(self, images: Tensor) -> Tensor:
        """Images with values in [0, 1]."""
        return (images - self._low) / (self._high - self._low)

    def forward(self, answers: Tensor) -> Tensor:
        """Images for logits."""
        pixels = self._layers(self.standardised(answers)).reshape(-1, *self._shape)
        return pixels * (self._high - self._low) + self._low


SETTINGS = {
    "quick": ReconstructionAttack(rounds=2, images=100, records=1500, iterations=300, width=256),
    "paper": ReconstructionAttack(
        rounds=6, images=500, records=10000, iterations=10000, width=1024
    ),
}
