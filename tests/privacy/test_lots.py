"""dp-sgd: one noise on a lot of all clients' records is central DP-SGD, and less where it is seen in shares."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from sordino import (
    Data,
    DpSgd,
    FixedSize,
    Gaussian,
    Mean,
    Model,
    Poisson,
    Privacy,
    Protocol,
    SecureAggregation,
    SordinoError,
    calibrate,
    certify,
    dp_event,
)
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.bounds.shared_noise import certify_shared
from sordino.protocol import ClientBudget, Constant, FedAvg, Median

PLAN = Protocol(
    clients=10,
    rounds=200,
    local=DpSgd(batch=6, clip=0.7),
    noise=Gaussian(multiplier=1.1),
    data=Data(name="digits", records=120),
    model=Model(name="mlp", parameters=7850),
)
DELTA = 1e-5


def central(
    multiplier: float, rate: float, rounds: int, relation: str = "ADD_OR_REMOVE_ONE"
) -> float:
    """dp_accounting's epsilon of DP-SGD on one data set."""
    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation[relation])
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, rounds))
    return accountant.get_epsilon(DELTA)


def test_one_client_is_the_sampled_gaussian_of_dp_accounting_in_every_view() -> None:
    plan = replace(PLAN, clients=1)
    expected = central(1.1, 0.05, 200)
    for view in ("server", "rounds", "final"):
        assert certify(plan, view).epsilon(DELTA) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("clients", [2, 10, 40])
def test_models_show_the_same_however_many_clients_share_the_records(clients: int) -> None:
    plan = replace(PLAN, clients=clients)
    assert certify(plan, "rounds").epsilon(DELTA) == pytest.approx(
        central(1.1, 0.05, 200), rel=1e-3
    )


@pytest.mark.slow
def test_a_coalition_takes_its_shares_of_the_noise_away() -> None:
    expected = central(1.1 * math.sqrt(0.6), 0.05, 200)
    assert certify(PLAN, "coalition:4").epsilon(DELTA) == pytest.approx(expected, rel=1e-3)


def test_the_server_finds_one_share_in_an_upload() -> None:
    plan = replace(PLAN, noise=Gaussian(multiplier=3.0))
    expected = central(3.0 / math.sqrt(10), 0.05, 200)
    assert certify(plan, "server").epsilon(DELTA) == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_a_server_that_adds_the_noise_is_trusted() -> None:
    plan = replace(PLAN, noise=Gaussian(multiplier=1.1, where="server"))
    assert certify(plan, "server").epsilon(DELTA) == math.inf
    for view in ("rounds", "coalition:9"):
        assert certify(plan, view).epsilon(DELTA) == pytest.approx(
            central(1.1, 0.05, 200), rel=1e-3
        )


def test_secure_sums_give_the_server_what_a_trusted_one_would_publish() -> None:
    """The share is zV / sqrt(t - k), so that t contributions with k colluders have z."""
    plan = replace(PLAN, channel=SecureAggregation(threshold=8, colluders=2))
    release = plan.release
    assert release.lot is not None
    assert release.lot.share == pytest.approx(1.1 * 0.7 / math.sqrt(6))
    expected = central(1.1, 0.05, 200)
    found = certify(plan, "server").epsilon(DELTA)
    assert expected <= found < 1.002 * expected
    # An eavesdropper has no colluders, and finds t shares.
    assert certify(plan, "rounds").epsilon(DELTA) < expected


@pytest.mark.slow
def test_rounding_to_a_coarse_grid_is_paid_for() -> None:
    secure = SecureAggregation(threshold=10)
    fine = replace(PLAN, channel=secure)
    coarse = replace(fine, noise=Gaussian(multiplier=1.1, digits=3))
    grid = coarse.grid
    assert grid is not None
    share = 6 * math.sqrt(grid.parameter**2 - 36) / grid.scale
    moved = 0.7 + 6 * math.sqrt(7850) / grid.scale
    expected = central(share * math.sqrt(10) / moved, 0.05, 200)
    assert certify(coarse, "server").epsilon(DELTA) == pytest.approx(expected, rel=1e-3)
    assert certify(fine, "server").epsilon(DELTA) < certify(coarse, "server").epsilon(DELTA)


def test_fixed_lots_are_replaced_and_cost_c_q_of_two_over_z() -> None:
    """C_q(G_mu) in one round: delta(eps) = q delta_mu(log(1 + (e^eps - 1)/q)) (Dong, Roth, Su)."""
    plan = replace(PLAN, rounds=1, local=replace(PLAN.local, sampling="fixed"))
    assert plan.adjacency == "replace-one"
    curve = certify(plan, "rounds")
    mu = 2 / 1.1
    for epsilon in (0.1, 0.5, 1.0):
        inner = math.log1p(math.expm1(epsilon) / 0.05)
        gauss = norm.cdf(-inner / mu + mu / 2) - math.exp(inner) * norm.cdf(-inner / mu - mu / 2)
        assert curve.delta(epsilon) == pytest.approx(0.05 * gauss, rel=2e-3, abs=1e-9)


@pytest.mark.slow
def test_poisson_lots_may_be_priced_for_a_replaced_record() -> None:
    plan = replace(PLAN, privacy=Privacy(adjacency="replace-one"))
    expected = central(1.1, 0.05, 200, "REPLACE_ONE")
    assert certify(plan, "rounds").epsilon(DELTA) == pytest.approx(expected, rel=5e-3)


