"""Holds the results of a sweep: a row per training, and mean and spread per setting."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sordino.data import are_scores_covered
from sordino.sweeps.tuning_price import TuningPrice

# What must be said with every sweep, and what can be done about it.
TUNING_NOTE = (
    "Each epsilon prices one run. Choosing settings by their scores uses the records once for "
    "every run, and what the runs reveal adds up"
)
TUNING_ADVICE = "tune on public records, or price the tuning with --price"
# What must be said with scores, by the source of the records that were scored.
SCORES_NOTES = {
    "held-out": (
        "The scores are exact, and on held-out records of the clients themselves: no epsilon "
        "covers them, nor a choice by them. Bring public test records."
    ),
    "brought": (
        "The scores are exact, and on test records that came with the data: no epsilon covers them "
        "unless these records are public, which only their owner knows."
    ),
}

OWN_SCORES_NOTE = (
    "The accuracies of clients' personal models are exact, on test records chosen by the labels of "
    "clients' records: no epsilon covers them."
)


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """Holds one training of a sweep.

    Attributes:
        settings: The values by key; a target has the key "epsilon".
        seed: The seed of the training.
        accuracy: The accuracy on the test records after the last round; None where it is unknown.
        loss: The loss on the test records after the last round; None where it is unknown.
        epsilon: The epsilon that the run spent, in the sweep's view and at its delta; None where
            there is no bound.
        view: The adversary.
        run: The folder of the run.
        status: "finished", "diverged" or "budget".
        tested_on: The source of the records that were scored; "held-out" for the clients' own.
        own_accuracy: The mean accuracy of clients' personal models, which no guarantee covers; None
            where clients keep none, or where it is withheld.
        own_worst: The lowest accuracy of clients' personal models.
        own_spread: The standard deviation of these accuracies over the clients.
    """

    settings: dict[str, Any]
    seed: int
    accuracy: float | None
    loss: float | None
    epsilon: float | None
    view: str
    run: str
    status: str
    tested_on: str
    own_accuracy: float | None = None
    own_worst: float | None = None
    own_spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class SettingSummary:
    """Sums up the trainings of one setting.

    Attributes:
        settings: The values by key.
        mean: The mean of the score over the seeds; NaN where none is known.
        spread: The sample standard deviation of the score; NaN for one seed.
        epsilon: The largest epsilon that a run spent; NaN where none is known.
        runs: The number of runs that were scored.
        ended_early: The number of runs that diverged or were stopped by a budget.
        own_mean: The mean over the seeds of the mean accuracy of clients' personal models; NaN
            where none is known.
        own_worst: The lowest accuracy of clients' personal models in all runs; NaN where none is
            known.
    """

    settings: dict[str, Any]
    mean: float
    spread: float
    epsilon: float
    runs: int
    ended_early: int
    own_mean: float = math.nan
    own_worst: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Holds a finished sweep.

    Attributes:
        folder: The folder of the sweep.
        rows: A row for every training, in the order in which they were planned.
        score: "accuracy", or "loss" where there are no classes.
        view: The adversary whose epsilon is shown.
        delta: The delta of every epsilon.
        tuning: The price of choosing among the runs; None where it was not asked for.

    Example:
        >>> swept = sweep(protocol, {"local.clip": [0.5, 1.0]}, seeds=3)  # doctest: +SKIP
        >>> [(one.settings, one.mean) for one in swept.summary]  # doctest: +SKIP
        [({'local.clip': 0.5}, 0.87), ({'local.clip': 1.0}, 0.9)]
    """

    folder: Path
    rows: tuple[SweepRow, ...]
    score: str
    view: str
    delta: float
    tuning: TuningPrice | None = None

    @property
    def summary(self) -> tuple[SettingSummary, ...]:
        """The mean and spread of every setting, in the order of the rows."""
        groups: dict[str, list[SweepRow]] = {}
        for row in self.rows:
            # Settings may hold lists and tables, which are not hashable.
            groups.setdefault(repr(row.settings), []).append(row)
        return tuple(summarize_rows(rows, self.score) for rows in groups.values())

    @property
    def best(self) -> SweepRow | None:
        """The row with the best score; None where no score is known."""
        scored = [row for row in self.rows if getattr(row, self.score) is not None]
        if not scored:
            return None
        sign = 1 if self.score == "accuracy" else -1
        return max(scored, key=lambda row: sign * getattr(row, self.score))

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of the records that were scored, in alphabetical order."""
        return tuple(sorted({row.tested_on for row in self.rows}))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that must be shown with the sweep."""
        about_tuning = f"{TUNING_NOTE}."
        if self.tuning is None:
            about_tuning = f"{TUNING_NOTE}: {TUNING_ADVICE}."
        about_scores = [SCORES_NOTES[one] for one in self.sources if one in SCORES_NOTES]
        about_own = []
        if any(row.own_accuracy is not None for row in self.rows):
            about_own.append(OWN_SCORES_NOTE)
        return (about_tuning, *about_scores, *about_own)

    def as_document(self) -> dict[str, Any]:
        """Returns the sweep as a JSON document."""
        document: dict[str, Any] = {
            "rows": [asdict(row) for row in self.rows],
            "summary": [asdict(one) for one in self.summary],
            "score": self.score,
            "delta": self.delta,
            "folder": str(self.folder),
            "scores_covered": all(are_scores_covered(one) for one in self.sources),
            "note": " ".join(self.notes),
        }
        if self.tuning is not None:
            document["tuning"] = asdict(self.tuning)
            # A private selection reveals its best run alone; the others stay secret.
            if self.tuning.kind == "selection" and self.best is not None:
                document["best"] = asdict(self.best)
        return document


def summarize_rows(rows: Sequence[SweepRow], score: str) -> SettingSummary:
    """Sums up the trainings of one setting.

    Args:
        rows: The rows of the trainings.
        score: The name of the score.
    """
    scores = [value for value in (getattr(row, score) for row in rows) if value is not None]
    spent = [row.epsilon for row in rows if row.epsilon is not None]
    own = [row.own_accuracy for row in rows if row.own_accuracy is not None]
    worst = [row.own_worst for row in rows if row.own_worst is not None]
    spread = math.nan
    # One score has no spread; zero would be read as certainty.
    if len(scores) > 1:
        spread = statistics.stdev(scores)
    return SettingSummary(
        settings=rows[0].settings,
        mean=compute_mean(scores),
        spread=spread,
        # The largest, since a setting guarantees only what all of its runs do.
        epsilon=max(spent, default=math.nan),
        runs=len(scores),
        ended_early=sum(row.status != "finished" for row in rows),
        own_mean=compute_mean(own),
        own_worst=min(worst, default=math.nan),
    )


def compute_mean(values: Sequence[float]) -> float:
    """Computes a mean; NaN where there are no values.

    Args:
        values: The values.
    """
    if not values:
        return math.nan
    return statistics.fmean(values)
