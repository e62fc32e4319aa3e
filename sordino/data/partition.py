"""Decides which client has which training records. A record belongs to at most one client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.data.dataset import Dataset
from sordino.protocol import ByColumn, Data, Dirichlet, Iid, InvalidValue, Shards, UserError
from sordino.protocol.data_entries import Partition
from sordino.protocol.registry import Registry
from sordino.randomness import Key, Purpose

# For each client the indices of its training records, in ascending order.
Parts = tuple[np.ndarray, ...]
# The largest parameter of a Dirichlet draw that is used. From here on proportions are equal to six
# digits; far above, sums of gamma draws overflow.
LARGEST_BETA = 1e12

# How records are shared out by each kind of partition.
DEALERS: Registry[Callable[[Any, Dataset, Data, int, Key], Parts]] = Registry(
    "way to share out records", "partition", Partition
)


def partition(
    dataset: Dataset,
    data: Data,
    clients: int,
    key: Key,
) -> Parts:
    """Returns the training records of every client.

    The same data, settings and key always give the same partition.

    Args:
        dataset: The data set whose training records are shared out.
        data: The kind of partition, and the number of records of each client; by default as many
            as there are for each.
        clients: How many clients share the records.
        key: Decides every draw.

    Returns:
        For each client, the indices of its records in ascending order.

    Raises:
        UserError: More records are asked for than there are, a client would have none, or the data
            do not allow such a partition.

    Example:
        >>> from sordino.data import load_dataset
        >>> from sordino.protocol import Data, Dirichlet
        >>> settings = Data(name="digits", partition=Dirichlet(beta=0.1), records=80)
        >>> parts = partition(load_dataset("digits"), settings, 10, Key.from_seed(7))
        >>> len(parts), len(parts[0])
        (10, 80)
    """
    return DEALERS.of(data.partition)(data.partition, dataset, data, clients, key)


@DEALERS.register(Iid)
def _deal_evenly(
    kind: Iid,
    dataset: Dataset,
    data: Data,
    clients: int,
    key: Key,
) -> Parts:
    """Returns shuffled records, as many for every client, or as many as a list says."""
    if data.sizes is not None:
        return _deal_sizes(dataset, data.sizes, key)
    records = _count_records(dataset, data, clients)
    # Records are shuffled before they are cut: files are often sorted by label.
    order = _open_generator(key).permutation(len(dataset.y_train))
    return _sort_parts(list(order[: clients * records].reshape(clients, records)))


@DEALERS.register(Dirichlet)
def _deal_by_proportions(
    kind: Dirichlet,
    dataset: Dataset,
    data: Data,
    clients: int,
    key: Key,
) -> Parts:
    """Returns records in proportions of labels that are drawn for each client."""
    if data.sizes is not None:
        return _deal_sizes(dataset, data.sizes, key)
    records = _count_records(dataset, data, clients)
    labels = _require_labels(dataset, "dirichlet")
    generator = _open_generator(key)
    # Shuffled once, so that a client's records of a label are a random sample of them.
    order = generator.permutation(len(labels))
    pools = [order[labels[order] == label] for label in range(dataset.outputs)]
    sizes = np.array([len(pool) for pool in pools])
    taken = np.zeros(len(pools), dtype=np.int64)
    concentrations = np.full(len(pools), min(kind.beta, LARGEST_BETA))
    parts = []
    for _ in range(clients):
        proportions = generator.dirichlet(concentrations)
        counts = _draw_counts(proportions, sizes - taken, records, generator)
        pieces = []
        for pool, start, count in zip(pools, taken, counts, strict=True):
            pieces.append(pool[start : start + count])
        parts.append(np.concatenate(pieces))
        # A record belongs to one client, so what one took is gone for the next.
        taken += counts
    return _sort_parts(parts)


def _draw_counts(
    proportions: np.ndarray,
    left: np.ndarray,
    records: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """Returns how many records of each label a client gets, by a multinomial draw.

    A label may run out: what it cannot give is drawn again from the labels that are left.
    """
    counts = np.zeros_like(left)
    while (lacking := records - counts.sum()) > 0:
        weights = np.where(counts < left, proportions, 0.0)
        # All labels that the client would have are used up, and it takes whatever there is.
        if weights.sum() == 0.0:
            weights = (left - counts).astype(np.float64)
        counts = np.minimum(counts + generator.multinomial(lacking, weights / weights.sum()), left)
    return counts


@DEALERS.register(Shards)
def _deal_shards(
    kind: Shards,
    dataset: Dataset,
    data: Data,
    clients: int,
    key: Key,
) -> Parts:
    """Returns random shards: pieces of equal size of the records in the order of their labels."""
    if data.sizes is not None:
        return _deal_sizes(dataset, data.sizes, key)
    _count_records(dataset, data, clients)
    labels = _require_labels(dataset, "shards")
    generator = _open_generator(key)
    per_client = kind.per_client
    if data.records is not None and data.records % per_client != 0:
        allowed = f"a multiple of {per_client}, the shards that make up a client"
        raise InvalidValue("data.records", data.records, allowed)
    shards = clients * per_client
    size = len(labels) // shards
    if data.records is not None:
        size = data.records // per_client
    if size == 0:
        allowed = (
            f"at most {len(labels) // clients}, since {clients} clients share "
            f"{len(labels)} training records"
        )
        raise InvalidValue("data.partition.shards", per_client, allowed)
    # Shards start at equal distances even if not all records are used, so that all labels occur.
    starts = np.arange(shards) * len(labels) // shards
    # A stable sort, since the order of equal labels is part of every bit of a seeded run.
    pieces = np.argsort(labels, kind="stable")[starts[:, None] + np.arange(size)]
    order = generator.permutation(shards)
    return _sort_parts(list(pieces[order].reshape(clients, per_client * size)))


@DEALERS.register(ByColumn)
def _deal_by_column(
    kind: ByColumn,
    dataset: Dataset,
    data: Data,
    clients: int,
    key: Key,
) -> Parts:
    """Returns the records of each value of a column; nothing is drawn."""
    column = kind.column
    if column not in dataset.columns:
        available = "has no columns to go by"
        if dataset.columns:
            available = f"has the columns {', '.join(dataset.columns)}"
        raise InvalidValue(
            "data.partition.by",
            column,
            f"a column of the data; {dataset.name} {available}",
            "In a .csv only columns of words are to go by, as numbers are inputs: write 3 as h3.",
        )
    values, owners = np.unique(dataset.columns[column], return_inverse=True)
    refuse_blank_owner(dataset.name, column, values, dataset.blanks.get(column))
    if len(values) != clients:
        allowed = f"{len(values)}, one for each value of {column!r} in {dataset.name}"
        raise InvalidValue("federation.clients", clients, allowed)
    parts = tuple(np.flatnonzero(owners == client) for client in range(clients))
    # Nothing is drawn here, so the sizes are the data's and not the protocol's to choose.
    _refuse_other_sizes(parts, data)
    return parts


def refuse_blank_owner(source: str, column: str, values: np.ndarray, place: str | None) -> None:
    """Refuses a column that does not say of every record whose it is.

    Without this, all records without an owner would become one client without a name.

    Args:
        source: The name of the data, for the message.
        column: The column that assigns records to clients.
        values: The values that occur in it.
        place: Where the first gap is, as "line 7"; None where the data have no lines.

    Raises:
        UserError: A value is blank.
    """
    if not any(str(value).strip() == "" for value in values.tolist()):
        return
    where = "in some records" if place is None else f"in {place}"
    raise UserError(
        f"{source}: {column} is missing {where}, so nothing says which client has the record. "
        "Fill it in, or remove the record."
    )


def _refuse_other_sizes(parts: Parts, data: Data) -> None:
    """Refuses parts whose sizes are not those of the protocol, by which prices are computed."""
    sizes = tuple(len(part) for part in parts)
    if data.sizes is not None and data.sizes != sizes:
        allowed = f"{list(sizes)}, as many as clients 0 to {len(sizes) - 1} have"
        raise InvalidValue("data.sizes", list(data.sizes), allowed)
    others = [client for client, size in enumerate(sizes) if size != data.records]
    if data.records is not None and others:
        raise InvalidValue(
            "data.records",
            data.records,
            f"{sizes[others[0]]}, as many as client {others[0]} has; data.sizes = {list(sizes)} "
            "lists unequal numbers",
        )


def _deal_sizes(dataset: Dataset, sizes: tuple[int, ...], key: Key) -> Parts:
    """Returns shuffled records, as many for each client as the list says."""
    available = len(dataset.y_train)
    if sum(sizes) > available:
        allowed = f"at most {available} in all, the training records of {dataset.name}"
        raise InvalidValue("data.sizes", list(sizes), allowed)
    # The same draw as of an even partition: only the cuts differ.
    order = _open_generator(key).permutation(available)
    ends = np.cumsum(sizes)
    return _sort_parts(np.split(order[: ends[-1]], ends[:-1]))


def _count_records(dataset: Dataset, data: Data, clients: int) -> int:
    """Returns how many records each client gets."""
    available = len(dataset.y_train)
    records = data.records
    if records is None:
        records = available // clients
    if records == 0:
        raise UserError(
            f"client {available} would have no records: {dataset.name} has {available} for "
            f"{clients} clients. Use fewer."
        )
    if clients * records > available:
        allowed = (
            f"at most {available // clients}, since {dataset.name} has {available} training "
            f"records for {clients} clients"
        )
        raise InvalidValue("data.records", records, allowed)
    return records


def _require_labels(dataset: Dataset, kind: str) -> np.ndarray:
    """Returns the labels that a partition uses."""
    if dataset.classes is None:
        raise InvalidValue(
            "data.partition",
            kind,
            "iid or by a column, since a regression has no classes to divide by",
        )
    return dataset.y_train


def _open_generator(key: Key) -> np.random.Generator:
    """Returns the generator of the partition."""
    return key.stream(Purpose.PARTITION).numpy_generator()


def _sort_parts(parts: list[np.ndarray]) -> Parts:
    """Returns the indices of each part in ascending order."""
    # Ascending, so that the order of a client's records does not depend on how they were dealt.
    return tuple(np.sort(part).astype(np.int64) for part in parts)


def client_tests(
    dataset: Dataset,
    parts: Parts,
    key: Key,
    size: int = 200,
) -> Parts:
    """Returns test records for every client, with labels as likely as in its training records.

    Records of a label repeat within a client only if the test part has too few of them. The answers
    of a regression are not looked at.

    Args:
        dataset: The data set.
        parts: The training records of every client.
        key: Decides every draw.
        size: How many test records each client gets.

    Returns:
        For each client, indices of test records in ascending order.

    Raises:
        UserError: None of a client's labels is in the test part.

    Example:
        >>> from sordino.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> zeros = np.flatnonzero(digits.y_train == 0)
        >>> tests = client_tests(digits, (zeros,), Key.from_seed(7), size=20)
        >>> set(digits.y_test[tests[0]].tolist())
        {0}
    """
    labels = dataset.y_test
    if dataset.classes is None:
        # All quantities count as one label.
        labels = np.zeros(len(dataset.y_test), dtype=np.int64)
    tests = draw_client_tests(label_counts(dataset, parts), labels, key, size)
    untested = [client for client, rows in enumerate(tests) if len(rows) == 0]
    if untested:
        raise UserError(
            f"client {untested[0]} has only labels that the test part of {dataset.name} lacks. "
            "Add test records of them."
        )
    return tests


def draw_client_tests(counts: np.ndarray, labels: np.ndarray, key: Key, size: int = 200) -> Parts:
    """Returns test records for every client, with labels as likely as its counts say.

    Args:
        counts: How many training records of each label every client has, a row per client.
        labels: The label of every test record.
        key: Decides every draw.
        size: How many test records each client gets.

    Returns:
        For each client, indices of test records in ascending order; none for a client whose labels
        no test record has.

    Example:
        >>> counts = np.array([[5, 0], [0, 5]])
        >>> first, second = draw_client_tests(counts, np.array([0, 1, 1]), Key.from_seed(7), size=2)
        >>> first.tolist(), second.tolist()
        ([0, 0], [1, 2])
    """
    pools = [np.flatnonzero(labels == label) for label in range(counts.shape[1])]
    # A label without test records is left out, and the others keep their proportions.
    likely = counts * np.array([len(pool) > 0 for pool in pools])
    tests = []
    for client, weights in enumerate(likely):
        # Step 1: step 0 of client 0 is the stream that the partition itself was drawn from.
        generator = key.stream(Purpose.PARTITION, client=client, step=1).numpy_generator()
        tests.append(_draw_tests(weights, pools, size, generator))
    return tuple(tests)


def _draw_tests(
    weights: np.ndarray, pools: list[np.ndarray], size: int, generator: np.random.Generator
) -> np.ndarray:
    """Returns one client's test records in ascending order, none where all weights are zero."""
    if not weights.any():
        return np.empty(0, dtype=np.int64)
    if len(pools) == 1:
        # A regression draws no labels.
        return _draw_records(pools[0], size, generator)
    chosen = []
    for pool, count in zip(
        pools, generator.multinomial(size, weights / weights.sum()), strict=True
    ):
        if count > 0:
            chosen.append(_draw_records(pool, count, generator))
    return np.sort(np.concatenate(chosen))


