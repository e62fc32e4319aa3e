"""A record belongs to at most one client, whatever the partition; and each partition does what its name says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.data import Dataset, client_tests, label_counts, load_dataset, partition
from sordino.protocol import ByColumn, Data, Dirichlet, Iid, Shards, UserError
from sordino.randomness import Key
from tests.data.making import labelled, regression

KEY = Key.from_seed(3)
TEN = labelled(np.arange(6000) % 10, 10)


def shared(
    dataset: Dataset, kind: object, clients: int, records: int | None = None, key: Key = KEY
) -> tuple[np.ndarray, ...]:
    return partition(dataset, Data(name="made", partition=kind, records=records), clients, key)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Dataset, object, int, int | None]:
    """Any labels, also with empty classes; any partition; anything from one record to all there are."""
    classes = draw(st.integers(2, 6))
    labels = np.array(draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=60)))
    farms = np.array(draw(st.lists(st.integers(0, 3), min_size=len(labels), max_size=len(labels))))
    kind = draw(st.sampled_from(["iid", "dirichlet", "shards", "by"]))
    dataset = labelled(labels, classes, {"farm": farms})
    if kind == "by":
        return dataset, ByColumn(column="farm"), len(set(farms.tolist())), None
    clients = draw(st.integers(1, len(labels)))
    if kind == "shards":
        per_client = draw(st.integers(1, len(labels) // clients))
        size = draw(st.none() | st.integers(1, len(labels) // (clients * per_client)))
        return (
            dataset,
            Shards(per_client=per_client),
            clients,
            None if size is None else size * per_client,
        )
    records = draw(st.none() | st.integers(1, len(labels) // clients))
    beta = draw(st.floats(1e-60, 1e60))
    return dataset, Iid() if kind == "iid" else Dirichlet(beta=beta), clients, records


@settings(max_examples=300, deadline=None)
@given(situations(), st.integers(0, 2**32))
def test_a_record_belongs_to_at_most_one_client(
    situation: tuple[Dataset, object, int, int | None], seed: int
) -> None:
    dataset, kind, clients, records = situation
    parts = shared(dataset, kind, clients, records, Key.from_seed(seed))
    everything = np.concatenate(parts)
    assert len(parts) == clients
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < len(dataset.y_train)
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()
        assert len(part) >= 1
    if records is not None:
        assert {len(part) for part in parts} == {records}
    if isinstance(kind, ByColumn):
        assert len(everything) == len(dataset.y_train)
    again = shared(dataset, kind, clients, records, Key.from_seed(seed))
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@pytest.mark.parametrize("kind", [Iid(), Dirichlet(beta=0.5), Shards(per_client=2)])
def test_another_key_shares_out_otherwise(kind: object) -> None:
    one, other = shared(TEN, kind, 20, None), shared(TEN, kind, 20, None, Key.from_seed(4))
    assert not np.array_equal(one[0], other[0])


def test_iid_clients_look_like_the_whole() -> None:
    counts = label_counts(TEN, shared(TEN, Iid(), 6))
    assert counts.sum() == 6000
    # 99.99 % of a chi-square with 45 degrees of freedom; a partition in the order of the labels is far outside.
    assert ((counts - 100) ** 2 / 100).sum() < 95


def effective_labels(beta: float) -> np.ndarray:
    """Per client exp(entropy) of its labels: 1 if it has one label only, 10 if it has all equally."""
    shares = label_counts(TEN, shared(TEN, Dirichlet(beta=beta), clients=60, records=50)) / 50
    return np.exp(-np.sum(shares * np.log(np.where(shares > 0, shares, 1)), axis=1))


def test_small_beta_concentrates_and_large_beta_evens_out() -> None:
    tiny, small, one, large = (effective_labels(beta).mean() for beta in (1e-3, 0.1, 1.0, 1e4))
    assert tiny < 1.2
    assert tiny < small < one < large
    assert large > 8.5  # 50 draws from ten equal labels


def test_dirichlet_shares_have_the_variance_of_the_distribution() -> None:
    """Var of a share of n draws: (1/C)(1 - 1/C) (1 + (n - 1) / (1 + C beta)) / n; first clients only, before labels run out."""
    classes, beta, records = 10, 0.4, 20
    shares = [
        label_counts(TEN, shared(TEN, Dirichlet(beta=beta), 5, records, Key.from_seed(seed)))
        / records
        for seed in range(200)
    ]
    measured = np.concatenate(shares).var()
    intra = 1 / (1 + classes * beta)
    expected = 0.1 * 0.9 * (1 + (records - 1) * intra) / records
    assert measured == pytest.approx(expected, rel=0.07)
    assert measured != pytest.approx(
        0.1 * 0.9 * (1 + (records - 1) / (1 + classes * 0.5)) / records, rel=0.07
    )
    assert measured != pytest.approx(
        0.1 * 0.9 * (1 + (records - 1) / (1 + classes * 0.3)) / records, rel=0.07
    )


def test_dirichlet_uses_up_every_record_when_asked_to() -> None:
    parts = shared(TEN, Dirichlet(beta=0.05), 60, 100)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(6000))


def test_shards_give_few_labels_and_span_all_of_them() -> None:
    counts = label_counts(TEN, shared(TEN, Shards(per_client=2), 30))
    assert (counts.sum(axis=1) == 200).all()
    assert ((counts > 0).sum(axis=1) <= 2).all()
    few = label_counts(TEN, shared(TEN, Shards(per_client=2), 30, 10))
    assert (few.sum(axis=1) == 10).all()
    assert (few.sum(axis=0) > 0).all()


def test_by_column_follows_the_sorted_values() -> None:
    farms = np.array(["south", "north", "south", "east"])
    parts = shared(labelled(np.zeros(4), 2, {"farm": farms}), ByColumn(column="farm"), 3)
    assert [part.tolist() for part in parts] == [[3], [1], [0, 2]]


def test_by_column_holds_clients_to_the_number_that_was_said() -> None:
    even = labelled(np.zeros(4), 2, {"farm": np.array(["a", "b", "a", "b"])})
    assert [part.tolist() for part in shared(even, ByColumn(column="farm"), 2, 2)] == [
        [0, 2],
        [1, 3],
    ]


FARMS = labelled(np.zeros(5), 2, {"farm": np.array(["a", "b", "a", "b", "a"])})


@pytest.mark.parametrize(
    ("dataset", "kind", "clients", "records", "message"),
    [
        (
            TEN,
            Iid(),
            60,
            101,
            "data.records = 101: expected at most 100, since made has 6000 training records for 60 clients",
        ),
        (TEN, Dirichlet(beta=1), 60, 101, "expected at most 100"),
        (TEN, Shards(per_client=2), 60, 102, "expected at most 100"),
        (TEN, Iid(), 6001, None, "client 6000 would have no records"),
        (TEN, Shards(per_client=3), 60, 100, "a multiple of 3"),
        (
            TEN,
            Shards(per_client=101),
            60,
            None,
            "data.partition.shards = 101: expected at most 100",
        ),
        (
            TEN,
            ByColumn(column="farm"),
            3,
            None,
            "'farm': expected a column of the data; made has no columns to go by",
        ),
        (
            labelled(np.zeros(4), 2, {"farm": np.arange(4)}),
            ByColumn(column="ward"),
            3,
            None,
            "has the columns farm",
        ),
        (
            labelled(np.zeros(4), 2, {"farm": np.arange(4)}),
            ByColumn(column="farm"),
            3,
            None,
            "federation.clients = 3: expected 4, one for",
        ),
        (
            labelled(np.zeros(4), 2, {"farm": np.array(["a", "", "b", "a"])}),
            ByColumn(column="farm"),
            3,
            None,
            "made: farm is missing in some records, so nothing says which client has",
        ),
        (
            FARMS,
            ByColumn(column="farm"),
            2,
            3,
            "data.records = 3: expected 2, as many as client 1 has",
        ),
        (regression(20), Dirichlet(beta=1), 2, None, "a regression has no classes to divide by"),
        (regression(20), Shards(per_client=1), 2, None, "a regression has no classes to divide by"),
    ],
)
def test_what_cannot_be_is_refused(
    dataset: Dataset, kind: object, clients: int, records: int | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        shared(dataset, kind, clients, records)


def test_regression_can_be_shared_out_at_random() -> None:
    parts = shared(regression(20), Iid(), 3)
    assert label_counts(regression(20), parts).tolist() == [[6], [6], [6]]
    tests = client_tests(regression(20), parts, KEY, size=7)
    assert [len(np.unique(test)) for test in tests] == [7, 7, 7]
    assert not np.array_equal(tests[0], tests[1])


def test_clients_are_tested_on_their_own_labels() -> None:
    mine, yours = np.flatnonzero(TEN.y_train == 2), np.flatnonzero(np.isin(TEN.y_train, (4, 5, 6)))
    first, second = client_tests(TEN, (mine, yours), KEY, size=25)
    assert set(TEN.y_test[first]) == {2}
    assert len(np.unique(first)) == 25  # the test part has 30 of label 2: none is repeated
    assert set(TEN.y_test[second]) <= {4, 5, 6}
    many = client_tests(TEN, (mine,), KEY, size=200)[0]
    assert (len(many), len(np.unique(many))) == (200, 30)


def test_test_labels_are_as_likely_as_training_labels() -> None:
    part = np.concatenate(
        [np.flatnonzero(TEN.y_train == 0)[:300], np.flatnonzero(TEN.y_train == 1)[:100]]
    )
    drawn = [
        (TEN.y_test[client_tests(TEN, (part,), Key.from_seed(seed), size=20)[0]] == 0).mean()
        for seed in range(200)
    ]
    assert np.mean(drawn) == pytest.approx(0.75, abs=0.03)


def test_a_label_without_test_records() -> None:
    lacking = labelled(np.repeat([0, 1], 10), 2)
    keep = lacking.y_test == 0
    lacking = Dataset(
        name="made", x_train=lacking.x_train, y_train=lacking.y_train, x_test=lacking.x_test[keep], y_test=lacking.y_test[keep],
        classes=lacking.classes,
    )  # fmt: skip
    assert set(lacking.y_test[client_tests(lacking, (np.arange(20),), KEY, size=9)[0]]) == {0}
    with pytest.raises(
        UserError, match="client 1 has only labels that the test part of made lacks"
    ):
        client_tests(lacking, (np.arange(10), np.arange(10, 20)), KEY)


def test_partitions_stay_as_they_are() -> None:
    """Changing these numbers changes every seeded run."""
    digits = load_dataset("digits")
    assert shared(digits, Iid(), 10)[0][:5].tolist() == [33, 36, 44, 48, 52]
    assert shared(digits, Dirichlet(beta=0.1), 10, 80)[9][:5].tolist() == [24, 32, 67, 77, 80]
    assert shared(digits, Shards(per_client=2), 10)[0][:5].tolist() == [5, 13, 21, 43, 44]
