"""Remakes Tables 1 to 3 of prifedsync: the printed mu, the same recomputed, and certified epsilons.

Tables 1 and 2 are MNIST on 100 clients of 600 records, Table 3 CIFAR-10 on 100 clients of 500;
three rows of Table 2 repeat Table 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache

from sordino.papers import certified, prifedsync

# The spacing of privacy losses: fine enough for three decimals of epsilon.
_GRID = 5e-4


@dataclass(frozen=True, kw_only=True)
class PrintedRow:
    """One row as printed; what a table leaves to its caption (batch, steps, records) is filled in.

    Example:
        >>> PRINTED[0].printed_mu
        2.71
    """

    table: int
    probability: float
    sigma: float
    batch: int
    steps: int
    records: int
    rounds: int
    printed_mu: float


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A printed row, recomputed.

    Attributes:
        printed: The row of the paper.
        mu: Theorem 2's central limit, all digits.
        limit_epsilon: The epsilon of that mu at delta.
        certified_epsilon: KR copies of C_{B/n}(G_{1/sigma}), from above.
        participating_epsilon: The same with the client sampling, which the paper leaves unused; for
            the weak and the strong view.
    """

    printed: PrintedRow
    mu: float
    limit_epsilon: float
    certified_epsilon: float
    participating_epsilon: float

    def as_document(self) -> dict[str, float]:
        """Returns the row as one flat JSON object.

        Example:
            >>> list(recompute_row(PRINTED[3]).as_document())[-4:]
            ['mu', 'limit_epsilon', 'certified_epsilon', 'participating_epsilon']
        """
        values = asdict(self)
        return {**values.pop("printed"), **values}


def _make_rows(
    table: int,
    probability: float,
    batch: int,
    steps: int,
    records: int,
    *entries: tuple[float, int, float],
) -> Iterator[PrintedRow]:
    """Yields rows that share all but (sigma, rounds, printed mu)."""
    for sigma, rounds, mu in entries:
        yield PrintedRow(
            table=table,
            probability=probability,
            sigma=sigma,
            batch=batch,
            steps=steps,
            records=records,
            rounds=rounds,
            printed_mu=mu,
        )


# Sigma, rounds and mu as printed; the other numbers of a row are those of its table's caption.
PRINTED: tuple[PrintedRow, ...] = (
    *_make_rows(1, 1.0, 16, 38, 600, (1.0, 93, 2.71), (0.9, 83, 3.10), (0.75, 64, 3.96)),
    *_make_rows(1, 0.5, 16, 38, 600, (1.0, 194, 3.92), (0.9, 176, 4.51), (0.75, 127, 5.58)),
    *_make_rows(1, 0.25, 16, 38, 600, (1.0, 386, 5.52), (0.9, 325, 6.13), (0.75, 245, 7.75)),
    *_make_rows(2, 0.5, 8, 76, 600, (1.0, 266, 3.24), (0.9, 229, 3.64), (0.75, 191, 4.84)),
    *_make_rows(2, 0.5, 16, 38, 600, (1.0, 194, 3.92), (0.9, 176, 4.51), (0.75, 127, 5.58)),
    *_make_rows(3, 1.0, 16, 32, 500, (1.0, 468, 6.70), (0.75, 321, 9.77), (0.5, 207, 26.81)),
    *_make_rows(3, 0.5, 16, 32, 500, (1.0, 904, 9.31), (0.75, 671, 14.13), (0.5, 405, 37.51)),
)


def limit_mu(printed: PrintedRow) -> float:
    """Returns the mu of a row by Theorem 2's central limit.

    Args:
        printed: The row of the paper.

    Example:
        >>> round(limit_mu(PRINTED[0]), 2) == PRINTED[0].printed_mu
        True
    """
    return prifedsync.theorem_2_limit(
        batch=printed.batch,
        records=printed.records,
        steps=printed.steps,
        rounds=printed.rounds,
        sigma=printed.sigma,
    )


def recompute_row(printed: PrintedRow, *, delta: float = 1e-5) -> TableRow:
    """Returns a row with its mu recomputed, and its epsilons.

    Args:
        printed: The row of the paper.
        delta: Where epsilons are read.

    Example:
        >>> row = recompute_row(PRINTED[3])
        >>> round(row.limit_epsilon, 2), round(row.certified_epsilon, 2)
        (23.69, 22.28)
        >>> round(row.participating_epsilon, 2)
        14.52
    """
    from sordino.privacy.curves import gaussian

    mu = limit_mu(printed)
    certified_epsilon, participating_epsilon = _epsilons(
        printed.probability,
        printed.sigma,
        printed.batch,
        printed.steps,
        printed.records,
        printed.rounds,
        delta,
    )
    return TableRow(
        printed=printed,
        mu=mu,
        limit_epsilon=gaussian.epsilon(mu, delta),
        certified_epsilon=certified_epsilon,
        participating_epsilon=participating_epsilon,
    )


def prifedsync_tables(*, delta: float = 1e-5) -> list[TableRow]:
    """Returns all 21 printed rows, recomputed; takes some seconds for each distinct row.

    Args:
        delta: Where epsilons are read.

    Example:
        >>> [row.mu for row in prifedsync_tables()]  # doctest: +SKIP
    """
    return [recompute_row(printed, delta=delta) for printed in PRINTED]


# Three rows of Table 2 repeat Table 1, and each costs seconds.
@cache
def _epsilons(
    probability: float,
    sigma: float,
    batch: int,
    steps: int,
    records: int,
    rounds: int,
    delta: float,
) -> tuple[float, float]:
    """Returns the certified epsilon without and with the participation.

    Rows that the paper prints twice are priced once.
    """
    run = {"batch": batch, "records": records, "steps": steps, "rounds": rounds}
    full = certified.subsampled_epsilon(**run, sigma=sigma, delta=delta, interval=_GRID)
    # Without sampling, both values are one computation.
    if probability == 1:
        return full, full
    sampled = certified.participating_epsilon(
        **run, sigma=sigma, delta=delta, probability=probability, interval=_GRID
    )
    return full, sampled
