"""Systems that are broken on purpose, in the training alone: the adversary goes on believing the protocol.

Each function breaks what the round and its engines look up, through a `pytest.MonkeyPatch`: the noise of every upload, the engines' own
clients, the server's weights. The adversary repeats clients' work by names of its own (`audit.repeated_work`, `audit.adversary`), which
stay whole; only `clipped_step` is one for both, and says so.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.audit.game import WorstCaseGame, play_all
from sordino.audit.judging import judge_scores
from sordino.audit.lower_bounds import Scores
from sordino.audit.noise_report import report_noise
from sordino.audit.verdict import Claim, Finding
from sordino.engines import table_engine, torch_engine
from sordino.engines.row_clients import RowClients
from sordino.federation import round as one_round
from sordino.federation import upload
from sordino.federation.client import ClientWork
from sordino.federation.rules import clipped_steps
from sordino.federation.setup import Setup
from sordino.federation.upload import noisy_upload
from sordino.models.flat import FlatModel
from sordino.privacy.certify import certify
from sordino.protocol import Noise
from sordino.randomness import Stream

Break = Callable[[pytest.MonkeyPatch], None]
TARGET = 0  # the client that worst cases attack where all are equal
NO_CLIP = 1e9
KEPT = 60  # trainings on each side whose noise is tested: enough for everything here, and quicker than all


def found(game: WorstCaseGame, claims: tuple[Claim, ...] = (), kept: int = KEPT) -> Finding:
    """Play a game in this process and judge it against the certified bound and some claims."""
    game = replace(game)  # with nothing prepared, by whatever was broken then
    sides: dict[tuple[int, int], list[np.ndarray]] = {}
    noise, strays = [], []
    for played in play_all(game, game.chunks(), workers=1):
        sides.setdefault((played.chunk.half, played.chunk.side), []).append(played.scores)
        noise += [] if played.residuals is None else [played.residuals[:kept]]
        strays += [] if played.strays is None else [played.strays]
    zero, one, judging_zero, judging_one = (
        np.concatenate(sides[half, side]) for half in (0, 1) for side in (0, 1)
    )
    scores = Scores(choosing=(zero, one), judging=(judging_zero, judging_one))
    certified = certify(
        game.protocol, game.view, game.unit, rounds=range(game.rounds), sizes=game.sizes
    )
    return judge_scores(
        scores,
        certified,
        claims,
        1e-5,
        game.description,
        report_noise(game.protocol, game.noises, np.concatenate(noise), np.max(strays, axis=0)),
    )


@contextmanager
def under(breaks: Break) -> Iterator[None]:
    """While something is broken."""
    with pytest.MonkeyPatch.context() as patch:
        breaks(patch)
        yield


def drawn_for(stream: Stream) -> tuple[int, int]:
    """The client and the round that a stream of noise belongs to."""
    client, round, _ = struct.unpack("<3I", stream.nonce)
    return client, round


def moved(stream: Stream, *, client: int, round: int) -> Stream:
    """The stream of another client or another round."""
    return replace(stream, nonce=struct.pack("<3I", client, round, 0))


# Noise


def target_forgets_its_noise(patch: pytest.MonkeyPatch) -> None:
    """One client, which happens to be the attacked one, uploads its model as it is."""

    def forgetful(weights: Tensor, noise: Noise, stream: Stream) -> np.ndarray:
        return noisy_upload(
            weights, replace(noise, sigma=0.0) if drawn_for(stream)[0] == TARGET else noise, stream
        )

    patch.setattr(upload, "noisy_upload", forgetful)


def others_forget_their_noise(patch: pytest.MonkeyPatch) -> None:
    """The attacked client alone adds noise."""

    def forgetful(weights: Tensor, noise: Noise, stream: Stream) -> np.ndarray:
        return noisy_upload(
            weights, noise if drawn_for(stream)[0] == TARGET else replace(noise, sigma=0.0), stream
        )

    patch.setattr(upload, "noisy_upload", forgetful)


def sigma_halved(patch: pytest.MonkeyPatch) -> None:
    """Every client adds half the noise."""
    patch.setattr(
        upload,
        "noisy_upload",
        lambda weights, noise, stream: noisy_upload(
            weights, replace(noise, sigma=noise.sigma / 2), stream
        ),
    )


def same_noise_in_two_rounds(patch: pytest.MonkeyPatch) -> None:
    """The second round draws what the first one drew."""

    def repeating(weights: Tensor, noise: Noise, stream: Stream) -> np.ndarray:
        client, round = drawn_for(stream)
        return noisy_upload(
            weights, noise, moved(stream, client=client, round=0 if round == 1 else round)
        )

    patch.setattr(upload, "noisy_upload", repeating)


def noise_seeded_by_the_round(patch: pytest.MonkeyPatch) -> None:
    """Every client draws the same noise in a round."""

    def shared(weights: Tensor, noise: Noise, stream: Stream) -> np.ndarray:
        return noisy_upload(weights, noise, moved(stream, client=0, round=drawn_for(stream)[1]))

    patch.setattr(upload, "noisy_upload", shared)


def noise_layer_by_layer(module: torch.nn.Module) -> Break:
    """Noise is added to a list of arrays in place, as Flower does it. What is left of a 0-d array after arithmetic is a scalar, which
    cannot be changed in place: it gets no noise."""
    shapes = [tuple(shape) for _, shape in FlatModel(module).layout]
    stops = np.cumsum([math.prod(shape) for shape in shapes])
    blocks = [
        slice(stop - math.prod(shape), stop) for stop, shape in zip(stops, shapes, strict=True)
    ]

    def by_layers(weights: Tensor, noise: Noise, stream: Stream) -> np.ndarray:
        rows, draws = weights.numpy(), noise.sigma * stream.normal_rows(*weights.shape)
        table = []
        for row, draw in zip(rows, draws, strict=True):
            layers = [
                row[block].reshape(shape) - 0.0 for block, shape in zip(blocks, shapes, strict=True)
            ]
            for layer, block, shape in zip(layers, blocks, shapes, strict=True):
                layer += draw[block].reshape(
                    shape
                )  # the mistake: of a scalar this makes another one, which nobody keeps
            table.append(np.concatenate([np.ravel(layer) for layer in layers]))
        return np.array(table, dtype=np.float32)

    return lambda patch: patch.setattr(upload, "noisy_upload", by_layers)


# Clip


def unclipped(setup: Setup) -> Setup:
    """The same federation with a clip that nothing reaches."""
    return replace(
        setup, protocol=replace(setup.protocol, local=replace(setup.protocol.local, clip=NO_CLIP))
    )


def clip_missing(patch: pytest.MonkeyPatch) -> None:
    """Clients do not clip, and the adversary does not know it."""
    patch.setattr(table_engine, "RowClients", lambda setup: RowClients(unclipped(setup)))
    patch.setattr(
        torch_engine,
        "ClientWork",
        lambda setup, *args, **options: ClientWork(unclipped(setup), *args, **options),
    )


def clip_missing_in_every_step(patch: pytest.MonkeyPatch) -> None:
    """The step that clients and adversary share does not clip, so what is left of uploads without their means is the noise promised."""
    whole = clipped_steps.clipped_step
    patch.setattr(
        clipped_steps,
        "clipped_step",
        lambda weights, gradients, rate, clip, order: whole(
            weights, gradients, rate, NO_CLIP, order
        ),
    )


def clip_of_every_coordinate(patch: pytest.MonkeyPatch) -> None:
    """The step that clients and adversary share cuts every coordinate to the clip, and not the norm: `clip_grad_value_`, in UDP-FL."""

    def by_value(
        weights: Tensor, gradients: Tensor, rate: float, clip: float, order: int
    ) -> tuple[int, int]:
        weights.sub_(gradients.double().clamp(-clip, clip), alpha=rate)
        return 0, 0

    patch.setattr(clipped_steps, "clipped_step", by_value)


def clip_after_noise(patch: pytest.MonkeyPatch) -> None:
    """Clients add the noise to a free update and then clip the sum to what an update may be: what is large drowns the noise."""
    starts: list[Tensor] = []

    class Free(RowClients):
        def __init__(self, setup: Setup) -> None:
            super().__init__(unclipped(setup))
            rule = setup.protocol.local
            self._radius = rule.clip * sum(rule.schedule.rates(round=0, steps=rule.steps))

        def train(self, *, weights: np.ndarray, **where):
            starts[:] = [torch.from_numpy(weights).double(), torch.tensor(self._radius)]
            return super().train(weights=weights, **where)

    def clipped_last(weights: Tensor, noise: Noise, stream: Stream) -> np.ndarray:
        start, radius = starts
        update = torch.from_numpy(noisy_upload(weights, noise, stream)).double() - start
        length = torch.linalg.vector_norm(update, dim=-1, keepdim=True)
        return (start + update * (radius / length).clamp(max=1.0)).float().numpy()

    patch.setattr(table_engine, "RowClients", Free)
    patch.setattr(upload, "noisy_upload", clipped_last)


# Aggregation


def weights_by_records(patch: pytest.MonkeyPatch) -> None:
    """The server weighs uploads by the clients' records, whatever the protocol says."""
    patch.setattr(one_round, "weigh_clients", lambda setup: setup.sizes.astype(np.float64))
