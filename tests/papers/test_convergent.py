"""The claims of convergent-dp against whole federations, integrals and random parameters."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import norm

from sordino.papers import certified, convergent
from sordino.papers.catalogue import find
from sordino.papers.claims import check
from sordino.privacy import gaussian
from sordino.privacy.last_iterate import linear_energy, worst_case_dynamics
from tests.papers.federations import exact_mu

SMALL = {"rounds": 12, "clients": 5, "sigma": 0.7, "clip": 1.3}

counts = st.integers(1, 200)
numbers = st.floats(0.05, 5.0)
some = settings(max_examples=40, deadline=None)


@pytest.mark.parametrize(
    ("rounds", "published", "exact"),
    [
        (1, 0.14142136, 0.14142136),
        (2, 0.19474525, 0.2),
        (10, 0.28995569, 0.4472136),
        (100, 0.2924363, 1.41421356),
        (1000, 0.2924363, 4.47213595),
    ],
)
def test_theorem_3a_has_the_values_of_theory(rounds, published, exact) -> None:
    verdict = check(find("convergent/theorem-3a"), rounds=rounds)
    assert verdict.published == pytest.approx(published, abs=6e-9)
    assert verdict.exact == pytest.approx(exact, abs=6e-9)
    assert verdict.holds == (rounds == 1)


def test_theorem_3a_is_refuted_by_a_federation() -> None:
    found = exact_mu(**SMALL, rates=lambda t: [0.1] * 5)
    verdict = check(find("convergent/theorem-3a"), **SMALL)
    assert verdict.exact == pytest.approx(found, rel=1e-12)
    assert verdict.published < found


def test_theorem_3b_is_refuted_by_a_federation() -> None:
    changed = {**SMALL, "rounds": 60, "clients": 2, "rate": 0.9}
    found = exact_mu(
        **{key: changed[key] for key in SMALL}, rates=lambda t: [0.9 / (k + 1) for k in range(20)]
    )
    verdict = check(find("convergent/theorem-3b"), **changed)
    assert verdict.exact == pytest.approx(found, rel=1e-12)
    assert verdict.published < found


def test_theorem_4_is_refuted_by_a_federation() -> None:
    found = exact_mu(**SMALL, rates=lambda t: [0.5] * 20, proximal=1.0)
    verdict = check(find("convergent/theorem-4"), **SMALL)
    assert verdict.exact == pytest.approx(found, rel=1e-12)
    assert verdict.published < found


@some
@given(st.integers(2, 10_000), st.integers(1, 50), st.floats(0.01, 2.0), st.floats(0.01, 20.0))
def test_theorem_3a_is_below_the_truth_for_all_rounds_and_losses(
    rounds, steps, rate, smoothness
) -> None:
    verdict = check(
        find("convergent/theorem-3a"), rounds=rounds, steps=steps, rate=rate, smoothness=smoothness
    )
    assert verdict.published < verdict.exact


def test_theorem_3a_falls_as_its_assumption_weakens() -> None:
    found = [
        check(find("convergent/theorem-3a"), rounds=100, smoothness=L).published
        for L in (0.01, 0.1, 1.0, 10.0)
    ]
    assert found == pytest.approx([1.39978, 0.890576, 0.292436, 0.145912], rel=1e-5)


@some
@given(counts, counts, numbers, numbers, numbers, counts, numbers)
def test_theorem_3c_always_holds(rounds, steps, rate, clip, smoothness, clients, sigma) -> None:
    smoothness = min(smoothness, 500 / (rate * steps))  # keeps (1 + rate L)^K a number
    verdict = check(
        find("convergent/theorem-3c"),
        rounds=rounds,
        steps=steps,
        rate=rate,
        clip=clip,
        smoothness=smoothness,
        clients=clients,
        sigma=sigma,
    )
    assert verdict.holds


def test_what_stands_beside_theorem_3c_is_attained() -> None:
    rho, gamma = [(1 + 0.1 / t) ** 5 for t in range(1, 31)], [1 / t for t in range(1, 31)]
    energy = linear_energy(
        worst_case_dynamics(rho, gamma), gamma
    )  # exact for linear dynamics no wilder than rho
    found = certified.stage_wise(
        rounds=30, steps=5, rate=0.1, clip=1.0, smoothness=1.0, clients=1, sigma=1.0
    )
    assert found == pytest.approx(math.sqrt(energy), rel=1e-12)


@some
@given(st.integers(1, 50), st.integers(1, 50), numbers, numbers, st.floats(1.0, 3.0))
def test_theorem_3d_holds_under_its_condition(rounds, steps, rate, smoothness, spare) -> None:
    z = spare * convergent.theorem_3d_least_z(steps=steps, rate=rate)
    assert check(
        find("convergent/theorem-3d"),
        rounds=rounds,
        steps=steps,
        rate=rate,
        smoothness=smoothness,
        z=z,
    ).holds


def test_theorem_3d_is_refuted_by_a_federation_of_one_round() -> None:
    found = exact_mu(
        rounds=1, clients=50, sigma=1.0, clip=1.0, rates=lambda t: [1 / (k + 1) for k in range(500)]
    )
    verdict = check(find("convergent/theorem-3d"), rounds=1, steps=500)
    assert verdict.exact == pytest.approx(found, rel=1e-12)
    assert verdict.published < found


@some
@given(st.integers(1, 30), st.floats(0.0, 1.0))
def test_theorem_1_holds_for_every_interpolation(rounds, interpolation) -> None:
    assert check(find("convergent/theorem-1"), rounds=rounds, interpolation=interpolation).holds


@some
@given(
    st.integers(1, 20),
    st.floats(0.01, 1.0),
    st.floats(0.01, 0.95),
    st.floats(0.01, 2.0),
    st.booleans(),
)
def test_theorem_2_and_its_lemmas_hold_under_their_condition(
    steps, rate, smoothness, distance, pulled
) -> None:
    proximal = 1.0 if pulled else 0.0
    changed = {"steps": steps, "rate": rate, "smoothness": smoothness}
    assert check(
        find("convergent/theorem-2"), **changed, distance=distance, proximal=proximal
    ).holds
    assert check(find("convergent/lemma-7"), steps=steps, rate=rate).holds
    assert check(find("convergent/lemma-8"), **changed).holds
    assert check(find("convergent/lemma-9"), steps=steps, rate=rate).holds
    assert check(find("convergent/lemma-10"), **changed).holds


def test_lemma_9_is_refuted_by_a_federation() -> None:
    one_round = exact_mu(
        rounds=1, clients=50, sigma=1.0, clip=1.0, rates=lambda t: [5.0] * 3, proximal=1.0
    )
    verdict = check(find("convergent/lemma-9"), rate=5.0, steps=3)
    assert verdict.exact * math.sqrt(50) == pytest.approx(one_round, rel=1e-12)
    assert verdict.published < verdict.exact


def test_lemma_10_is_refuted_by_a_matrix_power() -> None:
    # (w_k, w_0) -> (w_k - 5 (0.9 w_k + (w_k - w_0)), w_0)
    step = np.array([[1 - 5 * 1.9, 5.0], [0.0, 1.0]])
    stretched = abs((np.linalg.matrix_power(step, 3) @ np.ones(2))[0])
    verdict = check(find("convergent/lemma-10"), rate=5.0, steps=3)
    assert verdict.exact == pytest.approx(stretched)
    assert verdict.published < stretched


def test_table_2_is_refuted_by_a_federation() -> None:
    one_round = exact_mu(
        rounds=1, clients=50, sigma=1.0, clip=1.0, rates=lambda t: [2.0 / (k + 1) for k in range(5)]
    )
    verdict = check(find("convergent/table-2"))
    assert verdict.exact * math.sqrt(50) == pytest.approx(one_round, rel=1e-12)
    assert verdict.published < verdict.exact


@some
@given(st.floats(0.05, 8.0), st.floats(0.0, 10.0), st.floats(1.01, 60.0), st.floats(0.05, 8.0))
def test_the_lemmas_quoted_from_the_literature_hold(mu, epsilon, order, other) -> None:
    assert check(find("convergent/lemma-3"), mu=mu, epsilon=epsilon).holds
    assert check(find("convergent/lemma-4"), mu=mu, order=order).holds
    assert check(find("convergent/lemma-5"), first=mu, second=other).holds


def test_lemma_6_fails_where_the_norm_is_random() -> None:
    """The shift happens, visibly, with probability 0.01: delta is 0.01 delta_shift, and far in the tail its mu nears the whole shift."""
    verdict = check(find("convergent/lemma-6"), touched=0.01, shift=2.0, clients=1)
    needed = [
        gaussian.mu_from(epsilon, 0.01 * gaussian.delta(2.0, epsilon))
        for epsilon in (1.0, 10.0, 60.0)
    ]
    assert verdict.published == pytest.approx(0.2)
    assert verdict.published < needed[0] < needed[1] < needed[2] < verdict.exact == 2.0


def test_remark_3_2_is_refuted_by_an_integral() -> None:
    verdict = check(find("convergent/remark-3.2"))

    def delta(epsilon: float) -> float:
        """Of 0.99 N(0, 1) + 0.01 N(1, 1) against N(0, 1), from the definition."""
        low = math.log(1 + math.expm1(epsilon) / 0.01) + 0.5
        return quad(
            lambda x: 0.01 * norm.pdf(x, 1) + (0.99 - math.exp(epsilon)) * norm.pdf(x),
            low,
            40,
            epsabs=1e-14,
        )[0]

    assert delta(verdict.published) > 50 * 1e-5  # fifty times the promised delta
    assert delta(verdict.exact) == pytest.approx(1e-5, rel=1e-4)


def test_appendix_f_is_refuted_by_a_general_solver() -> None:
    rho, gamma, rounds, diameter = 1.5, 1.0, 6, 1.0

    def solved(start: int) -> float:
        """min sum x^2 with d <- rho d + gamma - x >= 0, ending in 0, from d = diameter, or 0 if the start is the first round."""
        length = rounds - start

        def distances(x: np.ndarray) -> np.ndarray:
            d, found = (diameter if start else 0.0), []
            for shift in x:
                d = rho * d + gamma - shift
                found.append(d)
            return np.array(found)

        constraints = [
            {"type": "ineq", "fun": distances},
            {"type": "eq", "fun": lambda x: distances(x)[-1]},
        ]
        found = minimize(
            lambda x: x @ x,
            np.full(length, gamma),
            constraints=constraints,
            bounds=[(0, None)] * length,
            tol=1e-12,
        )
        assert found.success
        return float(found.fun)

    optimum = min(solved(start) for start in range(rounds))
    verdict = check(
        find("convergent/appendix-f"), rho=rho, gamma=gamma, rounds=rounds, diameter=diameter
    )
    assert verdict.exact == pytest.approx(optimum, rel=1e-6)
    assert verdict.published < optimum


@some
@given(st.floats(0.1, 1.0), numbers, counts, st.floats(0.1, 50.0))
def test_appendix_f_holds_where_nothing_expands(rho, gamma, rounds, diameter) -> None:
    assert check(
        find("convergent/appendix-f"), rho=rho, gamma=gamma, rounds=rounds, diameter=diameter
    ).holds
