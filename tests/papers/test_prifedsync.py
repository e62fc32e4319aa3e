"""The claims of prifedsync against enumerated runs, a discretisation from below and the printed tables."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from sordino import certify
from sordino.papers.catalogue import find
from sordino.papers.claims import check
from sordino.papers.measured import federation_of
from sordino.papers.prifedsync_tables import PRINTED, limit_mu, prifedsync_tables
from tests.papers.federations import sampled_runs, total_variation

some = settings(max_examples=40, deadline=None)

# docs/theory.md, part C: certified epsilon at delta = 1e-5, without and with participation, rounded up; table, p, sigma, rounds.
CERTIFIED = {
    (1, 1, 1, 93): (13.878, 13.878), (1, 1, 0.9, 83): (16.158, 16.158), (1, 1, 0.75, 64): (21.018, 21.018),
    (1, 0.5, 1, 194): (22.277, 14.524), (1, 0.5, 0.9, 176): (26.347, 17.139), (1, 0.5, 0.75, 127): (32.896, 21.549),
    (1, 0.25, 1, 386): (35.573, 14.613), (1, 0.25, 0.9, 325): (40.193, 16.495), (1, 0.25, 0.75, 245): (52.028, 21.388),
    (2, 0.5, 1, 266): (17.839, 11.648), (2, 0.5, 0.9, 229): (20.476, 13.348), (2, 0.5, 0.75, 191): (28.652, 18.587),
    (3, 1, 1, 468): (46.258, 46.258), (3, 1, 0.75, 321): (71.447, 71.447), (3, 1, 0.5, 207): (168.746, 168.746),
    (3, 0.5, 1, 904): (75.252, 45.478), (3, 0.5, 0.75, 671): (125.943, 74.830), (3, 0.5, 0.5, 405): (289.416, 170.416),
}  # fmt: skip


@pytest.mark.parametrize(
    ("probability", "rounds", "clients"),
    [(0.5, 2, 2), (0.3, 3, 2), (0.5, 4, 2), (0.1, 2, 3), (0.3, 3, 3)],
)
def test_theorem_1_is_refuted_by_enumerating_all_runs(probability, rounds, clients) -> None:
    laws = [sampled_runs(probability, rounds, clients, upload) for upload in (math.pi, math.e)]
    found = total_variation(*laws)
    strong = check(
        find("prifedsync/theorem-1-strong"), probability=probability, rounds=rounds, clients=clients
    )
    assert strong.exact == pytest.approx(found, rel=1e-12)
    if (rounds, clients) != (3, 3):  # there (m - 1) R copies are more than enough
        assert strong.published < found
    if clients == 2:
        weak = check(
            find("prifedsync/theorem-1"),
            probability=probability,
            rounds=rounds,
            clients=2,
            mixing=0.5,
        )
        assert weak.exact == pytest.approx(found, rel=1e-12)
        assert weak.published < found


@pytest.mark.parametrize(
    ("probability", "rounds", "clients", "mixing"),
    [
        (0.5, 2, 3, 1.0), (0.3, 3, 3, 1.0), (0.6, 4, 3, 1.0), (0.4, 2, 4, 1.0), (0.4, 3, 4, 1.0),
        (0.5, 3, 2, 1.0), (0.3, 3, 3, 0.5), (0.4, 2, 4, 0.9),
    ],
)  # fmt: skip
def test_one_client_learns_through_a_third_one(probability, rounds, clients, mixing) -> None:
    """At eta = 1 every run is enumerated too; with two clients the theorem is true and attained."""
    laws = [
        sampled_runs(probability, rounds, clients, upload, mixing, seen=1)
        for upload in (math.pi, math.e)
    ]
    weak = check(
        find("prifedsync/theorem-1"),
        probability=probability,
        rounds=rounds,
        clients=clients,
        mixing=mixing,
    )
    assert weak.exact == pytest.approx(total_variation(*laws), rel=1e-12)
    assert weak.holds == (mixing == 1 and clients == 2)


def test_equal_models_tell_less_than_their_product() -> None:
    """Definition 3.6: four clients who receive one model have one test of it; four independent models have a better one."""
    verdict = check(find("prifedsync/definition-3.6"))
    generator = np.random.default_rng(3)
    draws = generator.normal(size=(200_000, 4))
    # The best test of independent copies is on their mean; of one model, four times over, on the model.
    copies = (draws.mean(axis=1) + 1.0 > 0.5).mean() - (draws.mean(axis=1) > 0.5).mean()
    shared = (draws[:, 0] + 1.0 > 0.5).mean() - (draws[:, 0] > 0.5).mean()
    assert verdict.published == pytest.approx(copies, abs=0.006)
    assert verdict.exact == pytest.approx(shared, abs=0.006)


def test_theorem_1_already_fails_with_noise_on_the_uploads() -> None:
    """f = G_4, eta = 1/2, two rounds: a test of what i receives tells the data sets apart more often than R copies of g allow."""
    generator, size, shift = np.random.default_rng(5), 400_000, 4.0
    sampled = generator.random((2, 2, size)) < 0.5  # round, client (j, i)
    hit = []
    for mean in (shift, 0.0):
        server, found = np.zeros(size), np.zeros(size, dtype=bool)
        helper_j = np.zeros(size)
        for j_in, i_in in sampled:
            upload = helper_j + mean + generator.normal(size=size)
            count = j_in.astype(int) + i_in
            # What client i contributed itself it knows and subtracts; here that is 0.
            mixed = np.where(
                count > 0, (server + np.where(j_in, upload, 0.0) / np.maximum(count, 1)) / 2, server
            )
            touched = mixed != 0
            weight = np.where(j_in, 0.5 / np.maximum(count, 1), 0.25)
            found |= i_in & touched & (mixed > weight * shift / 2)
            server, helper_j = mixed, np.where(j_in, mixed, helper_j)
        hit.append(found.mean())
    advantage = hit[0] - hit[1]
    assert advantage - 4 * math.sqrt(0.5 / size) > check(find("prifedsync/theorem-1")).published


@some
@given(st.floats(0.0, 1.0), st.integers(1, 200))
def test_theorem_1_fails_exactly_between_the_extremes(probability, rounds) -> None:
    verdict = check(
        find("prifedsync/theorem-1"), probability=probability, rounds=rounds, mixing=0.5
    )
    if rounds == 1 or probability in (0.0, 1.0):
        assert verdict.exact == pytest.approx(verdict.published, abs=1e-12)
    else:
        assert verdict.published <= verdict.exact + 1e-12


@some
@given(st.floats(0.01, 20.0), st.floats(0.0, 1.0), st.integers(2, 100), st.floats(0.01, 1.0))
def test_the_lemmas_of_one_round_hold(mu, probability, clients, mixing) -> None:
    assert check(find("prifedsync/lemma-3.8"), mu=mu, probability=probability).holds
    assert check(find("prifedsync/lemma-3.7"), shift=mu, clients=clients, mixing=mixing).holds
    assert check(find("prifedsync/lemma-b.1"), mu=mu, probability=probability).holds


@some
@given(st.integers(1, 600), st.floats(0.2, 5.0), st.floats(0.0, 3.0))
def test_lemma_d_1_holds_for_one_step(batch, sigma, epsilon) -> None:
    assert check(find("prifedsync/lemma-d.1"), batch=batch, sigma=sigma, epsilon=epsilon).holds


def test_lemma_d_1_is_nearly_attained_where_it_is_seen_who_was_drawn() -> None:
    full = check(find("prifedsync/lemma-d.1"), batch=600, epsilon=1.0)
    # All records are drawn: a Gaussian of mu = 1, whose delta at epsilon = 1 is known.
    assert full.published == pytest.approx(0.1269367375)
    assert full.exact == pytest.approx(full.published, rel=1e-3)


def test_lemma_3_8_by_integration() -> None:
    found = (
        0.25 * quad(lambda x: max(0.0, norm.pdf(x, 1) - norm.pdf(x)), 0.5, 12)[0]
    )  # what is left is the same under both
    assert check(find("prifedsync/lemma-3.8")).exact == pytest.approx(found, rel=1e-9)


def test_lemma_3_7_by_linear_algebra() -> None:
    """Client 1 sees mixing/m times the sum of the uploads of clients 0, 2, 3, 4; client 0's mean moves by the shift."""
    row = np.array([1, 0, 1, 1, 1]) * 0.5 / 5
    covariance = row @ np.eye(5) @ row
    assert check(find("prifedsync/lemma-3.7")).exact == pytest.approx(
        row[0] * 1.0 / math.sqrt(covariance)
    )


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 30), st.integers(1, 20), st.floats(0.6, 2.0), st.floats(0.05, 1.0))
def test_theorem_2_holds(steps, rounds, sigma, probability) -> None:
    verdict = check(
        find("prifedsync/theorem-2"),
        steps=steps,
        rounds=rounds,
        sigma=sigma,
        probability=probability,
    )
    assert verdict.exact <= verdict.published * (1 + 1e-6) + 1e-6


