"""Which client has which training records. A record belongs to at most one client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sordino.federation.data.dataset import Dataset
from sordino.federation.randomness import Key, Purpose
from sordino.protocol import ByColumn, Data, Dirichlet, InvalidValue, Shards, UserError

Parts = tuple[np.ndarray, ...]  # per client, sorted indices of its training records
LARGEST_BETA = 1e12  # proportions are equal to six digits from here on; far above, sums of gamma draws overflow


def partition(dataset: Dataset, data: Data, clients: int, key: Key) -> Parts:
    """The training records of every client, as sorted indices; the same for the same data, settings and key.

    Args:
        dataset: whose training records are shared out.
        data: the kind of partition and the number of records per client, by default as many as there are for each.
        clients: how many clients share them.
        key: decides every draw.

    Raises:
        UserError: more records asked for than there are, a client without records, a partition that the data do not allow.

    Example:
        >>> from sordino.federation.data import load_dataset
        >>> from sordino.protocol import Data, Dirichlet
        >>> settings = Data(name="digits", partition=Dirichlet(beta=0.1), records=80)
        >>> parts = partition(load_dataset("digits"), settings, 10, Key.from_seed(7))
        >>> len(parts), len(parts[0])
        (10, 80)
    """
    if isinstance(data.partition, ByColumn):
        return _as_many(_by_column(dataset, data.partition.column, clients), data)
    records = _records_each(dataset, data, clients)
    generator = key.stream(Purpose.PARTITION).numpy()
    if isinstance(data.partition, Dirichlet):
        parts = _dirichlet(
            _labels(dataset, "dirichlet"),
            dataset.outputs,
            data.partition.beta,
            clients,
            records,
            generator,
        )
    elif isinstance(data.partition, Shards):
        parts = _shards(
            _labels(dataset, "shards"), data.partition.per_client, clients, data.records, generator
        )
    else:
        parts = list(
            generator.permutation(len(dataset.y_train))[: clients * records].reshape(
                clients, records
            )
        )
    return tuple(np.sort(part).astype(np.int64) for part in parts)


def _records_each(dataset: Dataset, data: Data, clients: int) -> int:
    available = len(dataset.y_train)
    records = available // clients if data.records is None else data.records
    if records == 0:
        raise UserError(
            f"client {available} would have no records: {dataset.name} has {available} for {clients} clients. Use fewer."
        )
    if clients * records > available:
        allowed = f"at most {available // clients}, since {dataset.name} has {available} training records for {clients} clients"
        raise InvalidValue("data.records", records, allowed)
    return records


def _labels(dataset: Dataset, kind: str) -> np.ndarray:
    if dataset.classes is None:
        raise InvalidValue(
            "data.partition",
            kind,
            "iid or by a column, since the answers of a regression are no classes to go by",
        )
    return dataset.y_train


def _dirichlet(
    labels: np.ndarray,
    classes: int,
    beta: float,
    clients: int,
    records: int,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    """Client by client: draw label proportions, then that many of the records of each label that nobody has yet."""
    order = generator.permutation(len(labels))
    pools = [order[labels[order] == label] for label in range(classes)]
    taken, sizes = np.zeros(classes, dtype=np.int64), np.array([len(pool) for pool in pools])
    parts = []
    for _ in range(clients):
        proportions = generator.dirichlet(np.full(classes, min(beta, LARGEST_BETA)))
        counts = _draw_counts(proportions, sizes - taken, records, generator)
        parts.append(
            np.concatenate(
                [
                    pool[start : start + count]
                    for pool, start, count in zip(pools, taken, counts, strict=True)
                ]
            )
        )
        taken += counts
    return parts


def _draw_counts(
    proportions: np.ndarray, left: np.ndarray, records: int, generator: np.random.Generator
) -> np.ndarray:
    """How many records of each label: multinomial, where what a label cannot give is drawn again from those that still can."""
    counts = np.zeros_like(left)
    while (lacking := records - counts.sum()) > 0:
        weights = np.where(counts < left, proportions, 0.0)
        if weights.sum() == 0.0:
            weights = (left - counts).astype(np.float64)
        counts = np.minimum(counts + generator.multinomial(lacking, weights / weights.sum()), left)
    return counts


def _shards(
    labels: np.ndarray,
    per_client: int,
    clients: int,
    records: int | None,
    generator: np.random.Generator,
) -> list[np.ndarray]:
    """Records sorted by label, cut into equal shards at equal distances; each client gets some at random."""
    if records is not None and records % per_client != 0:
        raise InvalidValue(
            "data.records", records, f"a multiple of {per_client}, the shards that make up a client"
        )
    shards = clients * per_client
    size = len(labels) // shards if records is None else records // per_client
    if size == 0:
        allowed = f"at most {len(labels) // clients}, since {clients} clients share {len(labels)} training records"
        raise InvalidValue("data.partition.shards", per_client, allowed)
    starts = np.arange(shards) * len(labels) // shards
    pieces = np.argsort(labels, kind="stable")[starts[:, None] + np.arange(size)]
    return list(pieces[generator.permutation(shards)].reshape(clients, per_client * size))


def _by_column(dataset: Dataset, column: str, clients: int) -> Parts:
    if column not in dataset.columns:
        has = (
            f"has the columns {', '.join(dataset.columns)}"
            if dataset.columns
            else "has no columns to go by"
        )
        advice = (
            "In a .csv only columns of words are to go by, as numbers are inputs: write 3 as h3."
        )
        raise InvalidValue(
            "data.partition.by", column, f"a column of the data; {dataset.name} {has}", advice
        )
    values, owners = np.unique(dataset.columns[column], return_inverse=True)
    if len(values) != clients:
        allowed = f"{len(values)}, one for each value of {column!r} in {dataset.name}"
        raise InvalidValue("federation.clients", clients, allowed)
    return tuple(np.flatnonzero(owners == client) for client in range(clients))


def _as_many(parts: Parts, data: Data) -> Parts:
    """Clients that keep all their records, which are as many as was said: prices count on that."""
    for client, part in enumerate(parts):
        if data.records is not None and len(part) != data.records:
            raise InvalidValue(
                "data.records",
                data.records,
                f"{len(part)}, as many as client {client} has, or no such key",
            )
    return parts


def client_tests(dataset: Dataset, parts: Parts, key: Key, size: int = 200) -> Parts:
    """`size` test records for every client, as sorted indices, with labels as likely as in the client's training records.

    Records of a label repeat within a client only if the test part has too few of them. The answers of a regression are not looked at.

    Raises:
        UserError: a client none of whose labels is in the test part.

    Example:
        >>> from sordino.federation.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> zeros = np.flatnonzero(digits.y_train == 0)
        >>> tests = client_tests(digits, (zeros,), Key.from_seed(7), size=20)
        >>> set(digits.y_test[tests[0]].tolist())
        {0}
    """
    # Step 1: step 0 of client 0 is the stream that the partition itself was drawn from.
    streams = [key.stream(Purpose.PARTITION, client=client, step=1) for client in range(len(parts))]
    generators = [stream.numpy() for stream in streams]
    if dataset.classes is None:
        everything = np.arange(len(dataset.y_test))
        return tuple(_drawn(everything, size, generator) for generator in generators)
    pools = [np.flatnonzero(dataset.y_test == label) for label in range(dataset.outputs)]
    likely = label_counts(dataset, parts) * np.array([len(pool) > 0 for pool in pools])
    untested = np.flatnonzero(~likely.any(axis=1))
    if len(untested) > 0:
        raise UserError(
            f"client {untested[0]} has only labels that the test part of {dataset.name} lacks. Add test records of them."
        )
    tests = []
    for weights, generator in zip(
        likely / likely.sum(axis=1, keepdims=True), generators, strict=True
    ):
        counts = generator.multinomial(size, weights)
        drawn = [
            _drawn(pool, count, generator)
            for pool, count in zip(pools, counts, strict=True)
            if count > 0
        ]
        tests.append(np.sort(np.concatenate(drawn)))
    return tuple(tests)


def _drawn(pool: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    return np.sort(generator.choice(pool, count, replace=count > len(pool)))


def label_counts(dataset: Dataset, parts: Parts) -> np.ndarray:
    """Training records of every client by label, (clients, classes); of a regression, all in one column.

    Example:
        >>> from sordino.federation.data import load_dataset
        >>> label_counts(load_dataset("digits"), (np.arange(5), np.arange(5, 9))).sum(axis=1)
        array([5, 4])
    """
    if dataset.classes is None:
        return np.array([[len(part)] for part in parts], dtype=np.int64)
    return np.stack(
        [np.bincount(dataset.y_train[part], minlength=dataset.outputs) for part in parts]
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Shares:
    """Who has what: how many training records of each label every client has; `classes` is None for a regression.

    Example:
        >>> from sordino.federation.data import load_dataset
        >>> Shares.of(load_dataset("digits"), (np.arange(5), np.arange(5, 9))).counts.shape
        (2, 10)
    """

    counts: np.ndarray
    classes: tuple[str, ...] | None

    @classmethod
    def of(cls, dataset: Dataset, parts: Parts) -> Shares:
        """The shares of a partition."""
        return cls(counts=label_counts(dataset, parts), classes=dataset.classes)
