"""A gallery of broken systems: each is caught by the view or the test that sees it, 99.99 % sure, and its correct twin is not.

A twin is the same federation with the same seeds and as many trainings, unbroken. What a view cannot see is not claimed there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.audit.game import WorstCaseGame
from sordino.audit.lower_bounds import REFUTING, Scores, measure_error_rates
from sordino.audit.noise.residual_tests import examine_residuals
from sordino.audit.verdict import Claim, Finding
from sordino.audit.worst_cases.neighbours import Pair
from sordino.audit.worst_cases.synthetic_losses import ManySyntheticLosses
from sordino.cli.main import run
from sordino.federation.setup import Setup
from sordino.mechanisms.laplace_noise import laplace_law
from sordino.mechanisms.staircase_density import StaircaseDensity
from sordino.mechanisms.staircase_noise import staircase_law
from sordino.models.flat import FlatModel
from sordino.privacy.certify import certify
from sordino.privacy.noise_releases import release_curve
from sordino.protocol import (
    ClippedGlm,
    Constant,
    Data,
    FedAvg,
    FedProx,
    Gaussian,
    Laplace,
    Mean,
    Protocol,
    View,
    dumps,
)
from sordino.randomness import Key
from tests.audit import broken
from tests.audit.broken import Break, found, under
from tests.audit.pairs import linear_pair
from tests.support import play_table

SEEDS = (1, 2, 3)
TRAININGS = 700
MU = 2.0  # certified, whatever is audited
VIEWS = ("server", "rounds", "coalition:3", "coalition:7", "final")
FEDERATION = Protocol(
    clients=8,
    rounds=4,
    local=FedAvg(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.1)),
    noise=Gaussian(sigma=1.0),
)


def with_mu(protocol: Protocol, view: str, unit: str = "record") -> Protocol:
    """The protocol with the noise that makes the certified mu of a view `MU`."""
    return replace(protocol, noise=Gaussian(sigma=certify(protocol, view, unit).curve.mu / MU))


def game(
    protocol: Protocol, view: str, seed: int, unit: str = "record", **options
) -> WorstCaseGame:
    return WorstCaseGame(
        protocol=protocol,
        view=View.parse(view),
        unit=unit,
        trainings=TRAININGS,
        seed=seed,
        rounds=protocol.rounds,
        **options,
    )


def silent(finding: Finding) -> bool:
    """Whether nothing is contradicted, though the game was worth playing and the noise was looked at."""
    looked = finding.residuals is not None and finding.mu_lower > 0.7 * finding.certified.mu
    return looked and finding.verdict != "refuted" and not finding.contradicted


@dataclass(frozen=True, kw_only=True)
class AdaptedGame(WorstCaseGame):
    """The linear worst case of a protocol, with something changed on both sides."""

    adapt: Callable[[Setup], Setup]

    @cached_property
    def pair(self) -> Pair:
        sizes = (self.protocol.local.batch,) * self.protocol.clients
        pair = linear_pair(self.protocol, self.unit, sizes, Key.from_seed(self.seed), 0.0, 0)
        return replace(pair, zero=self.adapt(pair.zero), one=self.adapt(pair.one))


def adapted(
    protocol: Protocol,
    view: str,
    seed: int,
    adapt: Callable[[Setup], Setup],
    trainings: int = TRAININGS,
) -> AdaptedGame:
    return AdaptedGame(
        protocol=protocol,
        view=View.parse(view),
        unit="record",
        trainings=trainings,
        seed=seed,
        rounds=protocol.rounds,
        adapt=adapt,
    )


def on_the_first(setup: Setup) -> Setup:
    """Records that act on the first parameter only."""
    records = setup.train.x.clone()
    records[:, 0], records[:, 1] = 2**0.5 * records[:, 0], 0.0
    return replace(setup, train=replace(setup.train, x=records))


def curved(setup: Setup) -> Setup:
    """Records whose gradient turns as soon as the model has left zero."""
    records = setup.train.x.clone()
    records[:, 2] = 10 * records[:, 0].abs()
    return replace(setup, train=replace(setup.train, x=records))


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A broken system: who must notice, who need not, and what the residual test must say of the noise."""

    breaks: Break
    caught: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    noise: dict[str, str] = field(default_factory=dict)  # tests that fail, and where


