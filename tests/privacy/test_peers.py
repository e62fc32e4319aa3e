"""Where another library expresses the same thing, we agree with it to 1e-6, or are inside its rigorous interval."""

from dataclasses import replace

import numpy as np
import pytest

from sordino.cli.protocol_sources import example_text
from sordino.privacy.amplification import subsampling
from sordino.privacy.certify import certify
from sordino.privacy.curves import gaussian
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.protocol import (
    Constant,
    Data,
    Everyone,
    FedAvg,
    Gaussian,
    Mean,
    Poisson,
    Privacy,
    Protocol,
    StageWise,
    UserError,
    loads,
)
from tests.oracles.peer_distributions import write_distribution


@pytest.mark.parametrize("mu", [0.05, 0.7, 3.0])
def test_trade_offs_and_advantage_of_gaussian_noise_agree_with_riskcal(mu) -> None:
    analysis = pytest.importorskip("riskcal").analysis
    for alpha in (1e-4, 0.05, 0.5, 0.9):
        assert GaussianCurve(mu=mu).beta(alpha) == pytest.approx(
            float(analysis.get_beta_from_gdp(mu, alpha)), abs=1e-6
        )
    assert GaussianCurve(mu=mu).delta(0.0) == pytest.approx(
        float(analysis.get_advantage_from_gdp(mu)), abs=1e-6
    )


def test_a_trade_off_from_privacy_losses_agrees_with_riskcal() -> None:
    analysis = pytest.importorskip("riskcal").analysis
    curve = subsampling.compose_poisson_batches(multiplier=1.0, rate=0.05, steps=200)
    for alpha in (0.01, 0.1, 0.4):
        theirs = float(
            np.ravel(
                analysis.get_beta_from_pld(write_distribution(curve), alphas=np.array([alpha]))
            )[0]
        )
        assert curve.beta(alpha) == pytest.approx(theirs, abs=2e-3)
        assert (
            curve.beta(alpha) <= theirs + 1e-6
        )  # both directions are promised, so ours is the smaller


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.01, 1.0, 1000), (0.1, 2.0, 300)])
def test_sampled_gaussian_steps_lie_in_the_interval_of_prv_accountant(
    rate, multiplier, steps
) -> None:
    prv = pytest.importorskip("prv_accountant")
    mechanism = prv.PoissonSubsampledGaussianMechanism(
        sampling_probability=rate, noise_multiplier=multiplier
    )
    accountant = prv.PRVAccountant(
        prvs=mechanism, max_self_compositions=steps, eps_error=0.005, delta_error=1e-10
    )
    low, _, high = accountant.compute_epsilon(delta=1e-5, num_self_compositions=[steps])
    assert (
        low
        <= subsampling.compose_poisson_batches(
            multiplier=multiplier, rate=rate, steps=steps
        ).epsilon(1e-5)
        <= high
    )


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [Constant(rate=0.1), StageWise(rate=0.4)])
@pytest.mark.parametrize("view", ["server", "rounds", "coalition:3"])
def test_a_protocol_as_dp_event_is_priced_alike_by_dp_accounting(schedule, view) -> None:
    from dp_accounting.pld import PLDAccountant

    local = FedAvg(steps=5, batch=32, clip=1.0, schedule=schedule)
    protocol = Protocol(clients=20, rounds=25, local=local, noise=Gaussian(sigma=2.0))
    theirs = (
        PLDAccountant(value_discretization_interval=1e-4)
        .compose(protocol.to_dp_event(view))
        .get_epsilon(1e-5)
    )
    ours = certify(protocol, view).epsilon(1e-5)
    assert ours <= theirs + 1e-6  # theirs is discretised upwards
    assert ours == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize(
    ("participation", "adjacency"),
    [(Poisson(rate=0.3), "add-or-remove"), (Everyone(), "replace-one")],
)
def test_noise_at_the_server_as_dp_event_is_priced_alike_by_dp_accounting(
    participation, adjacency
) -> None:
    from dp_accounting.pld import PLDAccountant

    local = FedAvg(steps=4, batch=7, clip=0.5, clip_target="update", schedule=Constant(rate=0.3))
    protocol = Protocol(
        clients=100,
        rounds=40,
        participation=participation,
        aggregation=Mean(denominator="fixed"),
        local=local,
        noise=Gaussian(sigma=0.03, where="server"),
        privacy=Privacy(adjacency=adjacency),
    )
    event = protocol.to_dp_event("rounds", "client")
    theirs = PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(1e-4)
    ours = certify(protocol, "rounds", "client", delta=1e-4).epsilon(1e-4)
    assert ours <= theirs + 1e-6
    assert ours == pytest.approx(theirs, rel=1e-3)
    # What the server sees it could subtract its noise from.
    with pytest.raises(UserError, match="noise at the server"):
        protocol.to_dp_event("server", "client")


def test_a_draw_that_dp_accounting_would_count_for_other_neighbours_has_no_event() -> None:
    rule = FedAvg(steps=4, batch=7, clip=0.5, clip_target="update", schedule=Constant(rate=0.3))
    protocol = Protocol(
        clients=100,
        rounds=40,
        participation=Poisson(rate=0.3),
        aggregation=Mean(denominator="fixed"),
        local=rule,
        noise=Gaussian(sigma=0.03, where="server"),
    )
    with pytest.raises(UserError, match="added or removed whose Poisson draw"):
        protocol.to_dp_event("rounds", "client")


def test_lots_under_the_servers_noise_have_no_event_against_the_server() -> None:
    protocol = loads(example_text("dp-sgd"))
    trusted = replace(protocol, noise=replace(protocol.noise, where="server"))
    assert trusted.to_dp_event("rounds") is not None
    with pytest.raises(UserError, match="nothing is hidden from it"):
        trusted.to_dp_event("server")


def test_gaussian_epsilon_agrees_with_dp_accounting_to_a_millionth() -> None:
    from dp_accounting import gaussian_mechanism

    for mu in (0.1, 1.0, 4.0):
        assert gaussian.epsilon(mu, 1e-5) == pytest.approx(
            gaussian_mechanism.get_epsilon_gaussian(1 / mu, 1e-5), abs=1e-6
        )


def test_a_secret_batch_of_one_step_is_dp_accountings_draw_without_replacement() -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    local = FedAvg(steps=1, batch=8, clip=1.0, schedule=Constant(rate=0.5))
    data = Data(name="digits", records=80)
    protocol = Protocol(clients=4, rounds=30, local=local, noise=Gaussian(sigma=2.0), data=data)
    event = protocol.to_dp_event("server")
    assert event.event == dp_accounting.SampledWithoutReplacementDpEvent(
        80, 8, dp_accounting.GaussianDpEvent(2.0)
    )
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    theirs = RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5)
    ours = certify(protocol).epsilon(1e-5)
    assert theirs / 4 < ours < theirs


@pytest.mark.parametrize("changes", [{"steps": 2}, {"minibatches": "public"}])
def test_a_draw_for_which_dp_accounting_has_no_event_is_left_out(changes) -> None:
    import dp_accounting

    settings = {"steps": 1, "batch": 8, "clip": 1.0, "schedule": Constant(rate=0.5), **changes}
    protocol = Protocol(
        clients=4,
        rounds=30,
        local=FedAvg(**settings),
        noise=Gaussian(sigma=2.0),
        data=Data(name="digits", records=80),
    )
    certain = dp_accounting.GaussianDpEvent(2.0 / settings["steps"])
    assert protocol.to_dp_event("server").event == certain
