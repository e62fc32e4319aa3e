"""The rule bezier: a mixture over the public point of its curve."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad

from sordino.privacy.bounds.bezier_mixture import BINS, bezier_levels
from sordino.privacy.bounds.providers import find_bounds
from sordino.privacy.bounds.question import pose_question
from sordino.privacy.certify import certify
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.ledger_lines import Opened, RoundCharged
from sordino.privacy.spending import certify_clients
from sordino.protocol import Assumptions, Bezier, Constant, Data, Gaussian, Poisson, Protocol

RULE = Bezier(steps=2, batch=4, clip=0.5, schedule=Constant(rate=0.5))  # moves by 1
PLAN = Protocol(
    clients=4,
    rounds=1,
    local=RULE,
    noise=Gaussian(sigma=0.8),
    assumptions=Assumptions(smoothness=2.0),
)


def test_every_piece_counts_its_largest_value() -> None:
    factors, _ = bezier_levels()
    places = np.linspace(0, 1, 24 * 50 + 1)
    exact = (1 - places) * (1 + 1.2 * places) * 120 / 121
    pieces = np.minimum((places * BINS).astype(int), BINS - 1)
    assert (factors[pieces] >= exact - 1e-12).all()


@pytest.mark.parametrize(("view", "honest"), [("server", 1), ("rounds", 4), ("coalition:1", 3)])
def test_one_round_is_the_average_over_the_curve(view: str, honest: int) -> None:
    found = certify(PLAN, view)
    for epsilon in (0.1, 0.5, 1.0):

        def given(r: float, epsilon: float = epsilon) -> float:
            mu = (1 - r) * (1 + 1.2 * r) / (0.8 * math.sqrt(honest))
            return GaussianCurve(mu=mu).delta(epsilon)

        exact = quad(given, 0, 1)[0]
        assert exact <= found.delta(epsilon) <= 1.15 * exact


def test_one_round_under_the_servers_noise_is_the_average_too() -> None:
    """The mean of four moves by a quarter of what one upload moves by, under noise of 0.2."""
    noise = Gaussian(sigma=0.2, where="server")
    for plan, spread in (
        (replace(PLAN, noise=noise), 0.8),
        (
            replace(PLAN, noise=replace(noise, where="both", sigma=0.4, server_sigma=0.2)),
            0.8 * 2**0.5,
        ),
    ):
        found = certify(plan, "rounds")
        assert found.method == "Bezier mixture"

        def given(r: float, spread: float = spread) -> float:
            return GaussianCurve(mu=(1 - r) * (1 + 1.2 * r) / spread).delta(0.5)

        exact = quad(given, 0, 1)[0]
        assert exact <= found.delta(0.5) <= 1.1 * exact


@pytest.mark.parametrize("records", [None, 40])
def test_it_is_never_above_what_was_promised_before(records: int | None) -> None:
    plan = replace(PLAN, rounds=50, data=Data(name="digits", records=records))
    for view in ("server", "rounds", "final"):
        for drawn in (plan, replace(plan, participation=Poisson(rate=0.5))):
            bounds = {
                bound.method: bound.curve.epsilon(1e-5)
                for bound in find_bounds(pose_question(drawn, view, "record", None, None))
            }
            newer = ("Bezier mixture", "secret batches")  # the latter uses that batches are secret
            rest = [epsilon for method, epsilon in bounds.items() if method not in newer]
            assert bounds["Bezier mixture"] < 0.95 * min(rest)


def test_what_was_realised_is_a_mixture_too() -> None:
    plan = replace(PLAN, rounds=20, participation=Poisson(rate=0.5))
    events = [Opened(protocol="x", generator="y", noise="seeded")]
    events += [RoundCharged(round=t, clients=(0, 1)) for t in range(20)]
    certain = replace(plan, participation=type(PLAN.participation)())
    assert certify_clients(plan, events, "server")[0].epsilon(1e-5) == pytest.approx(
        certify(certain, "server").epsilon(1e-5), rel=1e-6
    )