EXHIBITS = {
    "target without noise": Exhibit(
        breaks=broken.target_forgets_its_noise,
        caught=("server", "coalition:7"),
        unseen=(
            "rounds",
            "final",
        ),  # seven others still add theirs: the truth is sqrt(8/7) times what is certified
        noise={
            "standard deviation by client": "client 0",
            "crowding of values": "at the quantile 0.5",
        },
    ),
    "others without noise": Exhibit(
        breaks=broken.others_forget_their_noise,
        caught=("rounds", "final", "coalition:3"),
        unseen=(
            "server",
            "coalition:7",
        ),  # who see the upload with its own noise and count on no other
        noise={"standard deviation": "overall", "crowding of values": "at the quantile 0.5"},
    ),
    "sigma halved": Exhibit(
        breaks=broken.sigma_halved, caught=VIEWS, noise={"standard deviation": "overall"}
    ),
    "clip missing": Exhibit(
        breaks=broken.clip_missing,
        caught=("server", "rounds", "final"),
        noise={"standard deviation by client": "client 0"},
    ),
    "clip missing, as the adversary knows": Exhibit(
        breaks=broken.clip_missing_in_every_step, caught=("server", "final")
    ),
    "clip after noise": Exhibit(
        breaks=broken.clip_after_noise,
        caught=("server", "coalition:7"),
        noise={"distribution of norms": "", "largest of values": ""},
    ),
    "same noise in two rounds": Exhibit(
        breaks=broken.same_noise_in_two_rounds,
        unseen=("server", "rounds"),
        noise={"correlation of rounds": "rounds 0 and 1"},
    ),
    "noise seeded by the round": Exhibit(
        breaks=broken.noise_seeded_by_the_round,
        unseen=("server", "rounds"),
        noise={"correlation of clients": "", "shared by clients": ""},
    ),
}


TWIN = "correct twin"


@cache
def exhibited(name: str, view: str, seed: int) -> Finding:
    """What the audit finds of an exhibit, or of the correct twin of all of them."""
    played = game(with_mu(FEDERATION, view), view, seed)
    if name == TWIN:
        return found(played)
    with under(EXHIBITS[name].breaks):
        return found(played)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "view"),
    [(name, view) for name, exhibit in EXHIBITS.items() for view in exhibit.caught],
)
def test_broken_systems_are_caught_in_the_views_that_see_them(name: str, view: str) -> None:
    for seed in SEEDS:
        finding = exhibited(name, view, seed)
        assert (finding.verdict, finding.contradicted) == ("refuted", True)
        assert finding.mu_lower > MU


@pytest.mark.parametrize("view", VIEWS)
def test_their_correct_twin_is_silent(view: str) -> None:
    assert [seed for seed in SEEDS if not silent(exhibited(TWIN, view, seed))] == []


@pytest.mark.parametrize(
    ("name", "view"),
    [(name, view) for name, exhibit in EXHIBITS.items() for view in exhibit.unseen],
)
def test_what_a_view_cannot_see_is_not_claimed_there(name: str, view: str) -> None:
    """The bound is not said to be refuted; the noise, which the audit looks at by itself, is still not what it should be."""
    for seed in SEEDS:
        finding = exhibited(name, view, seed)
        assert (finding.verdict, finding.contradicted) == ("holds", True)
        assert finding.residuals.failed


@pytest.mark.parametrize("name", EXHIBITS)
def test_the_residual_test_says_what_is_wrong_with_the_noise_and_nothing_where_it_is_right(
    name: str,
) -> None:
    for seed in SEEDS:
        failed = {
            test.name: test.place for test in exhibited(name, "server", seed).residuals.failed
        }
        assert all(
            test in failed and place in failed[test] for test, place in EXHIBITS[name].noise.items()
        )
        assert bool(failed) == bool(EXHIBITS[name].noise)


