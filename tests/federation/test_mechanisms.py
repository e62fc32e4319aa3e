"""Samplers of noise: histograms that accept the right law and reject its neighbours, and an audit of each as it is shipped."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from sordino.federation.rules.clipped_steps import clip_update, clipped_step, train_locally
from sordino.federation.upload import noisy_upload
from sordino.mechanisms import mechanism_of
from sordino.mechanisms.keystream_noise import draw_words
from sordino.mechanisms.staircase_noise import staircase_values
from sordino.models.clipping import NORM_ORDERS
from sordino.models.flat import FlatModel
from sordino.privacy.noise_releases import release_curve
from sordino.protocol import Constant, Custom, FedAvg, FedProx, Gaussian, Laplace, Noise, Staircase
from sordino.randomness import Key, Purpose

COUNT = 200_000
STREAM = Key.from_seed(11).stream(Purpose.UPLOAD_NOISE, client=3, round_index=5)


def stair_masses(step: float, nu: float, stairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the pieces of |X| / width and the mass of each, by adding up the pieces of the density."""
    ends, heights = [0.0], []
    for k in range(stairs):
        ends += [k + nu, k + 1.0]
        heights += [math.exp(-k * step), math.exp(-(k + 1) * step)]
    masses = np.array(heights) * np.diff(ends)
    beyond = (nu + (1 - nu) * math.exp(-step)) * math.exp(-stairs * step) / (1 - math.exp(-step))
    return np.array([*ends, np.inf]), np.append(masses, beyond) / (masses.sum() + beyond)


def stair_p_value(values: np.ndarray, step: float, width: float, nu: float) -> float:
    """Chi-square over the pieces of the density and both signs."""
    ends, masses = stair_masses(step, nu, 6)
    counts, _ = np.histogram(np.abs(values) / width, bins=ends)
    halves = np.concatenate([[np.sum(values > 0), np.sum(values < 0)], counts])
    signs = stats.chisquare(halves[:2]).pvalue
    return float(min(signs, stats.chisquare(counts, masses * len(values)).pvalue))


def test_laplace_noise_has_its_scale_and_no_other() -> None:
    values = mechanism_of(Laplace(scale=0.7)).draw(STREAM, 1, COUNT)[0]
    assert stats.kstest(values, "laplace", args=(0, 0.7)).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2, 1.03):
        assert stats.kstest(values, "laplace", args=(0, 0.7 * wrong)).pvalue < 1e-4
    assert stats.kstest(values, "norm", args=(0, values.std())).pvalue < 1e-9


@pytest.mark.parametrize("nu", [None, 0.0, 0.3, 0.8, 1.0])
def test_staircase_noise_has_its_steps_and_no_others(nu: float | None) -> None:
    noise = Staircase(step=0.8, width=2.0, nu=nu)
    values = mechanism_of(noise).draw(STREAM, 1, COUNT)[0]
    at = noise.falls_at
    if 0 < at < 1:
        assert stair_p_value(values, 0.8, 2.0, at) > 1e-4
        for factor in (2 / 3, 3 / 2):
            assert stair_p_value(values, 0.8, 2.0 * factor, at) < 1e-6
            assert stair_p_value(values, 0.8 * factor, 2.0, at) < 1e-6
        assert stair_p_value(values, 0.8, 2.0, 1 - at) < 1e-6
    within = np.abs(values) / 2.0 % 1.0  # places within a stair are uniform
    for low, high in ((0.0, at), (at, 1.0)):
        if high > low:
            inside = within[(within >= low) & (within < high)]
            assert stats.kstest(inside, "uniform", args=(low, high - low)).pvalue > 1e-4


def test_a_geometric_number_that_starts_at_one_is_noticed() -> None:
    """The published code takes one from a geometric number that starts at 0 already, and folds what is negative."""
    words = draw_words(STREAM, 1, COUNT, 2)[0]
    right = staircase_values(words, 1.0, 1.0, 0.5)
    widths, sign = np.floor(np.abs(right)), np.sign(right)
    late = sign * (np.abs(right) + 1)  # Geometric from 1
    folded = sign * np.abs(widths - 1 + (np.abs(right) - widths))
    assert stair_p_value(right, 1.0, 1.0, 0.5) > 1e-4
    assert stair_p_value(late, 1.0, 1.0, 0.5) < 1e-9
    assert stair_p_value(folded, 1.0, 1.0, 0.5) < 1e-9


NOISES = [Gaussian(sigma=0.5), Laplace(scale=0.5), Staircase(step=1.0, width=1.0), Staircase(step=2.5, width=0.4, nu=0.7),
          Custom(factory="sordino.mechanisms.custom_noise:logistic", scale=0.3)]  # fmt: skip


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.tag)
def test_expected_amplitude_and_deviation_are_those_of_the_draws(noise: Noise) -> None:
    values = mechanism_of(noise).draw(STREAM, 1, COUNT)[0]
    assert np.abs(values).mean() == pytest.approx(mechanism_of(noise).amplitude, rel=0.01)
    assert values.std() == pytest.approx(mechanism_of(noise).deviation, rel=0.01)
    assert abs(values.mean()) < 5 * mechanism_of(noise).deviation / math.sqrt(COUNT)


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.tag)
def test_a_training_draws_the_same_alone_and_among_others(noise: Noise) -> None:
    key = Key.from_seed(2)
    together = mechanism_of(noise).draw(
        key.stream(Purpose.UPLOAD_NOISE, training=0, client=1), 4, 7
    )
    alone = [
        mechanism_of(noise).draw(key.stream(Purpose.UPLOAD_NOISE, training=n, client=1), 1, 7)[0]
        for n in range(4)
    ]
    np.testing.assert_array_equal(together, np.stack(alone))
    assert len(np.unique(together)) == together.size