def test_the_limit_is_below_a_bound_from_below() -> None:
    """C_q(G_mu) with every loss rounded down to the grid is more private than it; 38 copies of that already exceed the limit."""
    verdict = check(find("prifedsync/theorem-2-limit"))
    rate, mu, grid, steps = 16 / 600, 1 / 0.75, 1e-3, 38
    edges = np.arange(0, 9000) * grid
    place = (
        np.log1p(np.expm1(edges) / rate) + mu * mu / 2
    ) / mu  # where log(1 - q + q e^(mu x - mu^2/2)) has this value
    null = np.diff(ndtr(place))
    alternative = np.diff((1 - rate) * ndtr(place) + rate * ndtr(place - mu))
    size = null.size
    masses = np.zeros(2 * size + 1)
    masses[:size] = null[::-1]  # the mirror image, losses -n h, ..., -h
    masses[size : 2 * size] = alternative  # losses 0, ..., (n - 1) h
    masses[size] += 1 - masses.sum()  # the atom at loss 0
    length = 1 << (steps * masses.size).bit_length()
    composed = np.fft.irfft(np.fft.rfft(masses, length) ** steps, length)[
        : steps * (masses.size - 1) + 1
    ]
    losses = (np.arange(composed.size) - steps * size) * grid

    def delta(epsilon: float) -> float:
        above = losses > epsilon
        return float(np.dot(composed[above], -np.expm1(epsilon - losses[above])))

    assert delta(verdict.published) > 1e-4  # ten times the promised delta
    assert delta(verdict.exact) <= 1e-5 * (1 + 1e-6)
    assert delta(verdict.exact - 0.1) > 1e-5  # so the certified value is close


