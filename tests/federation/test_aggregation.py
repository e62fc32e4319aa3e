"""Mean, mixing, weights and median against exact arithmetic."""

from fractions import Fraction
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.federation.aggregation.joining import project_model, upload_weights
from sordino.federation.aggregation.median import coordinate_median
from sordino.protocol import Mean, Median
from tests.support import aggregate

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