def _draw_records(pool: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Returns records of a pool in ascending order, repeated only where there are too few."""
    # A client that has mostly one label may need more test records of it than there are.
    return np.sort(generator.choice(pool, count, replace=count > len(pool)))


def label_counts(dataset: Dataset, parts: Parts) -> np.ndarray:
    """Returns how many training records of each label every client has.

    Args:
        dataset: The data set.
        parts: The training records of every client.

    Returns:
        A table of shape (clients, classes); for a regression, all in one column.

    Example:
        >>> from sordino.data import load_dataset
        >>> label_counts(load_dataset("digits"), (np.arange(5), np.arange(5, 9))).sum(axis=1)
        array([5, 4])
    """
    if dataset.classes is None:
        return np.array([[len(part)] for part in parts], dtype=np.int64)
    counts = [np.bincount(dataset.y_train[part], minlength=dataset.outputs) for part in parts]
    return np.stack(counts)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelShares:
    """How many training records of each label every client has.

    Attributes:
        counts: A table of shape (clients, classes).
        classes: The names of the classes; None for a regression.

    Example:
        >>> from sordino.data import load_dataset
        >>> LabelShares.of(load_dataset("digits"), (np.arange(5), np.arange(5, 9))).counts.shape
        (2, 10)
    """

    counts: np.ndarray
    classes: tuple[str, ...] | None

    @classmethod
    def of(cls, dataset: Dataset, parts: Parts) -> LabelShares:
        """Returns the shares of a partition.

        Args:
            dataset: The data set.
            parts: The training records of every client.
        """
        return cls(counts=label_counts(dataset, parts), classes=dataset.classes)