def test_two_clients_are_too_few_to_hide_a_target_without_noise() -> None:
    """In the view `rounds`, where eight hide it: the truth is sqrt(2) times what is certified, and more trainings show that."""
    protocol = with_mu(replace(FEDERATION, clients=2), "rounds")
    for seed in SEEDS:
        more = replace(game(protocol, "rounds", seed), trainings=2000)
        with under(broken.target_forgets_its_noise):
            assert found(more).verdict == "refuted"
        assert silent(found(more))


def test_noise_that_clients_share_is_no_noise_for_who_subtracts_two_uploads() -> None:
    """Why the residual test must catch it: no likelihood ratio of single uploads sees it, and nothing is hidden."""
    protocol, claimed = with_mu(FEDERATION, "server"), certify(with_mu(FEDERATION, "server"))

    def subtracted(seed: int) -> Scores:
        pair, samples = game(protocol, "server", seed).pair, []
        for number, setup in enumerate((pair.zero, pair.one, pair.zero, pair.one)):
            rounds = play_table(setup, range(number * 4096, number * 4096 + TRAININGS))
            samples.append(sum((seen.uploads[0] - seen.uploads[1])[:, 0] for seen in rounds))
        return Scores(choosing=(samples[0], samples[1]), judging=(samples[2], samples[3]))

    for seed in SEEDS:
        with under(broken.noise_seeded_by_the_round):
            assert measure_error_rates(subtracted(seed), "mu", REFUTING).contradicts(claimed.curve)
        assert not measure_error_rates(subtracted(seed), "mu", REFUTING).contradicts(claimed.curve)


def test_a_clip_of_every_coordinate_is_caught_by_a_record_that_acts_on_all_of_them() -> None:
    """Two coordinates of V each have the norm sqrt(2) V."""
    protocol = with_mu(FEDERATION, "server")
    for seed in SEEDS:
        played = replace(game(protocol, "server", seed), trainings=2000)
        with under(broken.clip_of_every_coordinate):
            assert found(played).verdict == "refuted"
        assert silent(found(played))


# Other rules

GLM = ClippedGlm(steps=2, clip=0.1, schedule=Constant(rate=0.5), weight_decay=0.2)
RULES = {
    "fedprox": Protocol(
        clients=4,
        rounds=3,
        local=FedProx(steps=2, batch=4, clip=1.0, schedule=Constant(rate=0.3), proximal=1.0),
        noise=Gaussian(sigma=1.0),
    ),
    "clipped-glm": Protocol(
        clients=4,
        rounds=3,
        local=GLM,
        noise=Gaussian(sigma=1.0),
        data=Data(name="digits", records=4),
    ),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "breaks", [broken.sigma_halved, broken.clip_missing], ids=lambda breaks: breaks.__name__
)
def test_every_rule_is_caught_without_its_clip_and_with_half_its_noise(
    rule: str, breaks: Break
) -> None:
    protocol = with_mu(RULES[rule], "server")
    for seed in SEEDS:
        played = game(protocol, "server", seed, sizes=(4,) * 4)
        with under(breaks):
            assert found(played).verdict == "refuted"
        assert silent(found(played))


# A parameter without an axis


