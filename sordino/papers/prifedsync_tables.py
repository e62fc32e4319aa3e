"""Remakes Tables 1 to 3 of prifedsync: the printed mu, the same recomputed, and certified epsilons.

Tables 1 and 2 are MNIST on 100 clients of 600 records, Table 3 CIFAR-10 on 100 clients of 500;
three rows of Table 2 repeat Table 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from sordino.papers import certified, prifedsync

# The spacing of privacy losses: fine enough for three decimals of epsilon.
_GRID = 5e-4


@dataclass(frozen=True, kw_only=True)
class PrintedRow:
    """One row as printed, together with what the table leaves to its caption.

    Attributes:
        table: The number of the table.
        probability: p, the probability that a client takes part.
        sigma: The noise, in units of how far one record moves a step.
        batch: B, the number of records that a step draws.
        steps: K, the local steps of a round.
        records: n, the number of records of a client.
        rounds: R, the number of rounds.
        printed_mu: The mu that the paper prints.

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
        mu: The mu of Theorem 2's central limit.
        limit_epsilon: The epsilon of that mu.
        certified_epsilon: An upper bound on the epsilon of KR copies of C_{B/n}(G_{1/sigma}).
        participating_epsilon: The same with the sampling of clients, which the paper leaves unused;
            for the weak and the strong view.
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
    """Yields rows that differ in (sigma, rounds, printed mu) alone."""
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


# Three rows of Table 2 repeat Table 1, and each costs seconds.
_price_copies = cache(certified.subsampled_epsilon)
_price_participation = cache(certified.participating_epsilon)


def limit_mu(printed: PrintedRow) -> float:
    """Returns the mu of a row by Theorem 2's central limit.

    Args:
        printed: The row of the paper.

    Example:
        >>> round(limit_mu(PRINTED[0]), 2) == PRINTED[0].printed_mu
        True
    """
    return prifedsync.theorem_2_limit(**_setting_of(printed))


def recompute_row(printed: PrintedRow, *, delta: float = 1e-5) -> TableRow:
    """Returns a row with its mu recomputed, and its epsilons.

    Args:
        printed: The row of the paper.
        delta: The delta of the epsilons.

    Example:
        >>> row = recompute_row(PRINTED[3])
        >>> round(row.limit_epsilon, 2), round(row.certified_epsilon, 2)
        (23.69, 22.28)
        >>> round(row.participating_epsilon, 2)
        14.52
    """
    from sordino.privacy.curves import gaussian

    setting = _setting_of(printed)
    mu = limit_mu(printed)
    certified_epsilon = _price_copies(**setting, delta=delta, interval=_GRID)
    participating_epsilon = certified_epsilon
    # Where everyone takes part both values are one computation.
    if printed.probability < 1:
        participating_epsilon = _price_participation(
            **setting, delta=delta, probability=printed.probability, interval=_GRID
        )
    return TableRow(
        printed=printed,
        mu=mu,
        limit_epsilon=gaussian.epsilon(mu, delta),
        certified_epsilon=certified_epsilon,
        participating_epsilon=participating_epsilon,
    )


def prifedsync_tables(*, delta: float = 1e-5) -> list[TableRow]:
    """Returns all 21 printed rows, recomputed, which takes some seconds for each distinct row.

    Args:
        delta: The delta of the epsilons.

    Example:
        >>> [row.mu for row in prifedsync_tables()]  # doctest: +SKIP
    """
    return [recompute_row(printed, delta=delta) for printed in PRINTED]


def _setting_of(printed: PrintedRow) -> dict[str, Any]:
    """Returns a row's parameters of Theorem 2, by name."""
    return {
        "batch": printed.batch,
        "records": printed.records,
        "steps": printed.steps,
        "rounds": printed.rounds,
        "sigma": printed.sigma,
    }