def test_all_rows_of_the_tables_have_the_printed_mu() -> None:
    assert len(PRINTED) == 21
    assert (
        len({(row.sigma, row.rounds, row.batch, row.records, row.probability) for row in PRINTED})
        == 18
    )
    for row in PRINTED:
        assert round(limit_mu(row), 2) == row.printed_mu


@pytest.mark.slow
def test_all_rows_have_the_certified_epsilons_of_theory() -> None:
    for row in prifedsync_tables():
        printed = row.printed
        key = (printed.table, printed.probability, printed.sigma, printed.rounds)
        certified = CERTIFIED[key] if key in CERTIFIED else CERTIFIED[(1, *key[1:])]
        found = (row.certified_epsilon, row.participating_epsilon)
        assert tuple(math.ceil(value * 1000) / 1000 for value in found) == pytest.approx(
            certified, abs=1.1e-3
        )
        assert (
            row.participating_epsilon <= row.certified_epsilon < row.limit_epsilon
        )  # in these rows the limit errs upwards
        assert 0.02 < 1 - row.certified_epsilon / row.limit_epsilon < 0.67


def test_the_federation_that_is_measured_is_priced_as_the_claim() -> None:
    limit = check(find("prifedsync/theorem-2-limit"))
    priced = certify(federation_of(limit), "weak").epsilon(1e-5)
    assert priced == pytest.approx(limit.exact, rel=1e-3)
    assert priced > limit.published
    whole = check(find("prifedsync/theorem-2"), rounds=3)
    assert certify(federation_of(whole), "weak").epsilon(1e-5) <= whole.published
