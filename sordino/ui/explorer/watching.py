"""Run folders, looked at while they are written: nothing is ever locked or changed, and whatever is wrong with one is said of it.

A training appends lines; a reader may find the last one half written, the folder gone, or anything else in it. Metrics are read on
from where the last look ended. What was spent is worked out elsewhere, since it may take longer than a look should.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sordino.federation.data import division_notes, tested_on
from sordino.privacy.certify import certify
from sordino.privacy.ledger import RoundCharged
from sordino.privacy.ledger import read as read_ledger
from sordino.privacy.published import find_withheld
from sordino.privacy.spending import promised
from sordino.protocol import Protocol, SordinoError, loads
from sordino.report.words import TESTED, described
from sordino.ui.explorer.answers import Chart, Line
from sordino.ui.explorer.figures import thinned
from sordino.ui.prices import headline

MOST_RUNS = 10  # in one picture
MOST_POINTS = 400  # of a curve in a picture
FRESH = 60.0  # seconds since the last round after which a run is no longer called under way
KEPT = 200  # runs whose metrics are remembered
WATCHED = ("accuracy", "loss")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A run folder at one moment.

    Attributes:
        name: its path below the folder of runs.
        problem: what is wrong with it, or nothing.
        status: "finished", "diverged", "budget" or "unfinished", as the run says.
        rounds: numbers of the rounds that have metrics, from 1.
        scores: per metric one value for each of these rounds, NaN where it was not scored.
        age: seconds since the last round.
        report: whether there is a report.
        tested_on: whose records it is scored on.
    """

    name: str
    problem: str = ""
    status: str = ""
    protocol: Protocol | None = None
    rounds: tuple[int, ...] = ()
    scores: dict[str, tuple[float, ...]] = field(default_factory=dict)
    sizes: tuple[int, ...] | None = None
    age: float = math.inf
    report: bool = False
    tested_on: str = "none"

    @property
    def under_way(self) -> bool:
        """Whether rounds are still being added, as far as one can see."""
        return self.status == "unfinished" and self.age < FRESH

    @property
    def state(self) -> str:
        """How it stands, in words."""
        if self.problem:
            return self.problem
        words = {"finished": "finished", "diverged": "diverged", "budget": "stopped by its budget"}
        return words.get(
            self.status, "under way" if self.under_way else "interrupted; go on with sordino resume"
        )

    @property
    def what(self) -> str:
        """What is trained, in a line."""
        return described(self.protocol) if self.protocol is not None else ""

    @property
    def left_out(self) -> str:
        """Says which values of its rounds are not looked at, since the run's promise does not cover them."""
        if self.protocol is None:
            return ""
        return " ".join(find_withheld(self.protocol).reasons)

    def last(self, metric: str) -> float:
        """The last known value of a metric."""
        known = [value for value in self.scores.get(metric, ()) if not math.isnan(value)]
        return known[-1] if known else math.nan


def found(root: Path) -> list[str]:
    """Names of all runs below a folder, the newest first; a run has a protocol.toml and no audit.json.

    Example:
        >>> found(Path("nowhere"))
        []
    """
    places: dict[str, float] = {}
    for pattern in ("*/protocol.toml", "*/*/protocol.toml"):
        for path in root.glob(pattern):
            if not (path.parent / "audit.json").exists():
                places[str(path.parent.relative_to(root))] = modified(path.parent / "metrics.jsonl")
    return sorted(places, key=lambda name: (-places[name], name))


def modified(path: Path) -> float:
    """When a file was last written; 0 if it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class Tail:
    """The metrics of one run, read on from where the last look ended. It holds the rows."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rows = path, 0, list[dict[str, Any]]()
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """All rows so far, one for each round.

        Raises:
            ValueError: a line is not a metrics line.
        """
        with self._lock:
            if self._path.stat().st_size < self._offset:  # rounds were taken back, to be run again
                self._offset, self._rows = 0, []
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                *lines, _ = file.read().split(b"\n")
            fresh = [json.loads(line) for line in lines]
            if not all(
                isinstance(row, dict) and isinstance(row.get("round"), int) for row in fresh
            ):
                raise ValueError("a line is no metrics line")
            self._offset += sum(len(line) + 1 for line in lines)
            self._rows += fresh
            return list(self._rows)


