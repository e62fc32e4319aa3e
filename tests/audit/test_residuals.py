"""Noise that is as claimed passes; every way in which it can be wrong is seen, and named, while its correct twin passes."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats

from sordino.audit.noise import normal_scores
from sordino.audit.noise.independence_tests import run_independence_tests
from sordino.audit.noise.normal_scores import Sample
from sordino.audit.noise.residual_tests import (
    Law,
    ResidualReport,
    examine_residuals,
)
from sordino.federation.upload import noisy_upload
from sordino.mechanisms.laplace_noise import laplace_law
from sordino.mechanisms.noise_law import STANDARD_NORMAL, normal_law
from sordino.mechanisms.staircase_density import StaircaseDensity
from sordino.mechanisms.staircase_noise import staircase_law
from sordino.protocol import Gaussian
from sordino.protocol.errors import UserError
from sordino.randomness import Key, Purpose

STAIRS = {"step": 1.2, "width": 0.7, "nu": 0.35}


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(1000 + seed)


def names(report: ResidualReport) -> set[str]:
    return {test.name for test in report.failed}


def p_values(report: ResidualReport) -> dict[str, float]:
    return {test.name: test.p for test in report.tests if test.p is not None}


def staircase_draws(
    generator: np.random.Generator, shape: tuple[int, ...], first: int = 0
) -> np.ndarray:
    """Geng and Viswanath's sampler; its geometric variable starts at 0, numpy's at 1."""
    step, width, nu = STAIRS.values()
    b = math.exp(-step)
    stair = generator.geometric(1 - b, size=shape) - 1 + first
    inner = generator.random(shape) < nu / (nu + (1 - nu) * b)
    place = generator.random(shape)
    return (
        generator.choice([-1.0, 1.0], size=shape)
        * width
        * (stair + np.where(inner, nu * place, nu + (1 - nu) * place))
    )


# Correct noise


SHAPES = [
    (1, 1, 1, 100),
    (1, 20, 1, 10),
    (1, 4, 5, 30),
    (50, 1, 1, 2),
    (100, 3, 1, 1),
    (5, 6, 4, 5),
    (1, 1, 12, 40),
    (120, 2, 2, 7),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_correct_noise_passes(shape) -> None:
    assert [
        seed for seed in range(25) if examine_residuals(draws(seed).normal(size=shape)).failed
    ] == []


@pytest.mark.parametrize("mean", [0.0, 0.7, 800.0])
def test_rounding_to_float32_is_no_failure(mean) -> None:
    """The worst case: all means are equal, so that all residuals lie on one lattice."""
    noise = draws().normal(size=(40, 10, 10, 50))
    residuals = (noise + mean).astype(np.float32).astype(float) - mean
    assert examine_residuals(residuals).failed == ()


def test_a_sample_of_any_claimed_law_passes_and_fails_the_other_laws() -> None:
    shape, generator = (20, 5, 4, 10), draws()
    sigma = staircase_law(StaircaseDensity(**STAIRS)).std
    samples = {
        normal_law(sigma): generator.normal(scale=sigma, size=shape),
        laplace_law(sigma / math.sqrt(2)): generator.laplace(
            scale=sigma / math.sqrt(2), size=shape
        ),
        staircase_law(StaircaseDensity(**STAIRS)): staircase_draws(generator, shape),
    }
    for (claimed, _), (true, sample) in itertools.product(samples.items(), samples.items()):
        assert bool(examine_residuals(sample, law=claimed).failed) == (claimed is not true), (
            claimed.name,
            true.name,
        )


@pytest.mark.parametrize("missing", [0.3, 0.9])
def test_partial_participation(missing) -> None:
    for seed in range(20):
        generator = draws(seed)
        taken = generator.random((6, 8, 5)) > missing
        residuals = np.where(taken[..., None], generator.normal(size=(6, 8, 5, 10)), np.nan)
        report = examine_residuals(residuals, taken=taken)
        assert report.failed == ()
        assert report.values == 10 * taken.sum()


def test_the_uploads_of_a_client_pass_and_a_stream_that_forgets_the_round_does_not() -> None:
    key, noise = Key.from_seed(11), Gaussian(sigma=0.05)
    weights = torch.from_numpy(draws().normal(size=60))

    def residuals(remembers: bool) -> np.ndarray:
        out = np.empty((3, 10, 5, 60))
        for training, round, client in np.ndindex(out.shape[:3]):
            stream = key.stream(
                Purpose.UPLOAD_NOISE,
                training=training,
                client=client,
                round_index=round if remembers else 0,
            )
            out[training, round, client] = noisy_upload(weights, noise, stream) - weights.numpy()
        return out

    assert examine_residuals(residuals(remembers=True), law=normal_law(noise.sigma)).failed == ()
    assert names(examine_residuals(residuals(remembers=False), law=normal_law(noise.sigma))) >= {
        "correlation of rounds",
        "repetition of 8 values",
    }


# p-values


@pytest.mark.slow
def test_p_values_are_calibrated() -> None:
    """Super-uniform in every test, with and without missing uploads; uniform where one statistic is compared exactly."""
    found, alarms = defaultdict(list), 0
    for seed in range(300):
        generator = draws(seed)
        noise, taken = generator.normal(size=(26, 3, 2, 4)), generator.random((26, 3, 2)) < 0.8
        for label, report in (
            ("", examine_residuals(noise)),
            ("partly ", examine_residuals(noise, taken=taken)),
        ):
            for name, p in p_values(report).items():
                found[label + name].append(p)
            alarms += (
                min(p_values(report).values()) < 0.05 / 1e-6 * report.threshold
            )  # as if a report might fail with probability 0.05
    assert len(found) == 72
    assert stats.binomtest(alarms, 600, 0.05, alternative="greater").pvalue > 1e-5
    for name, values in found.items():
        assert stats.kstest(values, "uniform", alternative="greater").pvalue > 1e-5, name
        exact = name.removeprefix("partly ")
        if exact in (
            "standard deviation",
            "mean",
            "largest of values",
            "largest of norms",
        ) or exact.startswith("shared"):
            assert stats.kstest(values, "uniform").pvalue > 1e-5, name


def test_p_values_of_moments_are_those_of_scipy() -> None:
    noise = draws().normal(scale=1.05, size=(3, 4, 5, 6))
    found = p_values(examine_residuals(noise))
    for name, axes in (
        ("", (0, 1, 2, 3)),
        (" by coordinate", (0, 1, 2)),
        (" by client", (0, 1, 3)),
        (" by upload", (3,)),
    ):
        groups = (
            np.moveaxis(noise, axes, range(len(axes)))
            .reshape(math.prod(noise.shape[axis] for axis in axes), -1)
            .T
        )
        spreads = [
            2 * min(law.cdf(x @ x), law.sf(x @ x)) for x in groups for law in [stats.chi2(len(x))]
        ]
        means = [2 * stats.norm.sf(abs(x.mean()) * math.sqrt(len(x))) for x in groups]
        assert found["standard deviation" + name] == pytest.approx(
            min(1, len(groups) * min(spreads)), rel=1e-9
        )
        assert found["mean" + name] == pytest.approx(min(1, len(groups) * min(means)), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("rounds", (1,)),
        ("clients", (2,)),
        ("coordinates", (3,)),
        ("trainings", (0,)),
        ("places (round, client)", (1, 2)),
    ],
)
def test_correlation_is_that_of_a_loop_over_pairs_with_students_t(name, axes) -> None:
    generator = draws(4)
    taken = generator.random((5, 4, 3)) < 0.7
    noise = np.where(
        taken[..., None],
        generator.normal(size=(5, 4, 3, 6)) + 0.7 * generator.normal(size=(5, 1, 1, 1)),
        np.nan,
    )
    rows = np.moveaxis(noise, axes, range(len(axes))).reshape(
        math.prod(noise.shape[axis] for axis in axes), -1
    )
    expected = []
    for a, b in itertools.combinations(rows, 2):
        both = ~np.isnan(a * b)
        if both.sum() >= 2:
            r = a[both] @ b[both] / math.sqrt((a[both] @ a[both]) * (b[both] @ b[both]))
            expected.append(
                2 * stats.t.sf(abs(r) * math.sqrt((both.sum() - 1) / (1 - r * r)), both.sum() - 1)
            )
    found = p_values(examine_residuals(noise, taken=taken))[f"correlation of {name}"]
    # Among pairs with unequal overlaps the smallest p-value is looked for by a proxy: never below, hardly above it.
    least = min(1.0, len(expected) * min(expected))
    assert least * (1 - 1e-9) <= found <= min(1.0, 3 * least)
    if axes == (3,):
        assert found == pytest.approx(least, rel=1e-9)


def test_the_distribution_bound_is_above_the_exact_one_and_near_it() -> None:
    noise = draws().normal(scale=1.3, size=(1, 1, 4, 100))
    exact = stats.kstest(noise.ravel(), "norm").pvalue
    assert exact <= p_values(examine_residuals(noise))["distribution of values"] <= 3 * exact


@pytest.mark.parametrize("bias", [-0.3, 0.3])
def test_shares_are_binomial_with_a_little_room_for_rounding(bias) -> None:
    noise = (
        draws().normal(size=(1, 1, 1, 100)) + bias
    )  # few enough for two intervals only, each of which is looked at
    exact = 2 * stats.binomtest(int((noise > 0).sum()), 100, 0.5).pvalue
    assert (
        exact * (1 + 1e-6) < p_values(examine_residuals(noise))["shares of values"] < exact * 1.01
    )


@pytest.mark.parametrize("apart", [0.0, 1e-3])
def test_repetition_pays_for_every_pair_and_for_rounding(apart) -> None:
    noise = draws().normal(size=(1, 1, 60, 8))
    noise[0, 0, 41] = noise[0, 0, 7] + apart * np.array([-1, 1, 1, -1, 0, 0.5, 1, 0])
    near = stats.norm.cdf(apart + 1e-4) - stats.norm.cdf(-apart - 1e-4)
    expected = sum(range(60 * 8 - 7)) * near**8
    assert p_values(examine_residuals(noise))["repetition of 8 values"] == pytest.approx(
        expected, rel=1e-6, abs=0
    )


def test_values_that_are_near_by_chance_are_no_repetition() -> None:
    """Among enough short stretches some are alike; the p-value is small no more often than it should be."""
    found = []
    for seed in range(300):
        sample = Sample.of(
            draws(seed).normal(size=(45, 45, 1, 4)),
            np.ones((45, 45, 1), dtype=bool),
            STANDARD_NORMAL,
        )
        found.append(
            next(
                test.p
                for test in run_independence_tests(sample)
                if test.name == "repetition of 4 values"
            )
        )
    assert min(found) < 1
    assert stats.kstest(found, "uniform", alternative="greater").pvalue > 1e-5


# Noise that is not as claimed. Each row: what is wrong, a test that must say so, and where.

Breaking = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def scaled(factor: float) -> Breaking:
    return lambda noise, _: factor * noise


def copied(axis: int, source: int, target: int) -> Breaking:
    def broken(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
        moved = np.moveaxis(noise.copy(), axis, 0)
        moved[target] = moved[source]
        return np.moveaxis(moved, 0, axis)

    return broken


def silent(axis: int, index: int) -> Breaking:
    def broken(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
        moved = np.moveaxis(noise.copy(), axis, 0)
        moved[index] = 0.0
        return np.moveaxis(moved, 0, axis)

    return broken


def mixed(axis: int, rho: float) -> Breaking:
    """A part common to all along an axis: correlation rho, variance unchanged."""

    def broken(noise: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        shape = list(noise.shape)
        shape[axis] = 1
        return math.sqrt(1 - rho) * noise + math.sqrt(rho) * generator.normal(size=shape)

    return broken


def autoregressive(rho: float) -> Breaking:
    def broken(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
        out = noise.copy()
        for index in range(1, noise.shape[1]):
            out[:, index] = rho * out[:, index - 1] + math.sqrt(1 - rho**2) * noise[:, index]
        return out

    return broken


def every_other(rho: float) -> Breaking:
    """Coordinates 1 and 2, 3 and 4, ... are correlated, as if drawn in pairs."""

    def broken(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
        out = noise.copy()
        out[..., 2::2] = rho * noise[..., 1:-1:2] + math.sqrt(1 - rho**2) * noise[..., 2::2]
        return out

    return broken


def next_round(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
    out = noise.copy()
    out[:, 1:] = noise[:, :1]
    for index in range(
        1, noise.shape[1]
    ):  # each client gets in a round what the next one had in the round before
        out[:, index] = np.roll(out[:, index - 1], 1, axis=1)
    return out


def one_shifted_round(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
    out = noise.copy()
    out[:, 4, 1:] = noise[:, 3, :-1]
    return out


def overlapping_streams(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
    out = noise.copy()
    out[2, 1, 0, 3:15] = noise[0, 4, 2, 8:20]  # twelve values, elsewhere, at another offset
    return out


def one_repeated_upload(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
    out = noise.copy()
    out[3, 2, 1] = noise[0, 5, 2]
    return out


def one_upload_without(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
    out = noise.copy()
    out[1, 2, 0] = 0.0
    return out


def as_laplace(noise: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return generator.laplace(scale=math.sqrt(0.5), size=noise.shape)


def clipped(level: float) -> Breaking:
    """The norm of each upload's noise is clipped where a share `level` of norms lies below."""

    def broken(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
        norms, most = (
            np.linalg.norm(noise, axis=-1, keepdims=True),
            stats.chi.ppf(level, noise.shape[-1]),
        )
        return noise * np.minimum(1, most / norms)

    return broken


def forgetful(share: float) -> Breaking:
    return lambda noise, generator: np.where(generator.random(noise.shape) < share, 0.0, noise)


def cancelling(noise: np.ndarray, _: np.random.Generator) -> np.ndarray:
    clients = noise.shape[2]
    return (noise - noise.mean(axis=2, keepdims=True)) * math.sqrt(clients / (clients - 1))


def drawn_size(noise: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return noise * np.sqrt(generator.uniform(0.5, 1.5, size=(*noise.shape[:3], 1)))


SMALL, USUAL = (1, 4, 3, 40), (4, 6, 3, 20)
BROKEN: dict[str, tuple[tuple[int, ...], Breaking, str, str]] = {
    "std 2/3": (SMALL, scaled(2 / 3), "standard deviation", "overall"),
    "std 3/2": (SMALL, scaled(3 / 2), "standard deviation", "overall"),
    "sigma/2": (SMALL, scaled(1 / 2), "standard deviation", "overall"),
    "no noise": (SMALL, scaled(0.0), "standard deviation", "overall"),
    "constant noise": (
        SMALL,
        lambda noise, _: np.ones_like(noise),
        "crowding of values",
        "at the quantile 0.8413",
    ),
    "bias": (USUAL, lambda noise, _: noise + 0.3, "mean", "overall"),
    "bias of a coordinate": (
        (20, 6, 3, 20),
        lambda noise, _: noise + 0.4 * (np.arange(20) == 7),
        "mean by coordinate",
        "coordinate 7",
    ),
    "same noise in two rounds": (USUAL, copied(1, 1, 4), "correlation of rounds", "rounds 1 and 4"),
    "same noise of two clients": (
        USUAL,
        copied(2, 0, 2),
        "correlation of clients",
        "clients 0 and 2",
    ),
    "same noise of all clients": (
        USUAL,
        lambda noise, _: np.repeat(noise[:, :, :1], 3, axis=2),
        "shared by clients",
        "all clients",
    ),
    "same noise in two trainings": (
        USUAL,
        copied(0, 1, 2),
        "correlation of trainings",
        "trainings 1 and 2",
    ),
    "same noise in two coordinates": (
        USUAL,
        copied(3, 0, 19),
        "correlation of coordinates",
        "coordinates 0 and 19",
    ),
    "one upload repeated": (
        USUAL,
        one_repeated_upload,
        "repetition of 8 values",
        "training 3, round 2, client 1",
    ),
    "one small upload repeated": (
        (4, 6, 3, 5),
        one_repeated_upload,
        "repetition of 5 values",
        "training 3, round 2, client 1, coordinate 0",
    ),
    "round by round, client by client": (
        USUAL,
        next_round,
        "correlation of places (round, client)",
        "round ",
    ),
    "one round shifted": (
        USUAL,
        one_shifted_round,
        "correlation of places (round, client)",
        " and round 4, client",
    ),
    "overlapping streams": (
        USUAL,
        overlapping_streams,
        "repetition of 8 values",
        "training 2, round 1, client 0, coordinate",
    ),
    "trainings seeded again": (
        (400, 1, 1, 1),
        lambda noise, _: np.tile(noise[:200], (2, 1, 1, 1)),
        "repetition of 8 values",
        "and from training",
    ),
    "a coordinate without": (
        USUAL,
        silent(3, 2),
        "standard deviation by coordinate",
        "coordinate 2",
    ),
    "a round without": (USUAL, silent(1, 5), "standard deviation by round", "round 5"),
    "a client without": (USUAL, silent(2, 1), "standard deviation by client", "client 1"),
    "a training without": (USUAL, silent(0, 3), "standard deviation by training", "training 3"),
    "an upload without": (
        USUAL,
        lambda noise, _: noise * ~np.eye(4, 6)[:, :, None, None].astype(bool),
        "standard deviation by upload",
        "training",
    ),
    "uniform": (
        USUAL,
        lambda noise, g: g.uniform(-math.sqrt(3), math.sqrt(3), size=noise.shape),
        "largest of values",
        "overall",
    ),
    "Laplace": (
        (4, 10, 5, 20),
        as_laplace,
        "distribution of values",
        "at the quantile",
    ),
    "clipped, half of it": (USUAL, clipped(0.5), "crowding of norms", "at the quantile 0.5"),
    "clipped, a tenth": ((10, 6, 5, 20), clipped(0.9), "crowding of norms", "at the quantile 0.9"),
    "cut at 3": (
        (10, 6, 5, 40),
        lambda noise, _: np.clip(noise, -3, 3),
        "largest of values",
        "overall",
    ),
    "rounded": (
        (10, 6, 5, 40),
        lambda noise, _: np.round(noise, 2),
        "crowding of values",
        "at the quantile",
    ),
    "sometimes absent": (
        (10, 6, 5, 40),
        forgetful(0.005),
        "crowding of values",
        "at the quantile 0.5",
    ),
    "size drawn anew": ((30, 6, 5, 20), drawn_size, "distribution of norms", "at the quantile"),
    "coordinates correlated 0.1": (
        (10, 6, 5, 20),
        mixed(3, 0.1),
        "shared by coordinates",
        "all coordinates",
    ),
    "clients correlated 0.1": ((10, 6, 10, 20), mixed(2, 0.1), "shared by clients", "all clients"),
    "AR(1) over rounds, 0.1": (
        (10, 20, 5, 20),
        autoregressive(0.1),
        "neighbouring rounds",
        "each round",
    ),
    "AR(1) over rounds, 0.5": (USUAL, autoregressive(0.5), "neighbouring rounds", "each round"),
    "coordinates correlated in pairs": (
        (10, 6, 5, 20),
        every_other(0.2),
        "neighbouring coordinates",
        "each coordinate",
    ),
    "clients cancel": (USUAL, cancelling, "shared by clients", "all clients"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_noise_is_named_and_its_correct_twin_passes(case) -> None:
    shape, breaking, name, place = BROKEN[case]
    for seed in range(4):
        generator = draws(seed)
        noise = generator.normal(size=shape)
        assert examine_residuals(3.0 * noise, law=normal_law(3.0)).failed == ()
        seen = {
            test.name: test.place
            for test in examine_residuals(
                3.0 * breaking(noise, generator), law=normal_law(3.0)
            ).failed
        }
        assert place in seen.get(name, "nothing"), seen


@pytest.mark.parametrize(
    "case",
    [
        "same noise in two rounds",
        "one upload repeated",
        "overlapping streams",
        "one round shifted",
        "clients cancel",
    ],
)
def test_reuse_is_seen_through_the_rounding_of_float32(case) -> None:
    """Uploads around models of their own, so that equal noise does not leave equal residuals."""
    shape, breaking, name, _ = BROKEN[case]
    generator = draws()
    means = generator.normal(scale=50, size=shape)
    for noise, expected in (
        (generator.normal(size=shape), False),
        (breaking(generator.normal(size=shape), generator), True),
    ):
        residuals = (means + noise).astype(np.float32).astype(float) - means
        assert (name in names(examine_residuals(residuals))) == expected


def test_reuse_is_seen_among_clients_that_sometimes_take_part() -> None:
    generator = draws()
    taken = generator.random((3, 30, 8)) < 0.3
    noise = generator.normal(size=(3, 30, 8, 12))
    reused = noise.copy()
    reused[:, :, 5] = noise[:, :, 2]
    for sample, expected in (
        (noise, set()),
        (reused, {"correlation of clients", "repetition of 8 values"}),
    ):
        report = examine_residuals(np.where(taken[..., None], sample, np.nan), taken=taken)
        assert names(report) >= expected
        assert bool(names(report)) == bool(expected)
        assert (
            not expected
            or next(test.place for test in report.failed if test.name == "correlation of clients")
            == "clients 2 and 5"
        )


def test_a_staircase_whose_geometric_starts_at_one_is_seen() -> None:
    shape, law = (1, 5, 4, 20), staircase_law(StaircaseDensity(**STAIRS))
    for seed in range(10):
        assert examine_residuals(staircase_draws(draws(seed), shape), law=law).failed == ()
        broken = names(examine_residuals(staircase_draws(draws(seed), shape, first=1), law=law))
        assert broken >= {"standard deviation", "shares of values", "distribution of values"}


def test_one_broken_coordinate_of_a_large_model_is_found_in_a_subset(monkeypatch) -> None:
    monkeypatch.setattr(normal_scores, "_MOST", 6000)
    noise = draws().normal(size=(2, 3, 4, 5000))
    assert (report := examine_residuals(noise)).failed == ()
    assert 3000 <= report.values <= 6000
    noise[..., 4990] = 0.0
    assert {
        test.place
        for test in examine_residuals(noise).failed
        if test.name.endswith("by coordinate")
    } == {"coordinate 4990"}


def test_many_trainings_are_thinned_too(monkeypatch) -> None:
    monkeypatch.setattr(normal_scores, "_MOST", 6000)
    noise = draws().normal(size=(500, 4, 5, 3))
    assert (report := examine_residuals(noise)).failed == ()
    assert report.values <= 6000
    noise[499] = noise[498]
    assert "trainings 498 and 499" in {test.place for test in examine_residuals(noise).failed}


# Laws


def test_scores_of_the_laws_against_scipy_and_integration() -> None:
    x = np.array([-9.0, -2.5, -0.7, -0.01, 0.0, 0.3, 1.1, 4.0])
    assert normal_law(1.7).cdf(x) == pytest.approx(stats.norm.cdf(x, scale=1.7), rel=1e-12)
    assert laplace_law(0.6).cdf(x) == pytest.approx(stats.laplace.cdf(x, scale=0.6), rel=1e-12)
    for stairs in (
        STAIRS,
        {"step": 3.0, "width": 2.0, "nu": 0.0},
        {"step": 0.1, "width": 1.0, "nu": 1.0},
    ):
        law, height = staircase_law(StaircaseDensity(**stairs)), StaircaseDensity(**stairs).height

        def density(r: float, height: float = height, stairs: dict[str, float] = stairs) -> float:
            return height * math.exp(
                -stairs["step"] * sum((k + stairs["nu"]) * stairs["width"] <= r for k in range(50))
            )

        edges = [(k + stairs["nu"]) * stairs["width"] for k in range(20)]
        for value in (0.1, 0.9, 3.3):
            mass = integrate.quad(
                density, 0, value, points=[edge for edge in edges if 0 < edge < value] or None
            )[0]
            assert law.cdf(np.array([value, -value])) == pytest.approx(
                [0.5 + mass, 0.5 - mass], rel=1e-9
            )
        sample = law.scores(np.linspace(-60, 60, 1001))
        assert (np.diff(sample) > 0).all()


def test_scores_keep_their_digits_far_out() -> None:
    with mpmath.workdps(60):
        for x in (0.5, 12.0, 200.0, 2000.0):
            score = float(laplace_law(1.0).scores(np.array([-x]))[0])
            assert float(mpmath.log(mpmath.ncdf(score))) == pytest.approx(
                -x - math.log(2), rel=1e-12
            )
    assert laplace_law(1.0).scores(np.array([-200.0, 200.0])).sum() == 0
    assert normal_law(1e-3).scores(np.array([1e-9, 1e-3, 8e-3])) == pytest.approx(
        [1e-6, 1.0, 8.0], rel=1e-9
    )


@pytest.mark.parametrize(
    "law",
    [
        normal_law(1e-90),
        laplace_law(1e-90),
        staircase_law(StaircaseDensity(step=1.0, width=1e-90, nu=0.5)),
    ],
    ids=lambda law: law.name,
)
def test_residuals_of_any_size_leave_finite_scores(law) -> None:
    assert np.isfinite(law.scores(np.array([1e300, -1e300, 0.0]))).all()


def test_one_wild_value_is_seen() -> None:
    noise = draws().normal(size=(2, 5, 5, 10))
    noise[1, 2, 3, 4] = 1e12
    report = examine_residuals(noise)
    assert "largest of values" in names(report)
    assert {
        test.place for test in report.failed if test.name == "standard deviation by upload"
    } == {"training 1, round 2, client 3"}


# Degenerate inputs


def test_what_a_shape_leaves_untested_is_said() -> None:
    report = examine_residuals(draws().normal(size=(1, 1, 1, 200)))
    untested = {test.name: test.found for test in report.tests if test.p is None}
    assert untested["correlation of rounds"] == "not tested: a single round"
    assert untested["standard deviation by training"] == "not tested: a single training"
    assert untested["standard deviation by coordinate"].startswith(
        "not tested: a single value each"
    )
    assert untested["shares of norms"] == "not tested: a single upload"
    alone = examine_residuals(draws().normal(size=(200, 1, 1, 1)))
    assert {"correlation of coordinates", "neighbouring clients", "shared by rounds"} <= {
        test.name for test in alone.tests if test.p is None
    }
    assert report.threshold == pytest.approx(1e-6 / len(p_values(report)))


def test_clients_that_never_meet_are_not_compared() -> None:
    taken = np.zeros((1, 10, 2), dtype=bool)
    taken[0, ::2, 0] = taken[0, 1::2, 1] = True
    residuals = np.where(taken[..., None], draws().normal(size=(1, 10, 2, 30)), np.nan)
    found = {test.name: test.found for test in examine_residuals(residuals, taken=taken).tests}
    assert found["correlation of clients"] == "not tested: no two have two residuals in common"
    assert found["shared by clients"] == "not tested: no two clients to compare"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_fails_and_the_rest_is_tested(value) -> None:
    noise = draws().normal(size=(3, 4, 5, 6))
    noise[1, 2, 3, 4] = value
    report = examine_residuals(noise)
    assert [(test.name, test.place) for test in report.failed] == [
        ("finite", "training 1, round 2, client 3")
    ]
    assert report.values == 59 * 6
    taken = np.ones((3, 4, 5), dtype=bool)
    taken[1, 2, 3] = False
    assert examine_residuals(noise, taken=taken).failed == ()


def test_nothing_finite_is_a_failure_and_no_crash() -> None:
    report = examine_residuals(np.full((2, 3, 4, 50), np.nan))
    assert names(report) == {"finite"}
    assert "not the noise claimed" in str(report)
    assert [test.found for test in report.tests if test.p is None] == [
        "not tested: 0 finite values, at least 100 are needed"
    ]


def test_a_subset_without_uploads_is_refused_rather_than_passed(monkeypatch) -> None:
    monkeypatch.setattr(normal_scores, "_MOST", 1000)
    taken = np.zeros((100, 10, 10), dtype=bool)
    taken[50, :, 0] = True
    with pytest.raises(UserError, match="values in the subset"):
        examine_residuals(np.zeros((100, 10, 10, 12)), taken=taken)


@pytest.mark.parametrize(
    ("residuals", "taken", "word"),
    [
        (np.zeros((1, 1, 1, 99)), None, "99 values; at least 100"),
        (np.zeros((0, 3, 4, 5)), None, "0 values"),
        (np.zeros((2, 1, 1, 60)), np.array([[[True]], [[False]]]), "60 values"),
        (np.zeros(1000), None, "trainings, rounds, clients, coordinates"),
        (np.zeros(()), None, "trainings, rounds, clients, coordinates"),
        (np.zeros((1, 1, 1, 200), dtype=complex), None, "real numbers"),
        (np.full((1, 1, 1, 200), "a"), None, "real numbers"),
        (np.zeros((2, 1, 1, 100)), np.ones((2, 1), dtype=bool), "taken"),
        (np.zeros((2, 1, 1, 100)), np.ones((2, 1, 1)), "booleans"),
    ],
)
def test_mistakes_are_refused(residuals, taken, word) -> None:
    with pytest.raises(UserError, match=word):
        examine_residuals(residuals, taken=taken)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_law_without_a_scale_is_refused(scale) -> None:
    for make in (
        normal_law,
        laplace_law,
        lambda width: staircase_law(StaircaseDensity(step=1.0, width=width, nu=0.5)),
    ):
        with pytest.raises(UserError):
            make(scale)
    with pytest.raises(UserError):
        Law(name="mine", std=scale, log_tail=STANDARD_NORMAL.log_tail)


def test_the_input_is_left_alone() -> None:
    noise, taken = draws().normal(size=(3, 4, 5, 6)), np.ones((3, 4, 5), dtype=bool)
    taken[0, 0, 0] = False
    before = noise.copy()
    examine_residuals(noise, taken=taken)
    assert (noise == before).all()
