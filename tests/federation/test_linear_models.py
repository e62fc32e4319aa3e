"""Linear models of many classes: their steps contract and move by no more than is priced (A31)."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from sordino import train
from sordino.audit.lower_bounds import measure_error_rates
from sordino.federation.rules.clipped_glm_steps import train_clipped_glm
from sordino.federation.setup import prepare
from sordino.models.bounded import BoundedLinear, bounded_features
from sordino.privacy.certify import certify
from sordino.privacy.upload_sensitivity import price_uploads
from sordino.protocol import (
    ClippedGlm,
    Constant,
    Data,
    Gaussian,
    InvalidValue,
    Protocol,
    UserError,
    View,
    dumps,
    loads,
)
from tests.audit.test_game import played, with_mu
from tests.support import toy_dataset

LOSSES = ("softmax", "one-against-rest")
RECORDS, WIDTH, CLASSES = 3, 2, 4


def make_rule(loss: str, *, rate: float = 0.5, **changes) -> ClippedGlm:
    clip = None if loss == "softmax" else 0.6
    settings = {"steps": 1, "weight_decay": 0.1, "feature_norm": 1.5} | changes
    return ClippedGlm(loss=loss, clip=clip, schedule=Constant(rate=rate), **settings)


def after_steps(rule: ClippedGlm, weights, features, labels) -> torch.Tensor:
    moved = torch.as_tensor(weights, dtype=torch.float64).clone()
    rates = rule.schedule.rates(round=0, steps=rule.steps)
    train_clipped_glm(
        moved,
        bounded_features(torch.as_tensor(features), rule.feature_norm),
        torch.as_tensor(labels),
        rule,
        rates,
    )
    return moved


def draw_records(generator, scale: float = 3.0):
    features = generator.normal(size=(RECORDS, WIDTH)) * scale
    return features, generator.integers(0, CLASSES, size=RECORDS)


@pytest.mark.parametrize(("rate", "found"), [(0.5, 0.8), (3.0, 0.3)])
@pytest.mark.parametrize("loss", LOSSES)
def test_no_two_models_come_further_apart_than_the_factor_of_a_step(loss, rate, found) -> None:
    """Random models and records, each pair improved by small changes as long as that stretches more."""
    rule = make_rule(loss, rate=rate)
    curvature = {"softmax": 1 / 2, "one-against-rest": 1 / 4}[loss]
    factor = max(abs(1 - rate * 0.1), abs(1 - rate * (0.1 + curvature * 1.5**2)))
    generator = np.random.default_rng(7)
    best = 0.0
    for _ in range(12):
        features, labels = draw_records(generator)
        pair = generator.normal(size=(2, CLASSES * (WIDTH + 1))) * 10 ** generator.uniform(-2, 1)
        stretched = 0.0
        for _ in range(40):
            trial = pair + generator.normal(size=pair.shape) * 0.1
            ends = after_steps(rule, trial, features, labels)
            ratio = float((ends[0] - ends[1]).norm()) / float(np.linalg.norm(trial[0] - trial[1]))
            if ratio > stretched:
                stretched = ratio
                pair = trial
        best = max(best, stretched)
    assert found * factor < best <= factor * (1 + 1e-9)


def test_the_factor_of_softmax_is_attained_by_two_even_classes() -> None:
    rule = make_rule("softmax", rate=6.0)
    features = np.array([[1e4, 0.0]] * RECORDS)
    along = np.zeros((CLASSES, WIDTH + 1))
    along[:2, 0] = (1e-4, -1e-4)
    # Two classes share all probability: the others are far below.
    start = np.zeros((CLASSES, WIDTH + 1))
    start[2:, 0] = -40.0
    ends = after_steps(
        rule,
        np.stack([start.ravel(), (start + along).ravel()]),
        features,
        np.zeros(RECORDS, dtype=int),
    )
    stretch = float((ends[0] - ends[1]).norm() / np.linalg.norm(along))
    assert stretch == pytest.approx(6.0 * (0.1 + 1.5**2 / 2) - 1, rel=1e-4)


def test_a_joint_clip_of_softmax_would_not_contract() -> None:
    """Why softmax has no clip: clipped as a whole, two gradients may point the wrong way (A9)."""
    generator = np.random.default_rng(3)

    def clip_joint(scores):
        residuals = functional.softmax(scores, dim=1) - functional.one_hot(
            torch.zeros(len(scores), dtype=torch.long), 3
        )
        return residuals * (0.05 / residuals.norm(dim=1, keepdim=True)).clamp(max=1.0)

    one = torch.as_tensor(generator.normal(size=(200_000, 3)) * 4)
    other = one + torch.as_tensor(generator.normal(size=(200_000, 3)))
    products = ((clip_joint(one) - clip_joint(other)) * (one - other)).sum(dim=1)
    whole = (
        (functional.softmax(one, dim=1) - functional.softmax(other, dim=1)) * (one - other)
    ).sum(1)
    assert float(products.min()) < -1e-4
    assert float(whole.min()) > -1e-12


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("batches", [{}, {"batches": "cyclic", "batch": 1}])
def test_a_replaced_record_moves_an_upload_by_no_more_than_is_priced(loss, batches) -> None:
    rule = make_rule(loss, steps=6, **batches)
    protocol = Protocol(clients=2, rounds=1, local=rule, noise=Gaussian(sigma=1.0))
    priced = price_uploads(protocol, np.arange(1), "record", RECORDS).shifts[0]
    generator = np.random.default_rng(11)
    furthest = 0.0
    for _ in range(300):
        features, labels = draw_records(generator, 100.0)
        start = generator.normal(size=CLASSES * (WIDTH + 1)) * 10 ** generator.uniform(-2, 1.5)
        place = generator.integers(RECORDS)
        other = features.copy()
        other[place] = -features[place] * generator.choice([1.0, -1.0])
        relabelled = labels.copy()
        relabelled[place] = generator.integers(CLASSES)
        one = after_steps(rule, start, features, labels)
        two = after_steps(rule, start, other, relabelled)
        furthest = max(furthest, float((one - two).norm()))
    assert 0.5 * priced < furthest <= priced


def test_steps_of_softmax_are_those_of_autograd() -> None:
    rule = make_rule("softmax", steps=4)
    features, labels = draw_records(np.random.default_rng(2))
    model = BoundedLinear(WIDTH, CLASSES, rule.feature_norm).double()
    start = torch.randn(CLASSES * (WIDTH + 1), dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(start.view_as(model.weight))
    for _ in range(4):
        answers = model(torch.as_tensor(features))
        loss = functional.cross_entropy(answers, torch.as_tensor(labels))
        decayed = loss + 0.1 * model.weight.square().sum() / 2
        (slope,) = torch.autograd.grad(decayed, model.weight)
        with torch.no_grad():
            model.weight.sub_(slope, alpha=0.5)
    found = after_steps(rule, start, features, labels)
    assert torch.allclose(found, model.weight.detach().flatten(), atol=1e-12)


def test_one_against_rest_clips_every_class_by_itself() -> None:
    """An oracle by hand: each class's coefficient is cut at V / (sqrt(C) |x|)."""
    rule = make_rule("one-against-rest")
    features, labels = draw_records(np.random.default_rng(4))
    start = np.random.default_rng(5).normal(size=(CLASSES, WIDTH + 1))
    expected = start * (1 - 0.5 * 0.1)
    for row, label in zip(features, labels, strict=True):
        x = np.append(row, 1.0)
        x *= min(1.0, 1.5 / np.linalg.norm(x))
        for number in range(CLASSES):
            residual = 1 / (1 + math.exp(-start[number] @ x)) - float(number == label)
            limit = 0.6 / 2 / np.linalg.norm(x)
            expected[number] -= 0.5 * np.clip(residual, -limit, limit) * x / RECORDS
    found = after_steps(rule, start.ravel(), features, labels)
    assert np.allclose(found.numpy(), expected.ravel(), atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_of_a_table_are_trained_as_if_alone(loss) -> None:
    rule = make_rule(loss, steps=3)
    features, labels = draw_records(np.random.default_rng(6))
    table = np.random.default_rng(8).normal(size=(5, CLASSES * (WIDTH + 1)))
    together = after_steps(rule, table, features, labels)
    for row, found in zip(table, together, strict=True):
        assert torch.allclose(after_steps(rule, row, features, labels), found, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "least", "most"), [("softmax", 0.6, 0.72), ("one-against-rest", 0.85, 1.05)]
)
def test_the_worst_case_of_many_classes_comes_close_and_does_not_pass(loss, least, most) -> None:
    clip = None if loss == "softmax" else 0.1
    rule = ClippedGlm(loss=loss, steps=3, clip=clip, schedule=Constant(rate=0.05), weight_decay=2.0)
    protocol = Protocol(
        clients=3,
        rounds=12,
        local=rule,
        noise=Gaussian(sigma=1.0),
        data=Data(name="digits", records=4),
    )
    for view in (View.SERVER, View.FINAL):
        tuned = with_mu(protocol, view, 3.0, "record")
        shown = measure_error_rates(played(tuned, view, 2000, "record"), "mu").mu
        assert least < shown / 3.0 < most, view


