"""What the page Explore shows, against the command line and against closed forms."""

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from sordino.cli.main import run
from sordino.explorer.results import (
    ALPHAS,
    find_composition,
    find_published,
    find_quick_epsilon,
    meet_target,
    price_view,
    tabulate_betas,
    trace_rounds,
    trace_tradeoffs,
)
from sordino.explorer.setting import Setting
from sordino.privacy.curves import gaussian
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.mixtures import mix_gaussians
from sordino.protocol import UserError, View, all_views, dumps

SETTINGS = {
    "the example": Setting(),
    "falling": Setting(schedule="stage-wise", rounds=3000, steps=5, records=60),
    "pulled": Setting(rule="fedprox", schedule="continuous", rounds=200),
    "sampled": Setting(participation="poisson", share=0.2, rounds=50),
    "fixed": Setting(participation="fixed", size=20, rounds=50, unit="client"),
    "laplace": Setting(mechanism="laplace", noise=2.0, rounds=20),
    "staircase": Setting(mechanism="staircase", noise=0.01, width=2.0, rounds=5),
    "at the server": Setting(where="server", noise=0.05, rounds=50),
    "noisy steps": Setting(rule="noisy-sgd", noise=1.0, rounds=5, steps=4),
    "smooth": Setting(smoothness=1.0, schedule="stage-wise", rounds=50),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_number_is_what_certify_prints_for_the_file(name, tmp_path, capfd) -> None:
    setting = SETTINGS[name]
    file = tmp_path / "federation.toml"
    file.write_text(dumps(setting.protocol))
    assert (
        run(["certify", str(file), "--json", "--unit", setting.unit, "--delta", str(setting.delta)])
        == 0
    )
    told = {row["view"]: row for row in json.loads(capfd.readouterr().out)["guarantees"]}
    for view in all_views(setting.clients):
        found = price_view(setting, view)
        shown = told[str(view)]["epsilon"]
        assert found.epsilon == (math.inf if shown == "inf" else shown)
        assert found.epsilon <= found.plain * (1 + 1e-6)
        early = find_quick_epsilon(setting, view)
        assert early is None or early >= found.epsilon


def test_what_a_paper_printed_is_shown_for_its_own_federation_alone() -> None:
    printed = find_published(Setting(smoothness=1.0, rounds=2000))
    assert [(one.claim, one.verdict) for one in printed] == [("convergent/theorem-3a", "unsound")]
    assert printed[0].false
    assert "#a2" in printed[0].reason
    assert printed[0].epsilon < price_view(Setting(smoothness=1.0, rounds=2000), View.FINAL).epsilon
    assert find_published(Setting()) == ()  # Theorem 3(a) needs a smoothness
    assert find_published(Setting(smoothness=1.0, participation="poisson")) == ()
    assert find_published(Setting(smoothness=1.0, unit="client")) == ()


def test_the_curve_over_rounds_ends_at_the_answer_and_rises() -> None:
    setting = Setting(rounds=300, smoothness=1.0)
    chart = trace_rounds(setting, View.FINAL)
    by_name = {line.name: line.values for line in chart.lines}
    assert by_name["certified"][-1] == price_view(setting, View.FINAL).epsilon
    assert by_name["plain composition"][-1] == find_composition(
        setting.protocol, View.FINAL, "record"
    ).epsilon(1e-5)
    assert list(by_name["certified"]) == sorted(by_name["certified"])
    assert "printed, unsound: convergent/theorem-3a" in by_name
    assert len(trace_rounds(setting, View.SERVER).lines) == 2
    assert trace_rounds(Setting(rounds=1), View.SERVER).points == (1,)


def test_trade_off_curves_lie_below_the_true_ones_and_close_to_them() -> None:
    exact = norm.cdf(norm.isf(ALPHAS) - 1.0)
    assert (tabulate_betas(GaussianCurve(mu=1.0)) <= exact).all()
    drawn = tabulate_betas(mix_gaussians([1.0], [1.0]))  # the same curve, by supporting lines
    assert (drawn <= exact + 1e-12).all()
    assert np.max(exact - drawn) < 0.01
    assert (tabulate_betas(GaussianCurve(mu=math.inf)) == 0).all()


def test_views_that_look_the_same_share_a_line_and_guessing_is_drawn() -> None:
    prices = [price_view(Setting(rounds=20), view) for view in all_views(100)]
    names = [line.name for line in trace_tradeoffs(prices, 1e-5).lines]
    assert len(names) == 3
    assert names[-1] == "guessing"
    assert sorted(", ".join(names[:-1]).split(", ")) == sorted(str(view) for view in all_views(100))


@pytest.mark.parametrize(
    "given",
    [
        {"adversary": "rounds"},
        {"mechanism": "laplace", "rounds": 5},
        {"rule": "noisy-sgd", "rounds": 2},
    ],
)
def test_the_noise_that_is_found_meets_the_target_and_less_does_not(given) -> None:
    setting = Setting(target=2.0, **given)
    found, reached = meet_target(setting)
    assert reached == pytest.approx(price_view(found, setting.view).epsilon)
    assert reached <= 2.0
    less = Setting(**{**given, "noise": found.noise * 0.999})
    assert price_view(less, setting.view).epsilon > 2.0


def test_a_target_that_no_noise_meets_is_refused() -> None:
    with pytest.raises(UserError, match="no noise is enough"):
        meet_target(Setting(where="server", adversary="server"))


def test_the_gaussian_answer_is_the_closed_form() -> None:
    setting = Setting(batch=14, rounds=100)  # a batch of all records hides nothing
    mu = math.sqrt(100) * 2 * 0.1 / 0.16
    assert price_view(setting, View.SERVER).epsilon == pytest.approx(
        gaussian.epsilon(mu, 1e-5), rel=1e-9
    )
