"""No later round costs more than an earlier one, which caps of clients rest on (docs/theory.md#a36)."""

import numpy as np
import pytest

from sordino.privacy.sensitivity import first_used
from sordino.protocol import Constant, Continuous, Cyclic, Decay, StageWise

ROUNDS = 8


def move_of_rounds(rates: np.ndarray, pull: float) -> np.ndarray:
    return np.asarray(first_used(rates, 1.0, proximal=pull))


@pytest.mark.parametrize(
    "kind", ["constant", "cyclic", "stage-wise", "continuous", "step", "round"]
)
def test_no_upload_of_a_later_round_moves_further_however_strong_the_pull(kind) -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        rate, pull = generator.uniform(0.05, 2.0), generator.uniform(0.1, 6.0)
        factor, steps = generator.uniform(0.3, 0.999), int(generator.integers(1, 7))
        schedule = {
            "constant": Constant(rate=rate),
            "cyclic": Cyclic(rate=rate),
            "stage-wise": StageWise(rate=rate, power=0.5 + 0.5 * factor),
            "continuous": Continuous(rate=rate),
            "step": Decay(rate=rate, factor=factor, every=int(generator.integers(1, 4))),
            "round": Decay(rate=rate, factor=factor, every="round"),
        }[kind]
        rates = np.array([schedule.rates(round=t, steps=steps) for t in range(ROUNDS)])
        moves = move_of_rounds(rates, pull)
        assert np.all(np.diff(moves, axis=0) <= 1e-12 * moves[:-1])


def test_rates_that_rise_within_a_round_would_break_it() -> None:
    """A round of smaller rates that moves further: the schedules have none such."""
    first, second = [2.0, 0.9], [1.9, 0.1]
    moves = move_of_rounds(np.array([first, second]), 1.0)
    assert moves[1, 0] > moves[0, 0]