class Watch:
    """Looks at the runs below one folder. It remembers what it has read of each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tails: OrderedDict[str, Tail] = OrderedDict()
        self._lock = threading.Lock()

    def look(self, name: str) -> Seen:
        """A run as it is now; never fails."""
        place = self.root / name
        if not place.is_dir():
            return Seen(name=name, problem="is no longer there")
        try:
            protocol = loads((place / "protocol.toml").read_text(encoding="utf-8"))
            facts = json.loads((place / "run.json").read_bytes())
            rows = self._tail(name).rows()
            return Seen(
                name=name,
                status=str(facts["status"]),
                protocol=protocol,
                rounds=tuple(row["round"] + 1 for row in rows),
                scores={
                    metric: tuple(as_number(row.get(metric)) for row in rows) for metric in WATCHED
                },
                sizes=tuple(int(size) for size in facts["sizes"]),
                age=time.time() - modified(place / "metrics.jsonl"),
                report=(place / "report.html").is_file(),
                tested_on=tested_on(protocol, facts),
            )
        except (OSError, ValueError, KeyError, TypeError, SordinoError) as error:
            self._forget(name)
            return Seen(
                name=name,
                problem="is no longer there"
                if not place.is_dir()
                else f"is damaged: {in_short(error)}",
            )

    def _tail(self, name: str) -> Tail:
        with self._lock:
            tail = self._tails.setdefault(name, Tail(self.root / name / "metrics.jsonl"))
            self._tails.move_to_end(name)
            while len(self._tails) > KEPT:
                self._tails.popitem(last=False)
        return tail

    def _forget(self, name: str) -> None:
        with self._lock:
            self._tails.pop(name, None)


def in_short(error: Exception) -> str:
    """What was wrong, in a line."""
    if isinstance(error, OSError):
        return f"{Path(error.filename or '').name} cannot be read"
    if isinstance(error, KeyError):
        return f"{error} is missing in run.json"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def as_number(value: object) -> float:
    """A metric as a number; unknown is NaN.

    Example:
        >>> as_number(0.5), as_number(None), as_number("inf")
        (0.5, nan, inf)
    """
    if value == "inf":
        return math.inf
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else math.nan
    )


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a run has spent, by its ledger: epsilon after so many charges, in the view of its budget or of the server."""

    charges: int
    epsilon: float
    view: str
    delta: float
    problem: str = ""
    condition: str = ""  # what the epsilon rests on, where something was vouched for
    notes: tuple[str, ...] = ()  # what must be read with the epsilon


def spent(folder: Path, size: int) -> Spent:
    """What the ledger says was paid for, priced. `size` is the ledger's, so that an answer is kept until it has grown.

    Example:
        >>> spent(Path("nowhere"), 0).problem != ""
        True
    """
    try:
        protocol = loads((folder / "protocol.toml").read_text(encoding="utf-8"))
        facts = json.loads((folder / "run.json").read_bytes())
        sizes = [int(one) for one in facts["sizes"]]
        events = read_ledger(folder / "ledger.jsonl").events
        view, unit, delta = headline(protocol)
        guarantee = promised(protocol, events, view, unit, delta=delta, sizes=sizes)
        charges = sum(isinstance(event, RoundCharged) for event in events)
        return Spent(
            charges=charges,
            epsilon=guarantee.epsilon(delta),
            view=str(view),
            delta=delta,
            condition=guarantee.condition,
            notes=(*guarantee.notes, *division_notes(protocol, facts)),
        )
    except (OSError, ValueError, KeyError, TypeError, SordinoError) as error:
        return Spent(charges=0, epsilon=math.nan, view="", delta=math.nan, problem=in_short(error))


def plan(protocol: Protocol, sizes: tuple[int, ...]) -> Chart:
    """Epsilon of the plan against rounds, in the view of its budget or of the server, with the budget where there is one."""
    view, unit, delta = headline(protocol)
    counts = sorted({max(1, round(protocol.rounds * part / 8)) for part in range(1, 9)} | {1})
    values = [
        certify(protocol, view, unit, delta=delta, rounds=range(count), sizes=sizes).epsilon(delta)
        for count in counts
    ]
    lines = [Line(name=f"certified, {view}", values=tuple(values))]
    if protocol.privacy.budget is not None:
        lines.append(Line(name="budget", values=(protocol.privacy.budget.epsilon,) * len(counts)))
    return Chart(across="round", points=tuple(counts), lines=tuple(lines))


def scored_title(runs: Iterable[Seen], metric: str) -> str:
    """Returns the title of a metric's picture: whose records these runs are scored on.

    Example:
        >>> scored_title([Seen(name="a", tested_on="held-out")], "loss")
        'Loss on held-out private records, not covered'
    """
    kinds = {run.tested_on for run in runs if not run.problem}
    return f"{metric.capitalize()} on {' or '.join(TESTED[kind] for kind in sorted(kinds))}"


def compared(runs: Iterable[Seen], metric: str) -> Chart | None:
    """One curve per run that has values of this metric, over the rounds of all."""
    curves = {}
    for run in runs:
        values = {
            at: value
            for at, value in zip(run.rounds, run.scores.get(metric, ()), strict=False)
            if not math.isnan(value)
        }
        if values:
            thin = thinned(
                Chart(
                    across="round",
                    points=tuple(values),
                    lines=(Line(name="", values=tuple(values.values())),),
                ),
                MOST_POINTS,
            )
            curves[run.name] = dict(zip(thin.points, thin.lines[0].values, strict=True))
    points = sorted({point for curve in curves.values() for point in curve})
    if not points:
        return None
    lines = tuple(
        Line(name=name, values=tuple(curve.get(point, math.nan) for point in points))
        for name, curve in curves.items()
    )
    return Chart(across="round", points=tuple(points), lines=lines)
