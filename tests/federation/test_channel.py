"""The shuffler: nothing but the multiset arrives."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sordino import Laplace, Median, train
from sordino.federation.channels.delivery import open_channel
from sordino.federation.channels.shuffler import shuffled_order
from sordino.protocol import Direct, Shuffler
from sordino.randomness import Key, Purpose
from tests.support import toy_dataset, toy_protocol


def test_every_order_is_equally_likely_and_every_round_has_its_own() -> None:
    key = Key.from_seed(4)
    orders = Counter(
        tuple(shuffled_order(4, key.stream(Purpose.SHUFFLER, round_index=t)).tolist())
        for t in range(12_000)
    )
    assert len(orders) == 24
    assert stats.chisquare(list(orders.values())).pvalue > 1e-4


def delivered(kind, vectors, stream) -> list[np.ndarray]:
    channel = open_channel(kind, stream)
    arrived = [one for vector in vectors for one in channel.carry(vector)]
    return arrived + list(channel.finish())


def test_vectors_arrive_without_names_once_each() -> None:
    vectors = [np.array([float(n), -float(n)]) for n in range(50)]
    stream = Key.from_seed(1).stream(Purpose.SHUFFLER)
    arrived = delivered(Shuffler(), iter(vectors), stream)
    assert all(type(one) is np.ndarray for one in arrived)
    assert sorted(one[0] for one in arrived) == list(range(50))
    assert [one[0] for one in arrived] != list(range(50))
    assert [one[0] for one in delivered(Direct(), iter(vectors), stream)] == list(range(50))
    assert delivered(Shuffler(), iter([]), stream) == []


@pytest.mark.parametrize("changes", [{}, {"aggregation": Median()}, {"noise": Laplace(scale=0.01)}])
def test_a_shuffled_training_ends_with_the_model_of_a_direct_one(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    data = toy_dataset()
    ends = []
    for channel in ("direct", "shuffler"):
        run = train(
            toy_protocol(channel=channel, **changes),
            data=data,
            model="logistic",
            folder=tmp_path / channel,
            workers=1,
        )
        ends.append(np.concatenate([value.numpy().ravel() for value in (run.state or {}).values()]))
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-6)
