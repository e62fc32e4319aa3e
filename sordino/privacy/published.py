"""Which metrics of a run may be published with its guarantee, and which must be withheld.

A guarantee about the last model says nothing about the models before it, nor about their scores. A
guarantee that counts on a hidden draw of clients is void for a reader who learns the draw.
Both are left out of everything that is made to be passed on: the report, metrics.jsonl, the sinks
of `--log`. The whole rows stay in the run's folder, under private/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.protocol import Protocol, View

SCORES = ("loss", "accuracy")
# Values of a round that tell who, or how many, took part in it. Time does: clients of a simulation
# train one after another.
DRAWN = ("participants", "bytes_up", "bytes_down", "seconds")
# Made of two models, of which one is not the last; and None where nobody took part.
BETWEEN_MODELS = ("signal_to_noise",)
# Made of clients' records, without noise, or on records chosen by clients' labels.
UNCOVERED = ("clip_fraction", "nonfinite_steps", "own_accuracy", "own_worst", "own_spread")


@dataclass(frozen=True, kw_only=True)
class Withheld:
    """The metrics left out of everything that is published about a run.

    Attributes:
        scores: The scores of all rounds but the last, since the guarantee is about the last model.
        draw: Who took part and how many did, since the guarantee counts on nobody knowing.
    """

    scores: bool = False
    draw: bool = False

    def __bool__(self) -> bool:
        return self.scores or self.draw

    @property
    def reasons(self) -> tuple[str, ...]:
        """The omitted metrics and why, a sentence for each."""
        found = []
        if self.scores:
            found.append(
                "The promise is about the last model, so only the last score is published: "
                "the scores of earlier rounds reveal more than it covers."
            )
        if self.draw:
            found.append(
                "The promise counts on a draw of clients that only the server knows, "
                "so who took part, how many and how often is not published."
            )
        return tuple(found)


def find_withheld(protocol: Protocol, view: View | None = None) -> Withheld:
    """Returns what must not be published of a run of the protocol.

    Args:
        protocol: The protocol that is run.
        view: The view of the guarantee that is shown, where it may differ from the budget's.

    Example:
        >>> from sordino.protocol import Budget, Constant, FedAvg, Gaussian, Privacy
        >>> local = FedAvg(steps=1, batch=1, clip=1.0, schedule=Constant(rate=0.5))
        >>> privacy = Privacy(budget=Budget(epsilon=8.0, view="final"))
        >>> noise = Gaussian(sigma=1.0)
        >>> plan = Protocol(clients=2, rounds=9, local=local, noise=noise, privacy=privacy)
        >>> find_withheld(plan)
        Withheld(scores=True, draw=False)
    """
    budget = protocol.privacy.budget
    last_only = budget is not None and View.parse(budget.view) == View.FINAL
    return Withheld(scores=last_only or view == View.FINAL, draw=protocol.hides_participants)


def publish_row(row: Mapping[str, Any], withheld: Withheld, *, last: bool) -> dict[str, Any]:
    """Returns the metrics of a round as they may be passed on, with None for omitted values.

    Args:
        row: The metrics of the round.
        withheld: The metrics to leave out.
        last: Whether the run has ended with this round.

    Example:
        >>> row = {"round": 3, "loss": 0.5, "participants": 7}
        >>> publish_row(row, Withheld(draw=True), last=False)
        {'round': 3, 'loss': 0.5, 'participants': None}
    """
    left_out = find_left_out(withheld, last=last)
    return {name: None if name in left_out else value for name, value in row.items()}


def publish_metrics(metrics: Mapping[str, np.ndarray], withheld: Withheld) -> dict[str, np.ndarray]:
    """Returns the metrics of a run that has ended as they may be passed on.

    NaN marks an omitted value. The seconds of rounds become their mean, so that their sum
    stays.

    Args:
        metrics: The metrics of all rounds.
        withheld: The metrics to leave out.
    """
    found = dict(metrics)
    rounds = len(found["round"])
    for last, places in ((False, slice(0, rounds - 1)), (True, slice(rounds - 1, rounds))):
        for name in find_left_out(withheld, last=last) & set(found):
            known = found[name].astype(float)
            known[places] = metrics[name].mean() if name == "seconds" else np.nan
            found[name] = known
    return found


def find_left_out(withheld: Withheld, *, last: bool) -> set[str]:
    """Returns the names of the metrics that are left out of a round.

    Args:
        withheld: The metrics to leave out.
        last: Whether the run has ended with this round.
    """
    names: set[str] = set()
    if withheld:
        names.update(BETWEEN_MODELS, UNCOVERED)
    if withheld.scores and not last:
        names.update(SCORES)
    if withheld.draw:
        names.update(DRAWN)
    return names