class Tempered(nn.Module):
    """A model with a 0-d parameter, first or last. The records act on its first parameter."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        shapes = ((), (1,)) if first else ((1,), ())
        self.one, self.two = (nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, records: Tensor) -> Tensor:
        return (records[:, 0] * self.one + records[:, 1] * self.two).unsqueeze(1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()

    def many(self) -> ManySyntheticLosses:
        return ManySyntheticLosses()


def tempered(view: str, seed: int, first: bool) -> AdaptedGame:
    protocol = with_mu(replace(FEDERATION, clients=2, rounds=2), view)
    return adapted(
        protocol,
        view,
        seed,
        lambda setup: replace(on_the_first(setup), module=Tempered(first)),
        trainings=300,
    )


def test_the_model_has_a_0_d_parameter_and_the_record_acts_on_its_first() -> None:
    for first in (True, False):
        flat = FlatModel(Tempered(first))
        assert [shape for _, shape in flat.layout].index(torch.Size([])) == (0 if first else 1)
        flat.loss_gradient(
            torch.tensor([[3.0, 0.0, 0.0]]), torch.zeros(1), lambda outputs, targets: outputs.mean()
        )
        assert flat.gradients.tolist() == [3.0, 0.0]


@pytest.mark.parametrize("view", ["server", "final"])
def test_a_0_d_parameter_without_noise_is_caught_where_the_score_reads_it(view: str) -> None:
    for seed in SEEDS:
        played = tempered(view, seed, first=True)
        with under(broken.noise_layer_by_layer(Tempered(first=True))):
            finding = found(played)
        assert (finding.verdict, finding.contradicted) == ("refuted", True)
        assert silent(found(played))


def test_a_0_d_parameter_that_no_score_reads_is_left_to_the_residual_test() -> None:
    for seed in SEEDS:
        played = tempered("server", seed, first=False)
        with under(broken.noise_layer_by_layer(Tempered(first=False))):
            finding = found(played)
        failed = {test.name: test.place for test in finding.residuals.failed}
        assert finding.verdict == "holds"
        assert failed["standard deviation by coordinate"] == "coordinate 1"
        assert silent(found(played))


# Weights

SIZES = (40, 5, 5, 5, 5, 5)
MANY_RECORDS = replace(FEDERATION, clients=6)


@pytest.mark.parametrize(
    ("view", "caught"),
    [("rounds", True), ("coalition:2", True), ("final", True), ("server", False)],
)
def test_weights_by_records_break_the_bound_of_the_plain_mean(view: str, caught: bool) -> None:
    """The target is the largest client. Who sees its upload anyway learns no more, but no mean of the uploads is what was promised."""
    protocol = with_mu(MANY_RECORDS, view, "client")
    for seed in SEEDS:
        played = game(protocol, view, seed, unit="client", sizes=SIZES)
        with under(broken.weights_by_records):
            finding = found(played)
        assert played.pair.attacked == 0
        assert finding.verdict == ("refuted" if caught else "holds")
        assert "post-processing" in {test.name for test in finding.residuals.failed}
        assert finding.contradicted
        assert silent(found(played))


def test_weights_by_records_are_fine_where_they_are_priced() -> None:
    protocol = replace(
        MANY_RECORDS,
        aggregation=Mean(weights="records"),
        noise=with_mu(MANY_RECORDS, "rounds", "client").noise,
    )
    for seed in SEEDS:
        finding = found(game(protocol, "rounds", seed, unit="client", sizes=SIZES))
        assert silent(finding)
        assert finding.mu_lower > MU  # what the plain mean would have hidden


# Promises that are only numbers


def proximal(rate: float, steps: int) -> Protocol:
    """FedProx with V = alpha = 1, whose claim of 2V/alpha is mu = 2 against the server."""
    local = FedProx(steps=steps, batch=4, clip=1.0, schedule=Constant(rate=rate), proximal=1.0)
    return Protocol(clients=4, rounds=3, local=local, noise=Gaussian(sigma=math.sqrt(3) * 2 / MU))


@pytest.mark.parametrize(
    ("rate", "steps", "verdict"),
    [(1.9, 1, "refuted"), (1.9, 3, "refuted"), (5.0, 3, "refuted"), (1.0, 3, "holds")],
)
def test_proximal_steps_beyond_one_over_alpha_break_the_claim_of_2v_over_alpha(
    rate: float, steps: int, verdict: str
) -> None:
    """docs/theory.md#a3, second flaw. The certified bound knows |1 - eta alpha| and holds for all of them."""
    claim = Claim(name="2V/alpha", mu=MU, view="server", ours=True)
    for seed in SEEDS:
        finding = found(
            game(proximal(rate, steps), "server", seed),
            (claim, replace(claim, name="elsewhere", view="final")),
        )
        assert [judged.verdict for judged in finding.claims] == [verdict, "not tested"]
        assert finding.contradicted == (verdict == "refuted")
        assert (finding.verdict != "refuted", finding.residuals.failed) == (True, ())