def epsilon_shown(noise: Noise, shift: np.ndarray, delta: float) -> float:
    """What the best test shows of a shift, with 97.5 % confidence on each error rate: a lower limit on epsilon."""
    size, key = shift.size, Key.from_seed(5)
    samples = [
        mechanism_of(noise).draw(key.stream(Purpose.UPLOAD_NOISE, client=c), COUNT // size, size)
        for c in range(4)
    ]

    def score(seen: np.ndarray) -> np.ndarray:
        return (
            mechanism_of(noise).log_density(seen - shift) - mechanism_of(noise).log_density(seen)
        ).sum(axis=1)

    def limits(zero: np.ndarray, one: np.ndarray, threshold: float) -> float:
        rates = []
        for errors in (zero > threshold, one <= threshold):
            rates.append(
                stats.beta.ppf(0.975, errors.sum() + 1, (~errors).sum())
                if not errors.all()
                else 1.0
            )
        alarms, missed = rates
        return math.log(max(1 - delta - missed, 1e-300) / alarms)

    choosing, judging = (
        (score(samples[0]), score(samples[1] + shift)),
        (score(samples[2]), score(samples[3] + shift)),
    )
    thresholds = np.quantile(np.concatenate(choosing), np.linspace(0.01, 0.995, 200)) - 1e-9
    best = max(thresholds, key=lambda threshold: limits(*choosing, threshold))
    return limits(*judging, best)


@pytest.mark.parametrize(
    "noise", [Laplace(scale=1.0), Staircase(step=1.0, width=1.0)], ids=lambda noise: noise.tag
)
def test_an_audit_of_one_coordinate_comes_close_to_the_bound(noise: Noise) -> None:
    promised = release_curve(noise, "l2", 1, 1.0).epsilon(1e-5)
    shown = epsilon_shown(noise, np.ones(1), 1e-5)
    assert 0.9 * promised <= shown <= promised


@pytest.mark.parametrize(
    "noise", [Laplace(scale=1.0), Staircase(step=1.0, width=1.0)], ids=lambda noise: noise.tag
)
def test_an_audit_of_ten_coordinates_stays_below_the_bound_and_refutes_the_one_dimensional_one(
    noise: Noise,
) -> None:
    shown = epsilon_shown(noise, np.full(10, 10**-0.5), 1e-5)
    assert (
        release_curve(noise, "l2", 1, 1.0).epsilon(1e-5)
        < shown
        <= release_curve(noise, "l2", 10, 1.0).epsilon(1e-5)
    )


def test_an_upload_carries_the_noise_of_its_mechanism() -> None:
    weights = torch.zeros(3, 8, dtype=torch.float64)
    for noise in NOISES:
        upload = noisy_upload(weights, noise, STREAM)
        np.testing.assert_array_equal(
            upload, mechanism_of(noise).draw(STREAM, 3, 8).astype(np.float32)
        )
    assert not noisy_upload(weights, Laplace(scale=0.0), STREAM).any()


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_step_is_clipped_in_the_norm_that_was_asked_for(norm: str) -> None:
    gradients = torch.tensor(
        [[3.0, 4.0, 0.0], [0.1, 0.1, -0.1], [0.0, 0.0, 0.0], [float("nan"), 1.0, 1.0]]
    )
    weights = torch.zeros(4, 3, dtype=torch.float64)
    clipped, broken = clipped_step(weights, gradients, 0.5, 1.0, NORM_ORDERS[norm])
    moved = np.linalg.norm(weights.numpy() / 0.5, ord=int(norm[1]), axis=1)
    assert (clipped, broken) == (1, 1)
    assert 1 - 1e-5 < moved[0] < 1
    np.testing.assert_allclose(weights[1], [-0.05, -0.05, 0.05], rtol=1e-6)
    assert not weights[2:].any()


class Slope(torch.nn.Module):
    """A model whose gradient is the mean of its inputs."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(features))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight


@pytest.mark.parametrize(("norm", "order"), [("l1", 1), ("l2", 2)])
def test_a_clipped_update_has_the_norm_of_the_clip_and_the_direction_of_free_steps(
    norm: str, order: int
) -> None:
    inputs = torch.tensor([[5.0, -2.0, 1.0]])
    rates = [0.3, 0.2, 0.1]
    for rule, shrink in (
        (
            FedAvg(
                steps=3,
                batch=1,
                clip=0.25,
                schedule=Constant(rate=0.1),
                clip_norm=norm,
                clip_target="update",
            ),
            1.0,
        ),
        (
            FedProx(
                steps=3,
                batch=1,
                clip=0.25,
                schedule=Constant(rate=0.1),
                clip_norm=norm,
                clip_target="update",
                proximal=0.5,
            ),
            0.0,
        ),
    ):
        start = torch.tensor([1.0, 1.0, 1.0])
        batches = [(inputs, torch.zeros(1))] * 3
        steps, trained = train_locally(
            FlatModel(Slope(3)), start, rule, rates, batches, lambda out, _: out.mean()
        )
        clipped = clip_update(rule, start.double(), trained, steps.nonfinite)
        update = (clipped.model - start.double()).numpy()
        assert np.linalg.norm(update, ord=order) == pytest.approx(0.25, rel=2e-6)
        assert np.linalg.norm(update, ord=order) < 0.25
        np.testing.assert_allclose(update / np.abs(update).max(), -inputs[0].numpy() / 5, rtol=1e-6)
        assert (clipped.steps.clipped, clipped.steps.clips) == (1, 1), shrink
