"""The plots of `certify`: published theorems only where they are about the same unit, and curves that do not promise more than the bound."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from sordino import Constant, FedAvg, Gaussian, Protocol
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import Data, View
from sordino.report.certificate_plots import draw_certified_tradeoffs, draw_rounds

RULE = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
PLAN = Protocol(
    clients=10,
    rounds=20,
    local=RULE,
    noise=Gaussian(sigma=0.2),
    data=Data(name="digits", records=20),
)


@pytest.mark.parametrize(("unit", "expected"), [("record", True), ("client", False)])
def test_theorems_about_a_record_are_not_drawn_among_bounds_about_a_client(
    unit, expected, monkeypatch
) -> None:
    from sordino.report import certificate_plots

    monkeypatch.setattr(certificate_plots, "published_bounds", lambda plan: {"theorem": 0.3})
    axes = Figure().subplots()
    draw_rounds(axes, PLAN, View.FINAL, unit, 1e-5)
    labels = [line.get_label() for line in axes.get_lines()]
    assert ("published, theorem" in labels) == expected
    assert "certified" in labels


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_chords_between_points_of_a_trade_off_are_not_visibly_above_it(mu) -> None:
    axes = Figure().subplots()
    curve = GaussianCurve(mu=mu)
    guarantee = Guarantee(view=View.SERVER, unit="record", method="", curve=curve)
    draw_certified_tradeoffs(axes, {"server": guarantee})
    alphas, betas = axes.get_lines()[0].get_data()
    between = np.linspace(1e-4, 1, 2000)
    drawn = np.interp(between, alphas, betas)
    true = np.array([curve.beta(float(alpha)) for alpha in between])
    assert np.max(drawn - true) < 0.01