def test_the_price_of_the_last_model_converges_and_ten_classes_are_learned(tmp_path) -> None:
    rule = make_rule("softmax", steps=10, rate=0.8, feature_norm=1.0, weight_decay=0.02)
    protocol = Protocol(
        seed=1,
        clients=10,
        rounds=15,
        local=rule,
        noise=Gaussian(sigma=0.01),
        data=Data(name="digits", records=140),
    )
    run = train(protocol, model="logistic", folder=tmp_path, report=False)
    assert run.metrics["accuracy"][-1] > 0.8
    long = [certify(replace(run.protocol, rounds=rounds), "final").mu for rounds in (1000, 100_000)]
    assert long[1] < 1.001 * long[0]


def test_a_loss_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidValue, match="without a clip"):
        replace(make_rule("softmax"), clip=1.0)
    with pytest.raises(InvalidValue, match="there is no clip"):
        replace(make_rule("softmax"), loss="logistic")
    two = replace(make_rule("softmax"), loss="logistic", clip=1.0)
    protocol = Protocol(clients=2, rounds=1, local=two, noise=Gaussian(sigma=1.0))
    with pytest.raises(UserError, match="softmax"):
        prepare(protocol, data=toy_dataset(), model="logistic")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_file_says_the_loss_and_comes_back(loss) -> None:
    protocol = Protocol(clients=2, rounds=1, local=make_rule(loss), noise=Gaussian(sigma=1.0))
    assert loads(dumps(protocol)) == protocol
