"""What audits and attacks of a run have found, as they left it in the run's folder.

`audits/*.json` are findings as `sordino audit --json` prints them. `attacks/*.json` hold one attack each, or a list of them, or, as
`sordino attack` writes them, such a list as `headlines`:

    name       what was tried, such as "membership inference"
    metric     what is measured, such as "AUC"
    value      how well it went
    baseline   how well it goes without seeing anything of the run: guessing, or the mean of all records
    paper      where the attack is from; may be left out
    plots      may be left out: a list of {title, x_label, y_label, lines: {name: [[x, ...], [y, ...]]}, logarithmic}
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sordino.protocol import UserError
from sordino.report.formats import at_most

MOST_POINTS = 10_000  # in one line of a plot


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot of an attack: lines with names, each as its x and its y; logarithmic on both axes or on neither."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, tuple[tuple[float, ...], tuple[float, ...]]]
    logarithmic: bool = False


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What one attack reached, beside what is reached without seeing anything of the run.

    Example:
        >>> Attack.of({"name": "membership inference", "metric": "AUC", "value": 0.52, "baseline": 0.5}).paper
        ''
    """

    name: str
    metric: str
    value: float
    baseline: float
    paper: str = ""
    plots: tuple[Plot, ...] = ()

    @classmethod
    def of(cls, row: dict[str, Any]) -> Attack:
        """An attack from its row.

        Raises:
            ValueError: something is missing, or is not what it should be.
        """
        return cls(
            name=text(row, "name"),
            metric=text(row, "metric"),
            value=number(row, "value"),
            baseline=number(row, "baseline"),
            paper=text(row, "paper", ""),
            plots=tuple(plot_of(plot) for plot in listed(row.get("plots", []))),
        )

    def as_document(self) -> dict[str, Any]:
        """The attack as JSON says it, without its plots."""
        return {key: value for key, value in asdict(self).items() if key != "plots"}


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What one audit measured, beside what is promised.

    Attributes:
        mu_lower, epsilon_lower: measured lower bounds; None for an estimate, which bounds nothing.
        tests: error rates that were reached, as upper limits: false positives, false negatives.
        claims: published or given promises, and what became of each.
        given: what the adversary was given beyond the view; empty where it saw the view, which alone bounds what the view reveals.
        engine: which engine was attacked and whether it does what the game plays; empty in audits that did not compare.
        engine_differs: whether the engine does something else than the game plays, which contradicts the promise.
        document: all of it, as it was found.
    """

    view: str
    unit: str
    delta: float
    mu_lower: float | None
    epsilon_lower: float | None
    certified: float
    verdict: str
    trainings: int
    game: str
    tests: tuple[tuple[float, float], ...]
    claims: tuple[tuple[str, str, str], ...]
    given: str
    engine: str
    engine_differs: bool
    document: dict[str, Any]

    @classmethod
    def of(cls, document: dict[str, Any]) -> Audit:
        """An audit from what `sordino audit --json` prints.

        Raises:
            ValueError: something is missing, or is not what it should be.
        """
        lower = {
            key: None if document[key] is None else number(document, key)
            for key in ("mu_lower", "epsilon_lower")
        }
        tests = listed(document.get("tests", []))
        engine = document.get("engine") or {}
        return cls(
            view=text(document, "view"),
            unit=text(document, "unit"),
            delta=number(document, "delta"),
            mu_lower=lower["mu_lower"],
            epsilon_lower=lower["epsilon_lower"],
            certified=number(document["certified"], "epsilon"),
            verdict=text(document, "verdict", "an estimate, not a bound"),
            trainings=int(number(document, "trainings")),
            game=text(document, "pair", ""),
            tests=tuple(
                (number(limits, "false_positive"), number(limits, "false_negative"))
                for limits in tests
            ),
            claims=tuple(
                (text(row, "claim"), claimed_text(row), text(row, "verdict"))
                for row in listed(document.get("claims", []))
            ),
            given=text(document, "given", ""),
            engine=f"{text(engine, 'name')}: {text(engine, 'verdict')}" if engine else "",
            engine_differs=engine.get("verdict") == "differs",
            document=document,
        )


def claimed_text(row: dict[str, Any]) -> str:
    """Returns what was claimed, for people: mu, or epsilon at a delta."""
    if row.get("epsilon") is None:
        return f"μ = {at_most(number(row, 'mu'))}"
    return f"ε = {at_most(number(row, 'epsilon'))} at δ = {number(row, 'delta'):g}"


def plot_of(document: dict[str, Any]) -> Plot:
    """A plot from its description."""
    lines = document.get("lines")
    if not isinstance(lines, dict):
        raise ValueError("a plot has no lines")
    found = {}
    for name, line in lines.items():
        xs, ys = (
            tuple(float(value) for value in listed(side)[:MOST_POINTS]) for side in listed(line)
        )
        if len(xs) != len(ys):
            raise ValueError(f"the line {name!r} has {len(xs)} x and {len(ys)} y")
        found[str(name)] = (xs, ys)
    return Plot(
        title=text(document, "title"),
        x_label=text(document, "x_label", ""),
        y_label=text(document, "y_label", ""),
        lines=found,
        logarithmic=document.get("logarithmic", False) is True,
    )


def text(row: dict[str, Any], key: str, default: str | None = None) -> str:
    """A text of a row."""
    value = row.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a text")
    return value


def number(row: dict[str, Any], key: str) -> float:
    """A number of a row; infinity is the string "inf"."""
    value = row.get(key)
    value = (
        {"inf": math.inf, "-inf": -math.inf}.get(value, value) if isinstance(value, str) else value
    )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key} is not a number")
    return float(value)


def listed(value: Any) -> list[Any]:
    """A list, or a refusal."""
    if not isinstance(value, list):
        raise ValueError("a list is missing")
    return value


def attacks_on(run: Path) -> tuple[Attack, ...]:
    """All attacks on a run, in the order of their files.

    Raises:
        UserError: a file is not what it should be.
    """
    found: list[Attack] = []
    for path, document in documents(run / "attacks"):
        try:
            rows = document.get("headlines", [document]) if isinstance(document, dict) else document
            found += [Attack.of(row) for row in listed(rows)]
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not an attack's result: {error}.") from None
    return tuple(found)


def audits_of(run: Path) -> tuple[Audit, ...]:
    """All audits of a run, in the order of their files.

    Raises:
        UserError: a file is not what it should be.
    """
    found = []
    for path, document in documents(run / "audits"):
        try:
            found.append(Audit.of(document))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path} is not an audit's result: {error}.") from None
    return tuple(found)


def documents(folder: Path) -> list[tuple[Path, Any]]:
    """The JSON files of a folder; none where there is no folder."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append((path, json.loads(path.read_bytes())))
        except (OSError, ValueError):
            raise UserError(f"{path} cannot be read: it is not JSON.") from None
    return found