@pytest.mark.parametrize(("rate", "verdict"), [(1.9, "refuted"), (1.0, "holds")])
def test_an_even_number_of_proximal_steps_breaks_it_where_the_gradient_turns_with_the_model(
    rate: float, verdict: str
) -> None:
    """With a constant gradient two steps beyond 1/alpha nearly cancel; a curved loss makes them add up to 2 eta V (eta alpha)."""
    protocol = replace(proximal(rate, steps=2), rounds=1, noise=Gaussian(sigma=2 / MU))
    for seed in SEEDS:
        played = adapted(protocol, "server", seed, curved)
        finding = found(played, (Claim(name="2V/alpha", mu=MU, view="server", ours=True),))
        assert finding.claims[0].verdict == verdict
        assert (finding.verdict != "refuted", finding.contradicted) == (True, verdict == "refuted")
        assert finding.mu_lower > 0.7 * MU


# Noise of other laws, released once

Ratio = Callable[[np.ndarray], np.ndarray]
RELEASES = 5000


def released(
    draw: Callable[[np.random.Generator], np.ndarray], shift: np.ndarray, ratio: Ratio, seed: int
) -> Scores:
    """Scores of releases with and without a shift, by their likelihood ratio."""
    generator = np.random.default_rng(seed)
    samples = [ratio(draw(generator) + side * shift) for side in (0, 1, 0, 1)]
    return Scores(choosing=(samples[0], samples[1]), judging=(samples[2], samples[3]))


def epsilon_shown(scores: Scores, delta: float) -> float:
    """At the confidence of "refuted"."""
    return measure_error_rates(scores, "epsilon", REFUTING, delta).epsilon(delta)


def laplace_scores(dimension: int, move: float, seed: int, digits: int | None = 20) -> Scores:
    """Laplace noise of scale 1 on every coordinate, all of which the record moves; released to so many binary digits after the point."""
    shift = np.full(dimension, move)

    def ratio(x: np.ndarray) -> np.ndarray:
        x = x if digits is None else np.round(x * 2**digits) / 2**digits
        return (np.abs(x) - np.abs(x - shift)).sum(axis=1)

    return released(
        lambda generator: generator.laplace(size=(RELEASES, dimension)), shift, ratio, seed
    )


def test_laplace_noise_under_an_l2_clip_is_not_worth_its_epsilon_of_one_dimension() -> None:
    claimed, delta = 1.0, 1e-5  # an l2 norm of 1 over a scale of 1
    for seed in SEEDS:
        sold = laplace_scores(16, claimed / math.sqrt(16), seed)
        assert (
            claimed
            < epsilon_shown(sold, delta)
            < release_curve(Laplace(scale=1.0), "l2", 16, claimed).epsilon(delta)
        )
        assert 0.7 * claimed < epsilon_shown(laplace_scores(1, claimed, seed), delta) < claimed
        assert (
            epsilon_shown(laplace_scores(16, claimed / 16, seed), delta) < claimed
        )  # as many dimensions under an l1 clip


def test_laplace_noise_released_in_full_floating_point_shows_in_its_last_digits() -> None:
    """Sums with the shift leave gaps among the floats, which the ratio's rounding betrays (Mironov 2012)."""
    for seed in SEEDS:
        assert (
            epsilon_shown(laplace_scores(1, 1.0, seed, digits=None), 1e-5)
            > 1.0
            > epsilon_shown(laplace_scores(1, 1.0, seed), 1e-5)
        )


def test_the_residual_test_finds_nothing_wrong_with_that_noise() -> None:
    """What is wrong is the claim."""
    for seed in SEEDS:
        noise = np.random.default_rng(seed).laplace(size=(200, 1, 1, 16))
        assert examine_residuals(noise, law=laplace_law(1.0)).failed == ()


STAIRS = StaircaseDensity(step=1.0, width=1.0, nu=0.5)


def staircase_noise(
    generator: np.random.Generator, shape: tuple[int, ...], start: int
) -> np.ndarray:
    """Geng and Viswanath's sampler, in which the geometric variable must start at 0."""
    fall = math.exp(-STAIRS.step)
    stair = generator.geometric(1 - fall, size=shape) - 1 + start  # numpy's starts at 1
    low = generator.random(shape) < STAIRS.nu / (STAIRS.nu + (1 - STAIRS.nu) * fall)
    place = generator.random(shape)
    place = np.where(low, STAIRS.nu * place, STAIRS.nu + (1 - STAIRS.nu) * place)
    return generator.choice([-1.0, 1.0], size=shape) * STAIRS.width * (stair + place)


