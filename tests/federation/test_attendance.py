"""Who takes part: laws of the draws, independence of rounds, empty rounds that stay empty."""

import numpy as np
import pytest
from scipy import stats

from sordino.federation.attendance import Attendance, draw_participants
from sordino.privacy.ledger_lines import Opened
from sordino.protocol import Constant, Everyone, FedAvg, FixedSize, Gaussian, Poisson, Protocol
from sordino.randomness import Key

KEY = Key.from_seed(3)


def protocol(participation, clients: int = 10) -> Protocol:
    local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.1))
    return Protocol(
        clients=clients,
        rounds=1,
        local=local,
        noise=Gaussian(sigma=1.0),
        participation=participation,
    )


def draws(participation, rounds: int) -> list[np.ndarray]:
    return [
        draw_participants(protocol(participation), round_index=t, key=KEY) for t in range(rounds)
    ]


@pytest.mark.parametrize("rule", [Everyone(), Poisson(rate=1.0), FixedSize(size=10)])
def test_everyone_means_everyone(rule) -> None:
    for drawn in draws(rule, 3):
        assert drawn.tolist() == list(range(10))


def test_poisson_sampling_is_independent_with_its_rate_and_empty_rounds_occur() -> None:
    taken = np.array([[c in drawn for c in range(10)] for drawn in draws(Poisson(rate=0.2), 4000)])
    for client in range(10):
        assert stats.binomtest(int(taken[:, client].sum()), 4000, 0.2).pvalue > 1e-6
    sizes = np.bincount(taken.sum(axis=1), minlength=11)
    expected = 4000 * stats.binom.pmf(np.arange(11), 10, 0.2)
    assert (
        stats.chisquare(
            np.append(sizes[:6], sizes[6:].sum()), np.append(expected[:6], expected[6:].sum())
        ).pvalue
        > 1e-6
    )
    assert sizes[0] > 300  # 0.8^10 = 0.107: redrawing would leave none
    assert np.abs(np.corrcoef(taken[:-1, 0], taken[1:, 0])[0, 1]) < 0.08


def test_fixed_size_draws_distinct_clients_each_equally_often() -> None:
    drawn = draws(FixedSize(size=3), 4000)
    assert all(len(d) == 3 and len(set(d.tolist())) == 3 and (np.diff(d) > 0).all() for d in drawn)
    assert stats.chisquare(np.bincount(np.concatenate(drawn), minlength=10)).pvalue > 1e-6


def test_a_draw_depends_on_seed_and_round_alone() -> None:
    rule = Poisson(rate=0.5)
    assert np.array_equal(
        draw_participants(protocol(rule), round_index=5, key=KEY),
        draw_participants(protocol(rule), round_index=5, key=Key.from_seed(3)),
    )
    different = [
        draw_participants(protocol(rule), round_index=t, key=Key.from_seed(s)).tolist()
        for t in range(5)
        for s in range(5)
    ]
    assert len({tuple(d) for d in different}) > 15


def test_a_round_that_can_be_repeated_counts_once_and_with_fresh_noise_every_time() -> None:
    for noise, admitted in (("seeded", [[3], [3], [3], []]), ("fresh", [[3], [], [], []])):
        attendance = Attendance(
            {3: 1}, [Opened(protocol="x", generator="y", noise=noise)], next_round=0
        )
        drawn = np.array([[False, False, False, True]])
        assert [
            np.flatnonzero(attendance.admit(drawn, round_index=t)).tolist() for t in (0, 0, 0, 1)
        ] == admitted
