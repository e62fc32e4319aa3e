"""What an attack is: cases that the referee prepares, an attempt that sees only what is observed, a score against what is true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar
from typing import Protocol as Interface

import numpy as np

from sordino.attacks.observed import ObservedUpload
from sordino.attacks.referee import Referee, spread
from sordino.attacks.truth import TruthBatch
from sordino.protocol import UserError, View

Observed = TypeVar("Observed")
Guess = TypeVar("Guess")
Truth = TypeVar("Truth")
Tick = Callable[[float], None]  # how much of a case is done, from 0 to 1


@dataclass(frozen=True, kw_only=True)
class Case(Generic[Observed, Truth]):
    """One thing to attack, such as one upload. Both sides are made when they are asked for, apart from one another.

    Attributes:
        key: its name among the cases of one attack on one run, fit for a file.
        round: rounds that what is attacked has behind it.
        observe: what the attacker is given.
        reveal: what the scorer is given.
    """

    key: str
    round: int
    observe: Callable[[], Observed]
    reveal: Callable[[], Truth]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number about how well an attempt did, beside what a trivial attacker gets.

    Attributes:
        metric: what is measured, such as accuracy.
        method: which of several attackers.
        value: what the attack reached.
        baseline: what an attacker reaches who sees nothing of the run.
        better: whether "higher" or "lower" values are a success of the attack.
        samples: over how many things the value is a mean.
    """

    metric: str
    method: str
    value: float
    baseline: float
    better: str
    samples: int


@dataclass(frozen=True, kw_only=True)
class Row(Measure):
    """A measure over all cases of one round of one run: a line of the results.

    Attributes:
        name: of the attack.
        view: who the attacker is.
        round: rounds that what was attacked had behind it.
        noise: the size of the noise in the run: sigma, scale or multiplier; width / step for a staircase.
        paper: where the attack is from.
        printed: the value that the paper prints for these data at this noise and round, where it does.
    """

    name: str
    view: str
    round: int
    noise: float
    paper: str
    printed: float | None = None

    def as_document(self) -> dict[str, Any]:
        """The row as one flat JSON object, the name first."""
        return {
            "name": self.name,
            **{key: value for key, value in asdict(self).items() if key != "name"},
        }


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What came of one case.

    Attributes:
        measures: how well it went.
        pictures: each an array (images, channels, height, width) of values in [0, 1].
        curves: per method, false and true positive rates, (2, points), where there is something to detect.
    """

    measures: tuple[Measure, ...]
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)
    curves: Mapping[str, np.ndarray] = field(default_factory=dict)


class Attack(Interface[Observed, Guess, Truth]):
    """One published attack in one setting. What it sees is decided by the type of `attempt` alone."""

    @property
    def name(self) -> str:
        """How it is called."""

    @property
    def view(self) -> View:
        """Who could do it."""

    @property
    def paper(self) -> str:
        """Where it is from."""

    @property
    def headline(self) -> str:
        """The metric that tells most."""

    def cases(self, referee: Referee) -> list[Case[Observed, Truth]]:
        """What it is tried on; refuses a run that it cannot be tried on."""

    def attempt(self, seen: Observed, tick: Tick) -> Guess:
        """The attack."""

    def score(self, guess: Guess, truth: Truth) -> Scored:
        """How well it did."""


def part_of(tick: Tick, number: int, parts: int) -> Tick:
    """What tells the progress of one of several equal parts.

    Example:
        >>> part_of(print, 1, 4)(0.5)
        0.375
    """
    return lambda share: tick((number + share) / parts)


def upload_cases(
    referee: Referee, *, rounds: int, uploads: int, records: int
) -> list[Case[ObservedUpload, TruthBatch]]:
    """The first so many uploads of so many kept rounds, for an attacker with so many records of its own."""
    referee.gradient_rule()  # refuses what sends no gradients, before any work
    kept, federation = spread(referee.kept, rounds), referee.federation(records)
    found = [
        Case(
            key=f"{t:06d}-{place:04d}",
            round=t,
            observe=partial(referee.upload, federation, t, place),
            reveal=partial(referee.batch, t, place),
        )
        for t in kept
        for place in range(min(uploads, len(referee.round(t).uploads)))
    ]
    if not found:
        raise UserError(
            f"nobody took part in the rounds that {referee.run.folder} has kept. Attack a run in which more clients do."
        )
    return found


def rows_of(
    attack: Attack[Any, Any, Any], scored: Sequence[tuple[int, Scored]], noise: float
) -> list[Row]:
    """Means over the cases of each round, weighed by their samples; rounds in order.

    Example:
        >>> from types import SimpleNamespace
        >>> one = Measure(metric="accuracy", method="", value=1.0, baseline=0.1, better="higher", samples=1)
        >>> two = Measure(metric="accuracy", method="", value=0.0, baseline=0.1, better="higher", samples=3)
        >>> labels = SimpleNamespace(name="labels", view=View.SERVER, paper="convergent-dp, Table 13")
        >>> [row] = rows_of(labels, [(5, Scored(measures=(one,))), (5, Scored(measures=(two,)))], noise=0.1)
        >>> row.value, row.samples, row.round
        (0.25, 4, 5)
    """
    grouped: dict[tuple[int, str, str], list[Measure]] = {}
    for round, result in scored:
        for measure in result.measures:
            grouped.setdefault((round, measure.method, measure.metric), []).append(measure)
    rows = []
    for (round, method, metric), measures in sorted(grouped.items(), key=lambda item: item[0][0]):
        samples = [one.samples for one in measures]
        value, baseline = (
            float(np.average([getattr(one, name) for one in measures], weights=samples))
            for name in ("value", "baseline")
        )
        rows.append(
            Row(
                name=attack.name, view=str(attack.view), paper=attack.paper, round=round, noise=noise, metric=metric, method=method,
                value=value, baseline=baseline, better=measures[0].better, samples=sum(samples),
            )
        )  # fmt: skip
    return rows
