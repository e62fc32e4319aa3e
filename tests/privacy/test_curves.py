"""What every kind of curve must satisfy, whichever way it is represented, and how the kinds agree with one another."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from sordino.privacy.amplification.subsampling import compose_fixed_batches, compose_poisson_batches
from sordino.privacy.curves import gaussian
from sordino.privacy.curves.curve import Curve, supporting_beta
from sordino.privacy.curves.gaussian_curve import NOTHING, PERFECT, GaussianCurve, compose_curves
from sordino.privacy.curves.loss_distributions import LossCurve
from sordino.privacy.curves.mixtures import mix_gaussians
from sordino.privacy.curves.renyi import RenyiCurve
from sordino.protocol.errors import UserError

CURVES = {
    "gaussian": GaussianCurve(mu=1.3),
    "mixture": mix_gaussians([0.0, 0.5, 2.0], [0.5, 0.3, 0.2]),
    "renyi": RenyiCurve.from_divergence(lambda order: 0.4 * order),
    "loss": GaussianCurve(mu=0.9).losses(1e-3),
    "asymmetric loss": compose_poisson_batches(multiplier=0.8, rate=0.1, steps=3, interval=1e-3),
    "subsampled": compose_fixed_batches(mu=1.5, rate=0.05, steps=4, interval=1e-3),
}
DELTAS = (1e-9, 1e-5, 1e-2, 0.3)


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
class TestEveryCurve:
    def test_epsilon_and_delta_are_inverse_and_never_optimistic(self, curve: Curve) -> None:
        for delta in DELTAS:
            epsilon = curve.epsilon(delta)
            assert curve.delta(epsilon) <= delta * (1 + 1e-12)
            if epsilon > 1e-6:
                assert curve.delta(epsilon * (1 - 1e-6)) > delta * (1 - 1e-6)

    def test_delta_falls_and_is_convex_in_e_to_the_epsilon(self, curve: Curve) -> None:
        growth = np.linspace(1.0, 20.0, 40)
        deltas = curve.deltas(np.log(growth))
        assert (np.diff(deltas) <= 1e-15).all()
        if not isinstance(curve, RenyiCurve):  # a minimum over orders need not be convex
            assert (np.diff(deltas, 2) >= -1e-12).all()

    def test_the_trade_off_is_a_convex_involution_between_the_extremes(self, curve: Curve) -> None:
        alphas = np.linspace(0.0, 1.0, 21)
        betas = np.array([curve.beta(alpha) for alpha in alphas])
        assert (betas >= 0).all()
        assert (betas <= 1 - alphas + 1e-15).all()
        assert (np.diff(betas) <= 1e-12).all()
        assert (np.diff(betas, 2) >= -1e-6).all()
        for beta in betas[1:-1]:
            if beta > 1e-9 and not isinstance(curve, RenyiCurve):
                assert curve.beta(beta) == pytest.approx(
                    alphas[np.flatnonzero(betas == beta)[0]], abs=2e-5
                )

    @pytest.mark.slow
    def test_supporting_lines_never_pass_above_what_epsilon_delta_allow(self, curve: Curve) -> None:
        for alpha in (0.01, 0.2, 0.7):
            grid = np.linspace(0.0, 12.0, 4001)
            deltas = curve.deltas(grid)
            lines = np.maximum(
                1 - deltas - np.exp(grid) * alpha, np.exp(-grid) * (1 - deltas - alpha)
            )
            assert curve.beta(alpha) == pytest.approx(max(0.0, lines.max()), abs=1e-5)

    def test_many_betas_at_once_stay_just_below_each(self, curve: Curve) -> None:
        alphas = np.array([0.0, 1e-4, 0.01, 0.05, 0.2, 0.5, 0.9, 1.0])
        each = np.array([curve.beta(alpha) for alpha in alphas])
        together = curve.betas(alphas)
        assert (together <= each + 1e-12).all()
        assert together == pytest.approx(each, abs=2e-3)

    @pytest.mark.slow
    def test_composition_commutes_and_adds(self, curve: Curve) -> None:
        for other in (CURVES["gaussian"], CURVES["renyi"], CURVES["loss"]):
            one, two = curve.compose(other), other.compose(curve)
            for delta in (1e-5, 1e-2):
                assert one.epsilon(delta) == pytest.approx(two.epsilon(delta), rel=1e-9)
                assert one.epsilon(delta) >= max(curve.epsilon(delta), other.epsilon(delta)) * (
                    1 - 1e-3
                )

    def test_repeating_is_composing(self, curve: Curve) -> None:
        thrice = curve.compose(curve).compose(curve)
        for delta in (1e-6, 1e-2):
            assert curve.repeat(3).epsilon(delta) == pytest.approx(thrice.epsilon(delta), rel=1e-6)
        assert curve.repeat(1).epsilon(1e-3) == pytest.approx(curve.epsilon(1e-3))
        assert curve.repeat(0).epsilon(1e-3) == pytest.approx(0.0, abs=1e-12)

    def test_nothing_and_everything_are_the_ends(self, curve: Curve) -> None:
        assert curve.compose(PERFECT).epsilon(1e-4) == pytest.approx(curve.epsilon(1e-4), rel=1e-6)
        assert PERFECT.is_at_most(curve)
        assert curve.is_at_most(NOTHING)
        assert not NOTHING.is_at_most(curve)

    def test_divergences_rise_with_the_order(self, curve: Curve) -> None:
        values = [curve.rdp(order) for order in (1.5, 2, 3, 8)]
        assert all(low <= high for low, high in pairwise(values))

    def test_bad_questions_are_refused(self, curve: Curve) -> None:
        for ask in (
            lambda: curve.epsilon(0.0),
            lambda: curve.epsilon(math.nan),
            lambda: curve.delta(-1.0),
            lambda: curve.beta(2.0),
        ):
            with pytest.raises(UserError):
                ask()
        with pytest.raises(UserError):
            curve.repeat(-1)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_all_representations_of_one_gaussian_agree_from_above(mu: float) -> None:
    exact = GaussianCurve(mu=mu)
    as_losses, as_mixture, as_renyi = (
        exact.losses(1e-3),
        mix_gaussians([mu], [1.0]),
        RenyiCurve.from_divergence(exact.rdp),
    )
    for delta in (1e-8, 1e-5, 1e-2):
        truth = gaussian.epsilon(mu, delta)
        assert truth <= as_losses.epsilon(delta) <= truth + 1e-5
        assert truth * (1 - 1e-12) <= as_mixture.epsilon(delta) <= truth * (1 + 1e-9)
        assert (
            truth
            <= as_renyi.epsilon(delta)
            <= min(exact.rdp(order) - math.log(delta) / (order - 1) for order in as_renyi.orders)
        )
    for alpha in (0.01, 0.3, 0.9):
        assert as_losses.beta(alpha) <= gaussian.beta(mu, alpha) * (1 + 1e-9)
        assert as_losses.beta(alpha) == pytest.approx(gaussian.beta(mu, alpha), abs=1e-4)
        assert as_renyi.beta(alpha) <= gaussian.beta(mu, alpha)


def test_composed_gaussian_losses_lie_just_above_the_exact_value() -> None:
    for times in (4, 100):
        truth = gaussian.epsilon(0.5 * math.sqrt(times), 1e-6)
        assert (
            truth
            <= GaussianCurve(mu=0.5).losses(1e-4).repeat(times).epsilon(1e-6)
            <= truth + 1e-5 * times
        )


def test_a_renyi_curve_as_losses_promises_no_more_than_the_true_release() -> None:
    curve = RenyiCurve.from_divergence(lambda order: order / 2).losses(1e-3)
    assert (
        gaussian.epsilon(3.0, 1e-5)
        <= curve.repeat(9).epsilon(1e-5)
        < 3 * gaussian.epsilon(3.0, 1e-5)
    )


def test_agreement_with_dp_accounting() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    theirs = pld.from_gaussian_mechanism(1.0, value_discretization_interval=1e-3).self_compose(20)
    ours = GaussianCurve(mu=1.0).losses(1e-3).repeat(20)
    for delta in (1e-8, 1e-5, 1e-2):
        assert ours.epsilon(delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), abs=1e-6)
    for epsilon in (0.0, 5.0, 30.0):
        assert ours.delta(epsilon) == pytest.approx(theirs.get_delta_for_epsilon(epsilon), rel=1e-5)


def test_a_visible_coin_scales_delta() -> None:
    curve = GaussianCurve(mu=1.0).losses(1e-3)
    for epsilon in (0.0, 1.0, 3.0):
        assert curve.mix_with_nothing(0.2).delta(epsilon) == pytest.approx(
            0.2 * curve.delta(epsilon), rel=1e-9
        )


def test_grids_of_different_width_compose() -> None:
    both = GaussianCurve(mu=0.6).losses(1e-3).compose(GaussianCurve(mu=0.8).losses(2e-3))
    assert isinstance(both, LossCurve)
    assert gaussian.epsilon(1.0, 1e-5) <= both.epsilon(1e-5) <= gaussian.epsilon(1.0, 1e-5) + 1e-4


def test_a_weak_release_widens_the_grid_instead_of_failing() -> None:
    both = GaussianCurve(mu=0.5).losses(1e-4).compose(GaussianCurve(mu=30.0))
    truth = gaussian.epsilon(math.hypot(30.0, 0.5), 1e-5)
    assert isinstance(both, LossCurve)
    assert truth <= both.epsilon(1e-5) <= truth * (1 + 1e-5)


def test_many_curves_compose_to_the_most_general_kind() -> None:
    assert compose_curves([GaussianCurve(mu=3.0), GaussianCurve(mu=4.0)]).mu == 5
    assert compose_curves([]).mu == 0
    assert compose_curves(list(CURVES.values())).rank == 3
    assert compose_curves([CURVES["gaussian"], CURVES["mixture"]]).rank == 1


def test_no_privacy_is_said_so() -> None:
    assert (NOTHING.epsilon(1e-5), NOTHING.delta(5.0), NOTHING.beta(0.2), NOTHING.rdp(2)) == (
        math.inf,
        1.0,
        0.0,
        math.inf,
    )
    assert NOTHING.compose(GaussianCurve(mu=1.0)).mu == math.inf
    with pytest.raises(UserError, match="grid"):
        NOTHING.losses(1e-3)


def test_supporting_beta_of_pure_privacy() -> None:
    pure = lambda epsilon: max(0.0, (math.e - math.exp(epsilon)) / (math.e + 1))  # noqa: E731  randomised response at eps0 = 1
    for alpha in (0.05, 0.3, 0.8):
        exact = max(0.0, 1 - math.e * alpha, (1 - alpha) / math.e)
        assert supporting_beta(pure, alpha) == pytest.approx(exact, abs=1e-9)
        assert supporting_beta(pure, alpha) <= exact


@pytest.mark.parametrize("orders", [(), (1.0, 2.0), (3.0, 2.0)])
def test_a_renyi_curve_needs_increasing_orders(orders: tuple[float, ...]) -> None:
    with pytest.raises(UserError):
        RenyiCurve(orders=orders, values=(0.1,) * len(orders))
