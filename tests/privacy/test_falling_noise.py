"""A mixing that falls: steps and noise in the model fall together, at the price of every view (A34)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from sordino import train
from sordino.audit.lower_bounds import measure_error_rates
from sordino.audit.twin_distances import bound_distances
from sordino.audit.twins import make_twins, train_twins
from sordino.federation.setup import prepare
from sordino.federation.store.upload_archive import read_round
from sordino.privacy.amplification.bounded_domain import last_iterate_bounded
from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.certify import certify
from sordino.protocol import (
    Assumptions,
    ClippedGlm,
    Constant,
    FedAvg,
    Gaussian,
    InvalidValue,
    Mean,
    Protocol,
    UserError,
    View,
    dumps,
    loads,
    override_keys,
)
from sordino.protocol.schedules import Continuous, Cyclic, Decay, StageWise
from tests.audit.test_game import played, with_mu
from tests.support import toy_dataset, toy_protocol

HALVING = Decay(rate=0.8, factor=0.5, every="round")
FALLING = [HALVING, Decay(rate=1.0, factor=0.97, every=2), StageWise(rate=1.0, power=0.6)]
GLM = ClippedGlm(steps=5, clip=1.0, schedule=Constant(rate=0.5), weight_decay=0.1)
RHO = 0.95**5
SHIFT = 2 * sum(0.5 * 0.95**k for k in range(5)) / 10


def plan(mixing, **changes) -> Protocol:
    settings = {"clients": 10, "rounds": 12, "local": GLM, "noise": Gaussian(sigma=0.1)}
    return Protocol(aggregation=Mean(mixing=mixing), **settings | changes)


def mixing_by_hand(schedule, rounds: int) -> list[float]:
    if schedule is HALVING:
        return [0.8 * 0.5**t for t in range(rounds)]
    if type(schedule) is Decay:
        return [0.97 ** (t // 2) for t in range(rounds)]
    return [1 / (t + 1) ** 0.6 for t in range(rounds)]


def find_final(protocol: Protocol) -> float:
    """The mu of the last iterate alone, whatever composition says."""
    question = pose_question(protocol, "final", "client", None, None)
    return min(one.curve.mu for one in find_bounds(question) if one.method == "last iterate")


def smallest_energy(stretch, shift, noise, start: float = 0.0) -> float:
    """H in the models' own units: sum y_t^2, where x_t = noise_t y_t, under the constraints of A7, by a general solver."""
    rounds = len(stretch)

    def left(y: np.ndarray) -> np.ndarray:
        distance, found = start, []
        for t in range(rounds):
            distance = stretch[t] * distance + shift[t] - noise[t] * y[t]
            found.append(distance)
        return np.array(found)

    best = minimize(
        lambda y: float(np.square(y).sum()),
        shift / noise,
        method="SLSQP",
        bounds=[(0, None)] * rounds,
        constraints=[
            {"type": "ineq", "fun": left},
            {"type": "eq", "fun": lambda y: left(y)[-1]},
        ],
        options={"maxiter": 500, "ftol": 1e-14},
    )
    assert best.success
    return float(best.fun)


@pytest.mark.parametrize("schedule", FALLING, ids=str)
def test_the_last_model_costs_what_the_problem_of_falling_noise_costs(schedule) -> None:
    protocol = plan(schedule, rounds=5)
    mixing = np.array(mixing_by_hand(schedule, 5))
    energy = smallest_energy(
        (1 - mixing) + mixing * RHO, mixing * SHIFT, mixing * 0.1 / math.sqrt(10)
    )
    assert find_final(protocol) == pytest.approx(math.sqrt(energy), rel=1e-5)


@pytest.mark.parametrize("schedule", FALLING, ids=str)
def test_linear_dynamics_never_reveal_more_than_priced(schedule) -> None:
    protocol = plan(schedule)
    mean = variance = 0.0
    for b in mixing_by_hand(schedule, protocol.rounds):
        stretch = (1 - b) + b * RHO
        mean = stretch * mean + b * SHIFT
        variance = stretch**2 * variance + (b * 0.1) ** 2 / 10
    exact = mean / math.sqrt(variance)
    assert exact <= find_final(protocol) * (1 + 1e-9)
    assert certify(protocol, "final", "client").mu <= certify(protocol, "rounds", "client").mu


@pytest.mark.parametrize("view", ["server", "rounds", "coalition:2"])
def test_who_sees_every_round_learns_the_same_whatever_the_mixing(view) -> None:
    assert certify(plan(HALVING), view).mu == pytest.approx(certify(plan(1.0), view).mu, rel=1e-12)


