"""The four schedules against the printed formulas, in exact fractions."""

from fractions import Fraction

import pytest

from sordino.protocol import Constant, Continuous, Cyclic, StageWise

FORMULAS = {
    Constant: lambda t, k, K: Fraction(1),
    Cyclic: lambda t, k, K: Fraction(1, k + 1),
    StageWise: lambda t, k, K: Fraction(1, t + 1),
    Continuous: lambda t, k, K: Fraction(1, t * K + k + 1),
}


@pytest.mark.parametrize("kind", FORMULAS)
def test_rates_follow_the_formula_in_every_round_and_step(kind) -> None:
    steps = 7
    for t in (0, 1, 5, 600):
        expected = [float(Fraction("0.1") * FORMULAS[kind](t, k, steps)) for k in range(steps)]
        assert kind(rate=0.1).rates(round=t, steps=steps) == pytest.approx(expected, rel=1e-15)


def test_the_four_schedules_differ_from_one_another() -> None:
    seen = {kind(rate=0.3).rates(round=2, steps=3) for kind in FORMULAS}
    assert len(seen) == 4
