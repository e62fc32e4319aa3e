"""The parts of an attack: cases, an attempt that sees only observed values, and a score.

The referee prepares the cases. An attempt is given what the view shows and nothing else; the score
holds its guess against the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar
from typing import Protocol as Interface

import numpy as np

from sordino.attacks.attacked_run import spread_rounds
from sordino.attacks.observed import ObservedUpload
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthBatch
from sordino.protocol import UserError, View

Observed = TypeVar("Observed")
Guess = TypeVar("Guess")
Truth = TypeVar("Truth")
# Called with the share of the work that is done.
Tick = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Case(Generic[Observed, Truth]):
    """One thing to attack, such as one upload.

    Attributes:
        key: The name of the case in one attack on one run, fit for a file.
        round: The number of rounds that had been trained before.
        observe: Returns what the attacker is given.
        reveal: Returns what the scorer is given.
    """

    key: str
    round: int
    # These are functions and not values: a case whose result is stored costs nothing, and the truth
    # is looked up only after the attempt has ended.
    observe: Callable[[], Observed]
    reveal: Callable[[], Truth]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number about the success of an attempt, next to that of a trivial attacker.

    Attributes:
        metric: The name of the measure, such as accuracy.
        method: The attacker, where there are several.
        value: The value that the attack reached.
        baseline: The value that an attacker reaches without seeing the run.
        better: Whether "higher" or "lower" values are a success of the attack.
        samples: The number of samples that the value is a mean of.
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
        name: The name of the attack.
        view: The view of the attacker.
        round: The number of rounds that had been trained before.
        noise: The size of the noise in the run: sigma, scale or multiplier; width / step for a
            staircase.
        paper: The paper's table of the attack.
        printed: The value that the paper prints for these data at this noise and round, if any.
    """

    name: str
    view: str
    round: int
    noise: float
    paper: str
    printed: float | None = None

    # The parent's fields would come first in `asdict`; readers of the file look for the name.
    def as_document(self) -> dict[str, Any]:
        """Returns the row as one flat JSON object, the name first."""
        return {"name": self.name} | asdict(self)


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The result of one case.

    Attributes:
        measures: The success of the attack, by every measure and method.
        pictures: Arrays of shape (images, channels, height, width) with values in [0, 1].
        curves: For each method, false and true positive rates of shape (2, points), where there is
            something to detect.
    """

    measures: tuple[Measure, ...]
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)
    curves: Mapping[str, np.ndarray] = field(default_factory=dict)


class Attack(Interface[Observed, Guess, Truth]):
    """One published attack in one setting. The type of `attempt` alone decides what it sees."""

    @property
    def name(self) -> str:
        """The name of the attack."""

    @property
    def view(self) -> View:
        """The view that an adversary needs for it."""

    @property
    def paper(self) -> str:
        """The paper's table of the attack."""

    @property
    def headline(self) -> str:
        """The metric that says most."""

    def cases(self, referee: Referee) -> list[Case[Observed, Truth]]:
        """Returns the cases of a run.

        Args:
            referee: Knows the run.

        Raises:
            UserError: The run cannot be attacked in this way.
        """

    def attempt(self, seen: Observed, tick: Tick) -> Guess:
        """Attacks one case.

        Args:
            seen: What the attacker is given.
            tick: Called with the share of the work that is done.
        """

    def score(self, guess: Guess, truth: Truth) -> CaseResult:
        """Returns how well an attempt did.

        Args:
            guess: What the attempt returned.
            truth: The true values.
        """


def part_progress(tick: Tick, number: int, parts: int) -> Tick:
    """Returns a function that reports the progress of one of several equal parts.

    Args:
        tick: Called with the share of the whole.
        number: The number of the part, from 0.
        parts: The number of parts.

    Example:
        >>> part_progress(print, 1, 4)(0.5)
        0.375
    """
    return lambda share: tick((number + share) / parts)


def list_upload_cases(
    referee: Referee, *, rounds: int, uploads: int, records: int
) -> list[Case[ObservedUpload, TruthBatch]]:
    """Returns cases that are one upload each.

    Args:
        referee: Knows the run.
        rounds: The number of kept rounds, evenly spread.
        uploads: The number of uploads of each round.
        records: The number of records that the attacker has.

    Raises:
        UserError: Uploads of the run hold no gradients, were not kept, or there are none.
    """
    # Refuses what sends no gradients, before any work.
    referee.gradient_rule()
    federation = referee.public_federation(records)
    cases = []
    for round_index in spread_rounds(referee.kept, rounds):
        # Where participation is random, a round may have fewer uploads than are wanted.
        count = min(uploads, len(referee.read_round(round_index).uploads))
        for place in range(count):
            case = Case(
                # Zeros keep the files of cases, which the keys name, in the order of the rounds.
                key=f"{round_index:06d}-{place:04d}",
                round=round_index,
                observe=partial(referee.observe_upload, federation, round_index, place),
                reveal=partial(referee.reveal_batch, round_index, place),
            )
            cases.append(case)
    if not cases:
        raise UserError(
            f"no client took part in the kept rounds of {referee.run.folder}. "
            "Attack a run in which more clients do."
        )
    return cases


def average_rows(
    attack: Attack[Any, Any, Any], results: Sequence[tuple[int, CaseResult]], noise: float
) -> list[Row]:
    """Returns the means over the cases of each round, weighted by their samples.

    Args:
        attack: The attack.
        results: The round and the result of every case.
        noise: The size of the noise in the run.

    Returns:
        One row for each round, method and metric, rounds in ascending order.

    Example:
        >>> from types import SimpleNamespace
        >>> shared = {"metric": "accuracy", "method": "", "baseline": 0.1, "better": "higher"}
        >>> one = CaseResult(measures=(Measure(value=1.0, samples=1, **shared),))
        >>> two = CaseResult(measures=(Measure(value=0.0, samples=3, **shared),))
        >>> labels = SimpleNamespace(name="labels", view=View.SERVER, paper="Table 13")
        >>> [row] = average_rows(labels, [(5, one), (5, two)], noise=0.1)
        >>> row.value, row.samples, row.round
        (0.25, 4, 5)
    """
    groups: dict[tuple[int, str, str], list[Measure]] = {}
    for round_index, result in results:
        for measure in result.measures:
            key = (round_index, measure.method, measure.metric)
            groups.setdefault(key, []).append(measure)
    rows = []
    # Only rounds are sorted, and the sort is stable: methods and metrics stay in the order in which
    # the attack states them.
    for (round_index, method, metric), measures in sorted(
        groups.items(), key=lambda item: item[0][0]
    ):
        samples = [measure.samples for measure in measures]
        values = [measure.value for measure in measures]
        baselines = [measure.baseline for measure in measures]
        row = Row(
            name=attack.name,
            view=str(attack.view),
            paper=attack.paper,
            round=round_index,
            noise=noise,
            metric=metric,
            method=method,
            # Cases differ in size: unweighted, an upload of two records would count as much as one
            # of fifty.
            value=float(np.average(values, weights=samples)),
            baseline=float(np.average(baselines, weights=samples)),
            better=measures[0].better,
            samples=sum(samples),
        )
        rows.append(row)
    return rows