def test_a_constant_schedule_is_a_constant_mixing() -> None:
    for schedule in (Constant(rate=0.3), Cyclic(rate=0.3)):
        assert find_final(plan(schedule)) == pytest.approx(find_final(plan(0.3)), rel=1e-12)
    slow = find_final(plan(Continuous(rate=1.0)))
    assert slow == pytest.approx(find_final(plan(StageWise(rate=1.0))), rel=1e-12)


def test_a_diameter_counts_in_units_of_the_noise_before_it() -> None:
    # One number for all rounds, or the same for each.
    rho, gamma = [1.0] * 40, [1.0] * 40
    assert last_iterate_bounded(rho, gamma, np.full(40, 5.0)) == last_iterate_bounded(rho, gamma, 5)
    # A distance known from one round on alone: the analysis begins there.
    distances = np.full(40, 1e6)
    distances[30] = 2.0
    assert last_iterate_bounded(rho, gamma, distances)[1] == 30
    # Two models of the ball, from any round on: one client, whose steps of 1 meet noise of 0.1.
    local = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.5))
    schedule = Decay(rate=1.0, factor=0.9, every="round")
    free = plan(schedule, local=local, rounds=6, clients=1)
    mixing = np.array([0.9**t for t in range(6)])
    energies = [
        smallest_energy(np.ones(6 - t), mixing[t:], 0.1 * mixing[t:], 0.05 if t else 0.0)
        for t in range(6)
    ]
    bounded = replace(free, assumptions=Assumptions(diameter=0.05))
    assert min(energies) < energies[0] / 2
    assert find_final(bounded) == pytest.approx(math.sqrt(min(energies)), rel=1e-5)


@pytest.mark.parametrize("view", [View.SERVER, View.ROUNDS, View.FINAL], ids=str)
def test_worst_cases_come_close_to_the_price(view) -> None:
    local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
    falling = plan(Decay(rate=1.0, factor=0.3, every="round"), local=local, clients=4, rounds=4)
    shown = measure_error_rates(played(with_mu(falling, view, 3.0), view, 2000), "mu").mu
    # The last model of linear losses has a mean of sum b_t and a variance of sum b_t^2 rounds.
    mixing = [0.3**t for t in range(4)]
    share = sum(mixing) / math.sqrt(sum(b * b for b in mixing)) / 2
    expected = 3.0 * (share if view is View.FINAL else 1.0)
    assert 0.88 * expected < shown < expected + 0.1


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_the_server_moves_by_the_mixing_of_its_round(tmp_path, engine) -> None:
    protocol = toy_protocol(rounds=3, aggregation=Mean(mixing=HALVING))
    options = {"data": toy_dataset(), "model": "logistic", "workers": 1, "keep_uploads": 1}
    run = train(protocol, folder=tmp_path / engine, engine=engine, **options)
    seen = [read_round(run.folder, t) for t in range(3)]
    for t, b in enumerate((0.8, 0.4)):
        moved = (1 - b) * seen[t].model + b * seen[t].uploads.astype(np.float64).mean(axis=0)
        assert seen[t + 1].model == pytest.approx(moved, abs=1e-6)


def test_twins_stay_within_their_bound() -> None:
    protocol = toy_protocol(rounds=6, seed=3, aggregation=Mean(mixing=HALVING))
    pair = make_twins(prepare(protocol, data=toy_dataset(), model="logistic"))
    found = train_twins(pair, workers=1).distances
    bounds = bound_distances(pair)
    assert (found <= bounds).all()
    # The first round moves one client of all by 2 V K eta, and the server by 0.8 of the mean.
    rule = protocol.local
    moved = 2 * rule.clip * rule.steps * rule.schedule.rate / protocol.clients
    assert bounds[0] == pytest.approx(0.8 * moved, rel=1e-9)


def test_a_file_says_the_mixing_and_comes_back() -> None:
    for schedule in (*FALLING, Cyclic(rate=0.5)):
        assert loads(dumps(plan(schedule))) == plan(schedule)
    assert '{ kind = "decay", rate = 0.8, factor = 0.5, every = "round" }' in dumps(plan(HALVING))


@pytest.mark.parametrize(
    ("mixing", "words"),
    [
        ('{ kind = "constant", rate = 1.5 }', ["mixing.rate", "1.5", "at most 1"]),
        ('{ kind = "linear", rate = 1.0 }', ["mixing.kind", "linear", "stage-wise"]),
        ("2", ["mixing = 2", "a schedule"]),
    ],
)
def test_mistakes_are_named(mixing, words) -> None:
    with pytest.raises(UserError) as caught:
        override_keys(plan(1.0), [f"federation.aggregation={{ mean = {{ mixing = {mixing} }} }}"])
    for word in words:
        assert word in str(caught.value)
    with pytest.raises(InvalidValue):
        Mean(mixing=StageWise(rate=2.0))
