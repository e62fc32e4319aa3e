"""What is priced is what runs: the noiseless upload of a client moves by no more than its price says, and comes close to it."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from sordino import (
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Identity,
    Iid,
    Interpolate,
    NoisySgd,
    StageWise,
    certify,
)
from sordino.federation.client import ClientWork
from sordino.federation.processors import single_threaded
from sordino.federation.setup import Setup, prepare
from sordino.privacy.upload_sensitivity import price_uploads
from tests.support import toy_dataset, toy_protocol

RECORDS = 24


class Scores(nn.Module):
    """A loss that is linear in the weights: its gradient is minus the record, whatever the weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return torch.stack([x @ self.weight, torch.zeros(len(x)), torch.zeros(len(x))], dim=1)

    def loss(self, outputs, targets):
        return -outputs[:, 0].mean()


def setup_with(record: float, model: nn.Module | None = None, **changes) -> Setup:
    """Client 1's first record is so many times a very long one; all its others are zero."""
    setup = prepare(toy_protocol(**changes), data=toy_dataset(), model=model or Scores())
    x = setup.train.x.clone()
    x[setup.parts[1]] = 0.0
    x[setup.parts[1][0]] = 1e6 * record
    return dataclasses.replace(setup, train=dataclasses.replace(setup.train, x=x))


def noisy_rule(sampling: str, batch: int, norm: str) -> NoisySgd:
    return NoisySgd(
        steps=1,
        batch=batch,
        clip=0.7,
        schedule=Constant(rate=0.5),
        sampling=sampling,
        clip_norm=norm,
    )


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_a_replaced_record_moves_a_fixed_sum_by_2c(norm) -> None:
    changes = {"local": noisy_rule("fixed", RECORDS, norm), "noise": Gaussian(multiplier=0.0)}
    vectors = [
        ClientWork(setup_with(record, **changes))
        .upload(client=1, round_index=0, weights=np.zeros(6, np.float32))
        .vector
        for record in (1, -1)
    ]
    moved = np.linalg.norm(vectors[0] - vectors[1]) * RECORDS / 0.5
    limit = (
        1.4 if norm == "l2" else 1.4 / np.sqrt(6)
    )  # all six coordinates are equal, so that the l1 norm is sqrt(6) times the l2 norm
    assert limit * (1 - 1e-5) <= moved <= limit


def test_a_record_that_is_not_there_moves_a_poisson_sum_by_c() -> None:
    changes = {"local": noisy_rule("poisson", RECORDS, "l2"), "noise": Gaussian(multiplier=0.0)}
    there = (
        ClientWork(setup_with(1.0, **changes))
        .upload(client=1, round_index=0, weights=np.zeros(6, np.float32))
        .vector
    )
    moved = (
        np.linalg.norm(there) * RECORDS / 0.5
    )  # its absence, and that of all the others, is a sum of zero
    assert 0.7 * (1 - 1e-5) <= moved <= 0.7


@pytest.mark.parametrize(
    "schedule", [Constant(rate=0.3), StageWise(rate=0.3)], ids=lambda schedule: schedule.tag
)
@pytest.mark.parametrize(
    "own",
    [Identity(), Interpolate(alpha=0.25), Identity(pull=0.5), Interpolate(alpha=0.25, pull=0.5)],
    ids=str,
)
def test_uploads_of_clients_with_own_models_move_as_far_as_is_priced(own, schedule) -> None:
    """Opposite records pull two neighbours apart in every step; what was released, here any global models, is the same."""
    rule = FedAvg(steps=2, batch=RECORDS, clip=0.7, schedule=schedule)
    changes = {"local": rule, "personalization": own, "noise": Gaussian(sigma=0.1), "rounds": 6}
    twins = [(ClientWork(setup_with(record, **changes)), {}) for record in (1, -1)]
    protocol = setup_with(1.0, **changes).protocol
    priced = price_uploads(protocol, np.arange(6), "record", RECORDS).shifts
    generator = np.random.default_rng(0)
    for t in range(6):
        world = generator.normal(size=6).astype(np.float32)
        answers = [
            work.upload(client=1, round_index=t, weights=world, kept=kept) for work, kept in twins
        ]
        twins = [(work, answer.kept) for (work, _), answer in zip(twins, answers, strict=True)]
        moved = float(np.linalg.norm(answers[0].vector - answers[1].vector))
        assert moved <= priced[t] * (1 + 1e-5)
        # With falling rates the price also covers clients that skip the rounds in which distances shrink; otherwise it is reached.
        if isinstance(schedule, Constant) or own == Identity():
            assert moved >= priced[t] * (1 - 1e-4)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("sampling", "batch", "neighbour"),
    [("fixed", 24, -1.0), ("fixed", 12, -1.0), ("poisson", 12, 0.0)],
)
def test_a_guess_at_the_record_succeeds_as_often_as_is_priced(sampling, batch, neighbour) -> None:
    """The best test between two neighbours, run on whole uploads of both: its advantage over guessing is delta(0), to three sigma."""
    rule = NoisySgd(steps=1, batch=batch, clip=0.7, schedule=Constant(rate=0.5), sampling=sampling)
    changes = {
        "local": rule,
        "noise": Gaussian(multiplier=0.5),
        "data": Data(name="toy", partition=Iid(), records=RECORDS),
    }
    # At weights of zero a record and its negative have opposite gradients. That of a zero record is zero, as if it were not there.
    model, zero = nn.Sequential(nn.Linear(6, 3, bias=False)), np.zeros(18, np.float32)
    works = [ClientWork(setup_with(record, model, **changes)) for record in (1.0, neighbour)]
    with single_threaded():
        uploads = [
            [work.upload(client=1, round_index=t, weights=zero).vector for t in range(1000)]
            for work in works
        ]
    silent = {
        **changes,
        "local": dataclasses.replace(rule, batch=RECORDS),
        "noise": Gaussian(multiplier=0.0),
    }
    direction = (
        ClientWork(setup_with(1.0, model, **silent))
        .upload(client=1, round_index=0, weights=zero)
        .vector.astype(np.float64)
    )
    along = [
        np.asarray(rows, dtype=np.float64) @ direction / np.linalg.norm(direction)
        for rows in uploads
    ]
    middle = (1.0 + neighbour) / 2 * 0.7 * 0.5 / batch
    # Both twins have the same draws, so their difference scatters less than two independent samples would.
    guesses = (along[0] > middle).astype(float) - (along[1] > middle)
    advantage, tolerance = float(guesses.mean()), 3 * float(guesses.std()) / np.sqrt(len(guesses))

    def priced(multiplier: float) -> float:
        return certify(
            toy_protocol(rounds=1, **{**changes, "noise": Gaussian(multiplier=multiplier)})
        ).delta(0.0)

    assert advantage == pytest.approx(priced(0.5), abs=tolerance)
    for wrong in (2 / 3, 3 / 2):
        assert abs(advantage - priced(0.5 * wrong)) > tolerance
