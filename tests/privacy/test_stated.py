"""`sordino check-claim`: a stated epsilon is true, false, or not proved, in one line."""

import json
import math

import pytest
from scipy.stats import norm

from sordino.cli.main import run
from sordino.privacy.stated import Stated, check_stated, find_stated_curve
from tests.oracles.exact_laws import epsilon_at_least, normal_mixture

USUAL = ["check-claim", "--noise-multiplier", "1.0", "--rate", "0.01", "--rounds", "1000"]


@pytest.mark.parametrize(("epsilon", "code", "word"), [("2", 0, "true"), ("1.5", 4, "false")])
def test_one_line_says_whether_a_claim_is_true(capfd, epsilon, code, word) -> None:
    assert run([*USUAL, "--epsilon", epsilon]) == code
    out = capfd.readouterr().out
    assert out.count("\n") == 1
    assert f"is {word}: at most 1.83" in out
    assert "dp_accounting, privacy loss distributions: 1.83" in out


def test_json_has_both_numbers(capfd) -> None:
    assert run([*USUAL, "--epsilon", "1.5", "--json"]) == 4
    document = json.loads(capfd.readouterr().out)
    assert document["verdict"] == "false"
    assert document["epsilon"] == pytest.approx(1.83, abs=0.01)
    assert document["dp_accounting"] == pytest.approx(document["epsilon"], rel=0.01)


@pytest.mark.parametrize(("adjacency", "move"), [("add-or-remove", 1), ("replace-one", 2)])
def test_without_sampling_it_is_the_gaussian_mechanism(adjacency, move) -> None:
    """Delta of the Gaussian mechanism by Balle and Wang's formula."""
    steps, multiplier = 50, 12.0
    mu = move * math.sqrt(steps) / multiplier
    stated = Stated(noise_multiplier=multiplier, steps=steps, sampling="full", adjacency=adjacency)
    epsilon = find_stated_curve(stated).epsilon(1e-5)
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)
    answer = check_stated(stated, epsilon=1.0, delta=1e-5)
    assert answer.accountant == pytest.approx(answer.bound, rel=0.01)


def test_fixed_batches_under_replace_one_are_not_cheaper_than_poisson_under_add_or_remove() -> None:
    fixed = Stated(
        noise_multiplier=4.0, steps=100, rate=0.02, sampling="fixed", adjacency="replace-one"
    )
    answer = check_stated(fixed, epsilon=0.1, delta=1e-5)
    poisson = check_stated(
        Stated(noise_multiplier=4.0, steps=100, rate=0.02), epsilon=0.1, delta=1e-5
    )
    assert poisson.bound < answer.bound
    # Rényi accounting is never tighter than the loss distribution of the same mechanism.
    assert answer.accountant is not None
    assert answer.bound <= answer.accountant * 1.01
    assert answer.verdict == "not proved"


def test_a_replaced_unit_under_poisson_sampling_is_priced_by_the_pair_that_is_the_worst() -> None:
    stated = Stated(noise_multiplier=1.0, steps=1000, rate=0.01, adjacency="replace-one")
    exact = epsilon_at_least(
        normal_mixture([0.0, 1.0], [0.99, 0.01]),
        normal_mixture([0.0, -1.0], [0.99, 0.01]),
        1e-5,
        times=1000,
    )
    answer = check_stated(stated, epsilon=3.0, delta=1e-5)
    # From below: 1,000 losses rounded down to a grid lose a hundredth and a half.
    assert exact <= answer.bound <= exact * 1.02
    assert answer.accountant == pytest.approx(answer.bound, rel=1e-3)
    assert answer.verdict == "true"
    assert check_stated(stated, epsilon=2.5, delta=1e-5).verdict == "false"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--noise-multiplier", "0"],
        ["--rounds", "0"],
        ["--rate", "1.5"],
        ["--sampling", "some"],
        ["--adjacency", "swap"],
        ["--epsilon", "-1"],
        ["--delta", "0"],
        ["--sampling", "fixed"],
        ["--sampling", "full"],
    ],
)
def test_wrong_input_gets_a_sentence(capfd, wrong) -> None:
    assert run([*USUAL, "--epsilon", "2", *wrong]) == 2
    err = capfd.readouterr().err
    assert "expected" in err
    assert "Traceback" not in err
