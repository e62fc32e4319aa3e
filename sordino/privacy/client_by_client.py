"""Unequal clients, each priced by itself: a large client has a large share in the mean and many records to hide one among (THEORY A14).

The bound of a federation is that of its worst client, and no client has both the largest share and the fewest records. Clients of similar
size are priced together, as one that has the largest share and the fewest records among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sordino.privacy.curves import Curve, GaussianCurve

if TYPE_CHECKING:
    from sordino.privacy.certify import Bound

KINDS = 8  # groups of clients that are told apart; more would only add time


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """A kind of client that is attacked.

    Attributes:
        share: its largest share in the mean.
        visible: the largest share over the norm of all honest shares, its own included.
        records: its fewest records.
    """

    share: float
    visible: float
    records: int


def kinds_of_clients(sizes: Sequence[int], shares: np.ndarray, colluders: int) -> list[Attacked]:
    """Returns the kinds of clients of a federation in which everyone takes part, from the smallest to the largest.

    Args:
        sizes: number of records of every client.
        shares: share of every client in the mean.
        colluders: clients whose noise the adversary knows; at worst those with the largest shares.

    Example:
        >>> sizes = [100, 100, 400]
        >>> [(kind.records, round(kind.visible, 3)) for kind in kinds_of_clients(sizes, np.array(sizes) / 600, 0)]
        [(100, 0.236), (400, 0.943)]
    """
    records = np.asarray(sizes)
    visible = shares / np.sqrt(honest_squares(shares, colluders))
    distinct = np.unique(records)
    if len(distinct) > KINDS:
        edges = np.geomspace(distinct[0], distinct[-1], KINDS + 1)[1:-1]
        groups = np.searchsorted(edges, records, side="right")
    else:
        groups = np.searchsorted(distinct, records)
    found = []
    for group in np.unique(groups):
        members = groups == group
        kind = Attacked(
            share=float(shares[members].max()),
            visible=float(visible[members].max()),
            records=int(records[members].min()),
        )
        found.append(kind)
    return found


def honest_squares(shares: np.ndarray, colluders: int) -> np.ndarray:
    """Returns, for every client as the attacked one, the sum of the squared shares of who is honest, itself included.

    Example:
        >>> honest_squares(np.array([1.0, 2.0, 3.0]), 1).tolist()
        [5.0, 5.0, 10.0]
    """
    squares = np.square(shares)
    largest_first = np.argsort(-squares, kind="stable")
    ordered = squares[largest_first]
    rank = np.empty(len(squares), dtype=np.int64)
    rank[largest_first] = np.arange(len(squares))
    # A client among the largest does not collude against itself: the next one takes its place.
    top = float(ordered[:colluders].sum())
    following = float(ordered[: colluders + 1].sum())
    gone = np.where(rank < colluders, following - squares, top)
    return squares.sum() - gone


def worst_curve(curves: Sequence[Curve]) -> Curve:
    """Returns the worst of several curves, at every epsilon and delta.

    Example:
        >>> worst_curve([GaussianCurve(mu=1.0), GaussianCurve(mu=2.0)]).mu
        2.0
    """
    if len(curves) == 1:
        return curves[0]
    mus = [curve.mu for curve in curves if isinstance(curve, GaussianCurve)]
    if len(mus) == len(curves):
        return GaussianCurve(mu=max(mus))
    from sordino.privacy.harmonizer import WorstCurve

    return WorstCurve(curves=tuple(curves))


def joined(found: Sequence[Sequence[Bound]]) -> Iterator[Bound]:
    """Returns the bounds of a federation from those of its kinds of clients, a method at a time.

    A kind for which a method brings nothing has its first bound in the place.
    """
    methods = dict.fromkeys(bound.method for bounds in found for bound in bounds)
    for method in methods:
        chosen = []
        for bounds in found:
            same = [bound for bound in bounds if bound.method == method]
            chosen.append(same[0] if same else bounds[0])
        worst = max(chosen, key=lambda bound: bound.curve.epsilon(1e-5))
        line = f"Clients differ in size, and each is priced by itself ({len(found)} kinds); the worst one counts (THEORY A14)."
        vouched = tuple(dict.fromkeys(text for bound in chosen for text in bound.vouched))
        yield replace(
            worst,
            curve=worst_curve([bound.curve for bound in chosen]),
            method=method,
            lines=(*worst.lines, line),
            vouched=vouched,
        )
