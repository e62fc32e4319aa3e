"""Many trainings side by side are the trainings one by one: same draws, same rules, same models."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sordino import Dataset, randomness, train
from sordino.audit.real_game import observe_one
from sordino.audit.worst_cases.neighbours import make_setup
from sordino.audit.worst_cases.synthetic_losses import SyntheticLosses
from sordino.engines.row_clients import RowClients
from sordino.federation.attendance import draw_attendance, draw_participants
from sordino.federation.setup import Setup, prepare
from sordino.models.flat import FlatModel
from sordino.models.per_example import GIVEN_GRADIENTS, ExampleGradients, vectorise_gradients
from sordino.protocol import (
    Assumptions,
    Attention,
    Bezier,
    ClientBudget,
    ClippedGlm,
    Constant,
    FedAvg,
    FedProx,
    FixedSize,
    Gaussian,
    Identity,
    Interpolate,
    Mean,
    Median,
    NoisySgd,
    NoPersonalization,
    Poisson,
    Protocol,
    Scaffold,
    StageWise,
    UserError,
)
from sordino.protocol.noisy_sgd_rule import OPTIMIZERS, SAMPLINGS
from sordino.randomness import LANES, Key, Purpose
from tests.audit.pairs import clipped_glm_pair, linear_pair, noisy_pair
from tests.support import play_table

KEY = Key.from_seed(11)
STEPS = {"steps": 3, "batch": 4, "clip": 1.0, "schedule": StageWise(rate=0.2)}
BASE = Protocol(clients=4, rounds=3, local=FedAvg(**STEPS), noise=Gaussian(sigma=0.3))
BEZIER = replace(
    BASE,
    local=Bezier(**{**STEPS, "schedule": Constant(rate=0.25)}),
    assumptions=Assumptions(smoothness=4.0),
)
SIZES = (4, 7, 4, 5)
EPSILONS, MECHANISMS = (9.0, 4.0, 2.0, 6.0), ("gaussian", "gaussian", "laplace", "gaussian")


def linear(protocol: Protocol, curvature: float = -0.8):
    return linear_pair(protocol, "record", SIZES, KEY, curvature, 1).one


FEDERATIONS = {
    "fedavg": linear(BASE),
    "fedprox": linear(replace(BASE, local=FedProx(**STEPS, proximal=2.0))),
    "bezier": linear(BEZIER),
    "poisson": linear(replace(BASE, participation=Poisson(rate=0.4))),
    "fixed": linear(replace(BASE, participation=FixedSize(size=2))),
    "weights": linear(replace(BASE, aggregation=Mean(mixing=0.5, weights="records"))),
    "poisson weights": linear(replace(BASE, participation=Poisson(rate=0.5), aggregation=Mean(mixing=0.7, weights="records"))),
    "median": linear(replace(BASE, aggregation=Median())),
    "poisson median": linear(replace(BASE, participation=Poisson(rate=0.4), aggregation=Median())),
    "diameter": linear(replace(BASE, assumptions=Assumptions(diameter=0.5))),
    "clipped-glm": clipped_glm_pair(
        replace(BASE, local=ClippedGlm(steps=4, clip=0.2, schedule=Constant(rate=0.5), weight_decay=0.1)), "record", SIZES, KEY, 1
    ).one,
    "cyclic": clipped_glm_pair(
        replace(BASE, local=ClippedGlm(steps=4, clip=0.2, schedule=Constant(rate=0.5), weight_decay=0.1, batches="cyclic", batch=2)),
        "client", (4, 4, 4, 4), KEY, 0,
    ).one,
    "scaffold": linear(replace(BASE, local=Scaffold(**STEPS), participation=Poisson(rate=0.6))),
    "penalty": linear(
        replace(
            BASE, penalty=True, participation=Poisson(rate=0.6),
            client=tuple(
                ClientBudget(id=k, epsilon=epsilon, mechanism=kind, noise=0.3)
                for k, (epsilon, kind) in enumerate(zip(EPSILONS, MECHANISMS, strict=True))
            ),
        )
    ),
}  # fmt: skip

# Clients that keep models, and the moments of optimizers. Who takes part differs from training to training.
OWN = [
    Identity(),
    Interpolate(alpha=0.3),
    Attention(own=0.4),
    Identity(pull=0.5),
    Interpolate(alpha=0.3, pull=0.5),
]
APART = replace(BASE, participation=Poisson(rate=0.6), aggregation=Mean(mixing=0.7))
FEDERATIONS |= {f"fedavg {own}": linear(replace(APART, personalization=own)) for own in OWN}


def noisy(sampling: str, optimizer: str, own=OWN[1], **changes) -> Setup:
    rule = NoisySgd(**STEPS, sampling=sampling, optimizer=optimizer, weight_decay=0.1, **changes)
    return noisy_pair(
        replace(APART, local=rule, noise=Gaussian(multiplier=0.7), personalization=own),
        "record",
        SIZES,
        KEY,
        {},
    ).one


def all_different(setup: Setup) -> Setup:
    """The same federation with records no two of which are equal, and bent, so that gradients depend on the weights."""
    records = torch.randn(setup.train.x.shape, generator=torch.Generator().manual_seed(5)) * 2
    return replace(setup, train=replace(setup.train, x=records))


FEDERATIONS |= {
    f"noisy {sampling} {optimizer}": noisy(sampling, optimizer)
    for sampling in SAMPLINGS
    for optimizer in OPTIMIZERS
}
FEDERATIONS |= {f"noisy {own}": noisy("poisson", "adam", own) for own in OWN}
FEDERATIONS |= {
    f"noisy {sampling} l1": noisy(sampling, "sgd", NoPersonalization(), clip_norm="l1")
    for sampling in SAMPLINGS
}
FEDERATIONS |= {
    f"noisy {sampling} bent": all_different(noisy(sampling, "momentum")) for sampling in SAMPLINGS
}
FEDERATIONS |= {
    f"fedavg bent {n}": all_different(linear_pair(BASE, "record", (n, 4, 4, 4), KEY, 0.0, 0).one)
    for n in (7, 15)
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FEDERATIONS)
@pytest.mark.parametrize("first", [0, 3 * LANES + 5])
def test_a_row_is_the_training_of_its_number(name, first) -> None:
    setup, trainings = FEDERATIONS[name], range(first, first + 4)
    near = 2e-5 if name.startswith("noisy") else 2e-6  # all of noisy-sgd is in float32
    many = list(play_table(setup, trainings))
    for row, training in enumerate(trainings):
        for seen, alone in zip(many, observe_one(setup, training, 3, {}), strict=True):
            assert np.array_equal(seen.present[row], alone.present[0])
            assert np.allclose(seen.after[row], alone.after[0], rtol=near, atol=near)
            present = seen.present[row]
            assert np.allclose(
                seen.uploads[present, row], alone.uploads[present, 0], rtol=near, atol=near
            )
            assert np.allclose(
                seen.broadcast[..., row, :], alone.broadcast[..., 0, :], rtol=near, atol=near
            )
            assert set(alone.means) == (
                set(np.flatnonzero(present).tolist()) if name.startswith("noisy") else set()
            )
            for client, means in alone.means.items():
                assert np.allclose(seen.means[client][row], means[0], rtol=near, atol=near)
    assert len({seen.after.tobytes() for seen in many}) == 3
    last = many[-1].after
    assert len(np.unique(last, axis=0)) == len(trainings)
    assert np.ptp(last, axis=0).max() > 1e-3


def test_row_zero_is_what_train_trains(tmp_path) -> None:
    setup = FEDERATIONS["fedavg"]
    records, targets = setup.train.x.numpy(), setup.train.y.numpy()[:, None]
    data = Dataset(
        name="losses",
        x_train=records[:16],
        y_train=targets[:16],
        x_test=records[:2],
        y_test=targets[:2],
        classes=None,
    )
    protocol = replace(BASE, seed=11)
    run = train(
        protocol,
        data=data,
        model=SyntheticLosses(),
        folder=tmp_path / "run",
        workers=1,
        evaluate_every=0,
    )
    parts = prepare(protocol, data=data, model=SyntheticLosses()).parts
    same = make_setup(protocol, records, targets, parts=parts, module=SyntheticLosses(), key=KEY)
    last = list(play_table(same, range(1)))[-1].after[0]
    assert np.allclose(run.state["weight"].numpy(), last, rtol=2e-6, atol=2e-6)


def test_clients_that_draw_nothing_and_are_alike_are_trained_once() -> None:
    full = linear_pair(BASE, "record", (4, 4, 4, 4), KEY, -0.5, 0)
    assert RowClients(full.one).like.tolist() == [0, 1, 1, 1]
    assert full.attacked == 0
    drawn = linear(
        BASE
    )  # the attacked client holds 7 records, of which one differs: it draws, and is like no other
    assert RowClients(drawn).like.tolist() == [0, 1, 0, 0]


def test_caps_keep_a_client_away_once_it_has_taken_part_so_often() -> None:
    protocol = replace(
        BASE, rounds=5, participation=Poisson(rate=0.6), client=(ClientBudget(id=2, epsilon=1.0),)
    )
    seen = np.stack([one.present for one in play_table(linear(protocol), range(50), caps={2: 1})])
    assert seen[:, :, 2].sum(axis=0).max() == 1
    assert seen[:, :, 1].sum(axis=0).max() > 1


@pytest.mark.parametrize("participation", [Poisson(rate=0.3), FixedSize(size=2)])
def test_attendance_is_the_same_alone_and_side_by_side(participation) -> None:
    protocol = replace(BASE, clients=9, participation=participation)
    together = draw_attendance(protocol, round_index=2, key=KEY, trainings=range(10, 310))
    for training in (10, 11, 200, 309):
        assert (
            np.flatnonzero(together[training - 10]).tolist()
            == draw_participants(protocol, round_index=2, key=KEY, training=training).tolist()
        )
    assert len({row.tobytes() for row in together}) > 20


def test_lanes_are_disjoint_pieces_of_one_keystream() -> None:
    whole = KEY.stream(Purpose.UPLOAD_NOISE, training=0).normal_rows(6, 3)
    for lane in range(6):
        stream = KEY.stream(Purpose.UPLOAD_NOISE, training=lane)
        assert np.array_equal(stream.normals(3), whole[lane])
        assert np.array_equal(stream.normal_rows(6 - lane, 3), whole[lane:])
    words = KEY.stream(Purpose.MINIBATCH, training=0).words(5, 4).reshape(4, 5)
    assert all(
        np.array_equal(KEY.stream(Purpose.MINIBATCH, training=n).words(5), words[n])
        for n in range(4)
    )
    assert len(np.unique(words)) == 20
    assert not np.array_equal(KEY.stream(Purpose.UPLOAD_NOISE, training=LANES).normals(3), whole[0])


@pytest.mark.parametrize(("population", "size"), [(9, 1), (9, 4), (30, 29), (200, 150), (3000, 40)])
@pytest.mark.parametrize("lane", [0, 77])
def test_items_are_followed_into_the_subsets_that_are_drawn(
    population, size, lane, monkeypatch
) -> None:
    monkeypatch.setattr(randomness, "WORDS_PER_BLOCK", 500)  # many blocks
    stream, items = (
        KEY.stream(Purpose.MINIBATCH, training=lane, client=2, round_index=3),
        np.array([0, 2, population - 1]),
    )
    drawn = stream.subsets(3, size, population, 120)
    held = stream.count_in_subsets(items, 3, size, population, 120)
    assert np.array_equal(held, np.isin(drawn, items).sum(axis=1))
    assert 0 < held.sum() < held.size * 3


def test_coins_of_many_trainings_are_those_of_each(monkeypatch) -> None:
    whole = KEY.stream(Purpose.MINIBATCH, training=5).coins(4, 13, 0.3, trainings=50)
    monkeypatch.setattr(randomness, "WORDS_PER_BLOCK", 100)
    assert np.array_equal(
        whole, KEY.stream(Purpose.MINIBATCH, training=5).coins(4, 13, 0.3, trainings=50)
    )
    for lane in (0, 1, 49):
        assert np.array_equal(
            whole.reshape(50, 4, 13)[lane],
            KEY.stream(Purpose.MINIBATCH, training=5 + lane).coins(4, 13, 0.3),
        )
    assert abs(whole.mean() - 0.3) < 4 * (0.21 / whole.size) ** 0.5


def test_a_lane_beyond_the_keystream_is_refused() -> None:
    last = KEY.stream(Purpose.UPLOAD_NOISE, training=LANES - 1)
    with pytest.raises(UserError, match="one by one"):
        last.normals(100_000_000)
    # The last row of 4096 may hold 2^26 bytes; its end counts, not its beginning.
    with pytest.raises(UserError, match="one by one"):
        last.words(2**23 + 1)
    assert len(last.words(2**13, 1)) == 2**13


def test_trainings_of_two_groups_and_models_without_rows_are_refused() -> None:
    with pytest.raises(UserError, match="keystream"):
        next(play_table(FEDERATIONS["fedavg"], range(LANES - 1, LANES + 1)))
    plain = replace(FEDERATIONS["fedavg"], module=nn.Linear(3, 1))
    with pytest.raises(UserError, match="`many`"):
        next(play_table(plain, range(2)))


def test_the_closed_form_gradient_is_that_of_the_loss() -> None:
    generator = torch.Generator().manual_seed(3)
    rows, inputs = torch.randn(5, 2, generator=generator), torch.randn(5, 6, 3, generator=generator)
    many = SyntheticLosses().many()
    many.load(rows)
    many.loss_gradient(inputs, torch.zeros(6), lambda outputs, targets: outputs.mean())
    for row, batch, gradient in zip(rows, inputs, many.gradients, strict=True):
        model = SyntheticLosses()
        model.weight.data = row.clone()
        model.loss(model(batch), torch.zeros(6)).backward()
        assert torch.allclose(gradient, model.weight.grad, atol=1e-6)


def test_the_closed_form_of_every_records_gradient_is_that_of_its_loss() -> None:
    generator = torch.Generator().manual_seed(3)
    model = FlatModel(SyntheticLosses(4))
    model.load(torch.randn(4, generator=generator))
    records = torch.randn(6, 5, generator=generator)
    given = GIVEN_GRADIENTS[SyntheticLosses](model.net, records)
    found = vectorise_gradients(model, records, torch.zeros(6), model.net.loss)
    assert torch.allclose(given, found, atol=1e-6)


def test_a_class_derived_from_synthetic_losses_is_asked_for_its_own_gradients() -> None:
    class Doubled(SyntheticLosses):
        def loss(self, outputs, targets):
            return 2 * outputs.mean()

    model = FlatModel(Doubled(2))
    records = torch.tensor([[0.3, 0.4, 0.0]])
    found = ExampleGradients(model, model.net.loss).clipped_sum(records, torch.zeros(1), clip=9.0)
    assert torch.allclose(found.total, torch.tensor([0.6, 0.8], dtype=torch.float64))
