"""Reads run folders while they are written, without ever locking or changing anything.

A training appends lines; a reader may find the last one half written, the folder gone, or anything
else in it. Metrics are read on from where the last look ended. What was spent is priced elsewhere,
since that may take longer than a look should.
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

from sordino.data import division_notes, find_tested_on
from sordino.explorer.chart_figures import thin_chart
from sordino.explorer.results import Chart, Line
from sordino.privacy.certify import certify
from sordino.privacy.ledger import read_ledger
from sordino.privacy.ledger_lines import RoundCharged
from sordino.privacy.published import find_withheld
from sordino.privacy.spending import certify_run
from sordino.protocol import Protocol, SordinoError, loads_kept
from sordino.report.phrasing import describe_protocol, join_test_records
from sordino.report.run_prices import choose_headline, choose_headline_after

# Runs in one picture.
MOST_RUNS = 10
# Points of a curve in a picture.
MOST_POINTS = 400
# Seconds since the last round after which a run no longer counts as under way.
FRESH = 60.0
# Runs whose metrics are remembered.
KEPT = 200
WATCHED = ("accuracy", "loss")
GONE = "is no longer there"
ENDINGS = {"finished": "finished", "diverged": "diverged", "budget": "stopped by its budget"}
# What reading a folder can raise while somebody writes to it.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, SordinoError)
# Characters of an error's message.
LONGEST_MESSAGE = 160


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Holds a run folder at one moment.

    Attributes:
        name: The path of the folder, below the folder of runs.
        problem: What is wrong with the folder; empty if nothing is.
        status: "finished", "diverged", "budget" or "unfinished", as run.json says.
        protocol: The federation; None if it cannot be read.
        rounds: The numbers of the rounds that have metrics, from 1.
        scores: The values of every metric in these rounds; NaN where the model was not scored.
        sizes: The number of records of every client.
        age: The seconds since the last round.
        report: Whether there is a report.
        tested_on: Whose records the model is scored on.
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
        """Whether rounds are still being added, as far as the files show."""
        return self.status == "unfinished" and self.age < FRESH

    @property
    def state(self) -> str:
        """The state of the run, in words."""
        if self.problem:
            return self.problem
        if self.status in ENDINGS:
            return ENDINGS[self.status]
        if self.under_way:
            return "under way"
        return "interrupted; continue with sordino resume"

    @property
    def what(self) -> str:
        """A description of the federation, in one line."""
        if self.protocol is None:
            return ""
        return describe_protocol(self.protocol)

    @property
    def left_out(self) -> str:
        """The reasons why some metrics are not shown; empty where all are."""
        if self.protocol is None:
            return ""
        return " ".join(find_withheld(self.protocol).reasons)

    def last(self, metric: str) -> float:
        """Returns the last known value of a metric.

        Args:
            metric: Its name.
        """
        known = [value for value in self.scores.get(metric, ()) if not math.isnan(value)]
        if not known:
            return math.nan
        return known[-1]


def list_runs(root: Path) -> list[str]:
    """Lists all runs below a folder; a run has a protocol.toml and no audit.json.

    Args:
        root: The folder.

    Returns:
        Paths below the folder, the newest first.

    Example:
        >>> list_runs(Path("nowhere"))
        []
    """
    places: dict[str, float] = {}
    for pattern in ("*/protocol.toml", "*/*/protocol.toml"):
        for path in root.glob(pattern):
            if not (path.parent / "audit.json").exists():
                places[str(path.parent.relative_to(root))] = find_modification_time(
                    path.parent / "metrics.jsonl"
                )
    return sorted(places, key=lambda name: (-places[name], name))


def find_modification_time(path: Path) -> float:
    """Returns when a file was last written; 0 if it does not exist.

    Args:
        path: The file.
    """
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class MetricsReader:
    """Reads the metrics of one run, each time from where it stopped before; keeps all rows."""

    def __init__(self, path: Path) -> None:
        """Prepares to read.

        Args:
            path: metrics.jsonl of a run.
        """
        self._path = path
        self._offset = 0
        self._rows: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows so far, one for each round.

        Raises:
            ValueError: A line is not a metrics line.
        """
        with self._lock:
            # Rounds were taken back, to be run again.
            if self._path.stat().st_size < self._offset:
                self._offset = 0
                self._rows = []
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                # The last line may be half written: it is read at the next look.
                *lines, _ = file.read().split(b"\n")
            fresh = [json.loads(line) for line in lines]
            for row in fresh:
                if not isinstance(row, dict) or not isinstance(row.get("round"), int):
                    raise ValueError("a line is not a metrics line")
            self._offset += sum(len(line) + 1 for line in lines)
            self._rows += fresh
            return list(self._rows)