@pytest.mark.slow
def test_a_client_with_few_records_is_drawn_from_as_rarely_as_any_other() -> None:
    """One coin for all records of the federation: B over the mean number of records."""
    sizes = (20,) * 5 + (220,) * 5
    plan = replace(PLAN, data=Data(name="digits", sizes=sizes))
    assert certify(plan, "rounds").epsilon(DELTA) == pytest.approx(
        central(1.1, 0.05, 200), rel=1e-3
    )
    fixed = replace(plan, local=replace(PLAN.local, sampling="fixed"))
    small = replace(fixed, data=Data(name="digits", records=20))
    # A fixed number of records is drawn from every client: the smallest hides its records least.
    assert certify(fixed, "rounds").epsilon(DELTA) == certify(small, "rounds").epsilon(DELTA)


def test_without_sizes_every_lot_counts_as_holding_the_record() -> None:
    plan = replace(PLAN, data=None, rounds=4)
    assert certify(plan, "rounds").mu == pytest.approx(2 / 1.1)


def test_weak_noise_is_priced_by_how_often_the_record_is_drawn() -> None:
    """At mu = 16 a lot that holds the record shows it; it does so about ten times of 200."""
    plan = replace(PLAN, noise=Gaussian(multiplier=0.2))
    often = np.random.default_rng(1).binomial(200, 0.05, size=100_000)
    found = certify(plan, "server")
    mu = math.sqrt(10) / 0.2
    epsilon = found.epsilon(DELTA)
    shifted = mu * np.sqrt(often[often > 0])
    deltas = norm.cdf(-epsilon / shifted + shifted / 2)
    assert found.method == "known batches"
    # delta(eps) <= E Phi(-eps/m + m/2) at the number of rounds that hold it.
    assert deltas.sum() / len(often) < 20 * DELTA
    assert epsilon < 200 * mu**2 / 2


@pytest.mark.slow
def test_known_contributors_have_their_shares_counted() -> None:
    question = pose_question(PLAN, "rounds", "record", rounds=range(20), present=[5] * 20)
    found = certify_shared(question).epsilon(DELTA)
    assert found == pytest.approx(central(1.1 * math.sqrt(0.5), 0.05, 20), rel=1e-3)
    trusted = replace(PLAN, noise=Gaussian(multiplier=1.1, where="server"))
    question = pose_question(trusted, "rounds", "record", rounds=range(20), present=[5] * 20)
    # The noise is on a mean over half as many: half as much on their sum.
    expected = central(1.1 / 2, 0.05, 20)
    assert certify_shared(question).epsilon(DELTA) == pytest.approx(expected, rel=1e-3)


def test_random_participation_is_mixed_over_the_shares_that_are_there() -> None:
    fixed = replace(PLAN, participation=FixedSize(size=5))
    # Half of the clients, half of the time: below everyone's price with the noise of five.
    always = central(1.1, 0.05, 200)
    assert 0.3 * always < certify(fixed, "rounds").epsilon(DELTA) < always
    drawn = replace(PLAN, participation=Poisson(rate=0.5), aggregation=Mean(denominator="fixed"))
    assert certify(drawn, "rounds").epsilon(DELTA) > certify(fixed, "rounds").epsilon(DELTA)


def test_the_noise_for_a_target_is_found() -> None:
    found = calibrate(PLAN, epsilon=2.0, view="rounds")
    again = certify(found.protocol, "rounds").epsilon(DELTA)
    assert 1.98 < again <= 2.0


@pytest.mark.slow
def test_the_event_for_dp_accounting_has_the_same_price() -> None:
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_event(PLAN, "coalition:4"))
    found = certify(PLAN, "coalition:4").epsilon(DELTA)
    assert accountant.get_epsilon(DELTA) == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"noise": Gaussian(sigma=1.0)},
        {"noise": Gaussian(multiplier=1.0, where="both", server_sigma=0.1)},
        {"aggregation": Median()},
        {"aggregation": Mean(weights="records")},
        {"participation": Poisson(rate=0.5)},
        {"channel": "shuffler"},
        {"client": (ClientBudget(id=0, epsilon=1.0),)},
        {"local": FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))},
        {
            "local": replace(PLAN.local, sampling="fixed"),
            "privacy": Privacy(adjacency="add-or-remove"),
        },
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_not_priced_is_refused(changes: dict) -> None:
    with pytest.raises(SordinoError):
        replace(PLAN, **changes)


def test_under_little_noise_what_was_realised_counts_lots_as_seen_as_the_plan_does() -> None:
    weak = replace(PLAN, noise=Gaussian(multiplier=0.3), rounds=7)
    question = pose_question(weak, "server", "record", rounds=range(7), present=[9] * 7)
    # Each upload under its own share of ten; the record is in a binomial number of the lots.
    far = math.sqrt(10) / 0.3 * np.sqrt(np.arange(1, 8))
    masses = [math.comb(7, n) * 0.05**n * 0.95 ** (7 - n) for n in range(1, 8)]

    def find_delta(epsilon: float) -> float:
        gone = norm.sf(epsilon / far - far / 2)
        kept = np.exp(epsilon + norm.logsf(epsilon / far + far / 2))
        return float(np.dot(masses, gone - kept))

    exact = brentq(lambda epsilon: find_delta(epsilon) - 1e-5, 1, 600)
    assert certify_shared(question).epsilon(1e-5) == pytest.approx(exact, rel=1e-3)
    assert certify(weak, "server").epsilon(1e-5) == pytest.approx(exact, rel=1e-3)


def test_noise_beyond_all_measure_has_no_traceback() -> None:
    assert certify(replace(PLAN, noise=Gaussian(multiplier=1e60))).epsilon(1e-5) == 0