def staircase_density(x: np.ndarray, start: int) -> np.ndarray:
    """Of what that sampler draws; a stair below 0 is folded back."""
    fall, nu = math.exp(-STAIRS.step), STAIRS.nu
    low = nu / (nu + (1 - nu) * fall)
    far = np.abs(x) / STAIRS.width
    stair = np.floor(far)

    def on(geometric: np.ndarray, place: np.ndarray) -> np.ndarray:
        chance = np.where(geometric >= 0, (1 - fall) * fall ** np.maximum(geometric, 0), 0.0)
        return chance * np.where(place < nu, low / nu, (1 - low) / (1 - nu))

    folded = np.where((stair == 0) & (start == -1), on(np.zeros_like(far), 1 - far), 0.0)
    return (on(stair - start, far - stair) + folded) / (2 * STAIRS.width)


def staircase_scores(start: int, seed: int) -> Scores:
    """Released with and without a shift by the width, to somebody who knows the sampler."""

    def ratio(x: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(staircase_density(x - STAIRS.width, start)) - np.log(
                staircase_density(x, start)
            )

    return released(
        lambda generator: staircase_noise(generator, (RELEASES,), start),
        np.array(STAIRS.width),
        ratio,
        seed,
    )


# torch's geometric starts at 0: who subtracts 1 from it, as UDP-FL's repository does, starts at -1; numpy's starts at 1.
@pytest.mark.parametrize("start", [1, -1])
def test_a_staircase_whose_geometric_starts_elsewhere_is_not_worth_its_epsilon(start: int) -> None:
    law = staircase_law(STAIRS)
    for seed in SEEDS:
        assert epsilon_shown(staircase_scores(start, seed), 1e-5) > STAIRS.step
        assert 0.7 * STAIRS.step < epsilon_shown(staircase_scores(0, seed), 1e-5) < STAIRS.step
        noise = {
            first: staircase_noise(np.random.default_rng(seed), (200, 1, 1, 16), first)
            for first in (0, start)
        }
        failed = {test.name for test in examine_residuals(noise[start], law=law).failed}
        assert {"shares of values", "distribution of values"} <= failed
        assert examine_residuals(noise[0], law=law).failed == ()


@pytest.mark.parametrize("start", [0, 1, -1])
def test_the_staircase_densities_are_those_of_the_samplers(start: int) -> None:
    edges = np.arange(-4.0, 4.25, 0.25)
    drawn = (
        np.histogram(staircase_noise(np.random.default_rng(7), (200_000,), start), edges)[0]
        / 200_000
    )
    exact = 0.25 * staircase_density((edges[1:] + edges[:-1]) / 2, start)
    assert drawn == pytest.approx(exact, abs=5 * math.sqrt(0.25 / 200_000))


# The command


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (None, None),
        (broken.sigma_halved, "the certified bound of the view server is exceeded"),
        (broken.same_noise_in_two_rounds, "the noise does not follow the claimed distribution"),
    ],
)
def test_the_command_ends_with_4_on_broken_systems_and_with_0_on_their_twin(
    breaks, words, tmp_path, capfd, monkeypatch
) -> None:
    protocol = with_mu(replace(FEDERATION, clients=2, rounds=2, seed=SEEDS[0]), "server")
    (tmp_path / "plan.toml").write_text(dumps(protocol))
    if breaks is not None:
        breaks(monkeypatch)
    options = [
        "--view",
        "server",
        "--trainings",
        str(TRAININGS),
        "--workers",
        "1",
        "--out",
        str(tmp_path / "audit"),
        "--json",
    ]
    assert run(["audit", str(tmp_path / "plan.toml"), *options]) == (0 if breaks is None else 4)
    shown = capfd.readouterr()
    assert json.loads(shown.out)["verdict"] == (
        "refuted" if breaks is broken.sigma_halved else "holds"
    )
    assert words is None or words in shown.err