class RunWatcher:
    """Looks at the runs below one folder, and remembers what it has read of each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._readers: OrderedDict[str, MetricsReader] = OrderedDict()
        self._lock = threading.Lock()

    def look(self, name: str) -> RunStatus:
        """Returns the present status of a run; never fails.

        Args:
            name: The path of the run's folder, below the folder of runs.
        """
        place = self.root / name
        if not place.is_dir():
            return RunStatus(name=name, problem=GONE)
        try:
            return self._read(name, place)
        except UNREADABLE as error:
            self._forget(name)
            if not place.is_dir():
                return RunStatus(name=name, problem=GONE)
            return RunStatus(name=name, problem=f"is damaged: {summarize_error(error)}")

    def _read(self, name: str, place: Path) -> RunStatus:
        protocol = loads_kept((place / "protocol.toml").read_text(encoding="utf-8"))
        facts = json.loads((place / "run.json").read_bytes())
        rows = self._reader(name).rows()
        scores = {metric: tuple(read_metric(row.get(metric)) for row in rows) for metric in WATCHED}
        return RunStatus(
            name=name,
            status=str(facts["status"]),
            protocol=protocol,
            rounds=tuple(row["round"] + 1 for row in rows),
            scores=scores,
            sizes=tuple(int(size) for size in facts["sizes"]),
            age=time.time() - find_modification_time(place / "metrics.jsonl"),
            report=(place / "report.html").is_file(),
            tested_on=find_tested_on(protocol, facts),
        )

    def _reader(self, name: str) -> MetricsReader:
        with self._lock:
            reader = self._readers.setdefault(
                name, MetricsReader(self.root / name / "metrics.jsonl")
            )
            # The readers used last are kept, and memory stays bounded.
            self._readers.move_to_end(name)
            while len(self._readers) > KEPT:
                self._readers.popitem(last=False)
        return reader

    def _forget(self, name: str) -> None:
        with self._lock:
            self._readers.pop(name, None)


def summarize_error(error: Exception) -> str:
    """Says what went wrong, in one line.

    Args:
        error: What was raised.
    """
    # Visitors may be others than the owner, who need not learn where the folder is.
    if isinstance(error, OSError):
        return f"{Path(error.filename or '').name} cannot be read"
    if isinstance(error, KeyError):
        return f"{error} is missing in run.json"
    text = next(iter(str(error).splitlines()), type(error).__name__)
    if len(text) > LONGEST_MESSAGE:
        return text[: LONGEST_MESSAGE - 3] + "..."
    return text


def read_metric(value: object) -> float:
    """Returns a metric as a number; NaN if it is not known.

    Args:
        value: Value from a JSON document.

    Example:
        >>> read_metric(0.5), read_metric(None), read_metric("inf")
        (0.5, nan, inf)
    """
    # JSON has no infinity, and run folders write it as a text.
    if value == "inf":
        return math.inf
    # Python's True is an int, and would pass as 1.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value)


@dataclass(frozen=True, kw_only=True)
class SpentPrivacy:
    """Holds what a run has spent, by its ledger, in the view of its budget or of the server.

    Attributes:
        charges: The number of rounds that were charged.
        epsilon: The epsilon of these rounds, at most.
        view: The adversary.
        delta: Where epsilon is shown.
        problem: Why there is no price; empty if there is one.
        condition: The assumption that the epsilon rests on, where one was vouched for.
        notes: Sentences that must be read with the epsilon.
    """

    charges: int
    epsilon: float
    view: str
    delta: float
    problem: str = ""
    condition: str = ""
    notes: tuple[str, ...] = ()


def price_folder(folder: Path, size: int, status: str = "") -> SpentPrivacy:
    """Prices what the ledger of a run charged.

    Args:
        folder: The run's folder.
        size: The size of the ledger in bytes. Size and status are not used, but make calls differ
            once the ledger has grown or the run has ended, so that no cached answer is outdated.
        status: The status of the run, as it was read last.

    Example:
        >>> price_folder(Path("nowhere"), 0).problem != ""
        True
    """
    try:
        protocol = loads_kept((folder / "protocol.toml").read_text(encoding="utf-8"))
        facts = json.loads((folder / "run.json").read_bytes())
        sizes = [int(one) for one in facts["sizes"]]
        # The whole ledger is verified with its chain: a damaged one gives no number.
        events = read_ledger(folder / "ledger.jsonl").events
        view, unit, delta = choose_headline_after(protocol, str(facts["status"]))
        guarantee = certify_run(protocol, events, view, unit, delta=delta, sizes=sizes)
        charges = sum(isinstance(event, RoundCharged) for event in events)
        return SpentPrivacy(
            charges=charges,
            epsilon=guarantee.epsilon(delta),
            view=str(view),
            delta=delta,
            condition=guarantee.condition,
            notes=(*guarantee.notes, *division_notes(protocol, facts)),
        )
    except UNREADABLE as error:
        return SpentPrivacy(
            charges=0,
            epsilon=math.nan,
            view="",
            delta=math.nan,
            problem=summarize_error(error),
        )


def trace_plan(protocol: Protocol, sizes: tuple[int, ...]) -> Chart:
    """Traces epsilon of the plan against rounds, with the budget where there is one.

    Args:
        protocol: The federation.
        sizes: The number of records of every client.
    """
    view, unit, delta = choose_headline(protocol)
    # Eight points suffice: the curve is smooth, and each needs a price.
    eighths = {round(protocol.rounds * part / 8) for part in range(1, 9)}
    counts = sorted({max(1, count) for count in eighths} | {1})
    values = [
        certify(protocol, view, unit, delta=delta, rounds=range(count), sizes=sizes).epsilon(delta)
        for count in counts
    ]
    lines = [Line(name=f"certified, {view}", values=tuple(values))]
    if protocol.privacy.budget is not None:
        lines.append(Line(name="budget", values=(protocol.privacy.budget.epsilon,) * len(counts)))
    return Chart(across="round", points=tuple(counts), lines=tuple(lines))


def title_scores(runs: Iterable[RunStatus], metric: str) -> str:
    """Returns the title of a metric's picture: whose records these runs are scored on.

    Args:
        runs: Runs that are shown.
        metric: Metric that is shown.

    Example:
        >>> title_scores([RunStatus(name="a", tested_on="held-out")], "loss")
        'Loss on held-out private records, not covered'
    """
    records = join_test_records(run.tested_on for run in runs if not run.problem)
    return f"{metric.capitalize()} on {records}"


def compare_runs(runs: Iterable[RunStatus], metric: str) -> Chart | None:
    """Returns a curve for each run that has values of a metric, over the rounds of all.

    Args:
        runs: Runs that are shown.
        metric: Metric that is shown.

    Returns:
        None where no run has a value.
    """
    curves = {}
    for run in runs:
        scores = run.scores.get(metric, ())
        # A round that is just being written may lack its scores.
        pairs = zip(run.rounds, scores, strict=False)
        known = [(number, value) for number, value in pairs if not math.isnan(value)]
        if known:
            rounds, values = zip(*known, strict=True)
            whole = Chart(across="round", points=rounds, lines=(Line(name="", values=values),))
            # Thinned run by run, since each has its own rounds.
            thin = thin_chart(whole, MOST_POINTS)
            curves[run.name] = dict(zip(thin.points, thin.lines[0].values, strict=True))
    points = sorted({point for curve in curves.values() for point in curve})
    if not points:
        return None
    lines = tuple(
        Line(name=name, values=tuple(curve.get(point, math.nan) for point in points))
        for name, curve in curves.items()
    )
    return Chart(across="round", points=tuple(points), lines=lines)
