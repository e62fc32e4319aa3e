"""Mean, mixing, weights and median against exact arithmetic."""

from dataclasses import replace
from fractions import Fraction
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino import ClientBudget, Constant, Gaussian, NoisySgd, UserError, train
from sordino.federation.aggregation.joining import project_model, upload_weights, weigh_clients
from sordino.federation.aggregation.median import coordinate_median
from sordino.federation.setup import prepare
from sordino.federation.store.upload_archive import read_round
from sordino.protocol import Mean, Median
from tests.support import aggregate, toy_dataset, toy_protocol

numbers = st.floats(-1e3, 1e3, width=32)


@given(
    st.lists(st.tuples(numbers, numbers, st.integers(1, 500)), min_size=1, max_size=9),
    st.sampled_from([1.0, 0.5, 0.1]),
)
def test_the_mean_is_the_weighted_mean_in_exact_arithmetic(rows, mixing) -> None:
    uploads = [np.array(row[:2], dtype=np.float32) for row in rows]
    current = np.array([1.5, -2.0], dtype=np.float32)
    sizes = np.array([row[2] for row in rows])
    for rule in (Mean(mixing=mixing), Mean(mixing=mixing, weights="records")):
        shares = [
            Fraction(size) if rule.weights == "records" else Fraction(1) for size in sizes.tolist()
        ]
        out = aggregate(rule, current, uploads, upload_weights(rule, sizes))
        for i in range(2):
            mean = sum(
                s * Fraction(float(u[i])) for s, u in zip(shares, uploads, strict=True)
            ) / sum(shares)
            exact = (1 - Fraction(mixing)) * Fraction(float(current[i])) + Fraction(mixing) * mean
            assert out[i] == pytest.approx(float(exact), rel=1e-6, abs=1e-4)
        assert out.dtype == np.float32


def own_noise(**changes):
    """A federation of three clients whose noise is 1, 10 and 10 on a sum."""
    clients = tuple(
        ClientBudget(id=client, epsilon=50.0, mechanism="gaussian", noise=multiplier)
        for client, multiplier in enumerate((1.0, 10.0, 10.0))
    )
    local = NoisySgd(steps=1, batch=6, clip=1.0, schedule=Constant(rate=1.0), sampling="poisson")
    settings = {"clients": 3, "rounds": 1, "local": local, "noise": Gaussian(multiplier=1.0)}
    return toy_protocol(client=clients, aggregation=Mean(weights="noise"), **settings, **changes)


def test_by_noise_the_loud_hardly_count(tmp_path) -> None:
    protocol = own_noise()
    setup = prepare(protocol, data=toy_dataset(), model="logistic")
    assert weigh_clients(setup).tolist() == pytest.approx([1.0, 0.01, 0.01], rel=1e-12)
    run = train(
        protocol, data=toy_dataset(), model="logistic", folder=tmp_path, workers=1, keep_uploads=1
    )
    uploads = read_round(tmp_path, 0).uploads.astype(np.float64)
    state = run.state or {}
    joined = np.concatenate([state[name].numpy().ravel() for name in ("1.weight", "1.bias")])
    assert joined == pytest.approx((100 * uploads[0] + uploads[1] + uploads[2]) / 102, abs=1e-5)
    # The noise of independent clients then is no larger than the quietest one's.
    noise = np.random.default_rng(1).standard_normal((3, 4000)) * [[1.0], [10.0], [10.0]]
    mean = aggregate(Mean(weights="noise"), np.zeros(4000), list(noise), weigh_clients(setup))
    assert 0.93 < mean.std() < 1.01
    assert aggregate(Mean(), np.zeros(4000), list(noise), np.ones(3)).std() > 4


def test_weights_by_noise_are_the_same_for_all_data() -> None:
    weights = []
    for seed in (1, 2):
        data = toy_dataset(seed=seed)
        weights.append(weigh_clients(prepare(own_noise(), data=data, model="logistic")))
    assert np.array_equal(*weights)


def test_weights_by_noise_are_refused_where_a_client_has_none() -> None:
    protocol = own_noise()
    last = ClientBudget(id=2, epsilon=50.0)
    clients = (*protocol.client[:2], last)
    quiet = replace(protocol, noise=Gaussian(multiplier=0.0), client=clients)
    setup = prepare(quiet, data=toy_dataset(), model="logistic")
    with pytest.raises(UserError, match="client 2 has none"):
        weigh_clients(setup)
    with pytest.raises(UserError, match="fixed"):
        Mean(weights="noise", denominator="fixed")


def test_many_small_uploads_do_not_drown_in_a_large_one() -> None:
    uploads = [np.array([1e8], dtype=np.float32)] + [np.array([1.0], dtype=np.float32)] * 999
    out = aggregate(Mean(), np.zeros(1, np.float32), uploads, np.ones(1000))
    assert out[0] == pytest.approx((1e8 + 999) / 1000, rel=1e-7)


@given(st.lists(st.lists(numbers, min_size=5, max_size=5), min_size=1, max_size=8))
def test_the_median_is_taken_coordinate_by_coordinate(rows) -> None:
    uploads = [np.array(row, dtype=np.float32) for row in rows]
    out = aggregate(Median(), np.zeros(5, np.float32), uploads, np.ones(len(rows)))
    expected = [median(row[i] for row in rows) for i in range(5)]
    assert out.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert np.array_equal(
        coordinate_median(uploads, block=2), coordinate_median(uploads, block=100)
    )


@pytest.mark.parametrize("rule", [Mean(), Mean(mixing=0.5), Median()])
def test_an_empty_round_leaves_the_model_as_it_is(rule) -> None:
    current = np.array([1.0, 2.0], dtype=np.float32)
    assert aggregate(rule, current, [], np.empty(0)) is current


def test_a_missing_upload_is_noticed() -> None:
    with pytest.raises(ValueError, match="1 uploads came, and 2 were announced"):
        aggregate(Mean(), np.zeros(1, np.float32), [np.zeros(1)], np.ones(2))


@pytest.mark.parametrize("diameter", [1.0, 1e-3, 1e-6, 1e-9])
def test_a_projected_model_is_in_the_ball_after_rounding_too(diameter) -> None:
    generator = np.random.default_rng(4)
    centre = generator.normal(size=2000).astype(np.float32)
    found = project_model(centre + generator.normal(size=2000).astype(np.float32), centre, diameter)
    assert np.linalg.norm(found.astype(np.float64) - centre) <= diameter / 2
