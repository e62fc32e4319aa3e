"""Reads what audits and attacks of a run have found, from the run's folder.

`audits/*.json` are findings as `sordino audit --json` prints them. `attacks/*.json` hold one attack
each, or a list of them, or, as `sordino attack` writes them, such a list as `headlines`:

    name       what was tried, such as "membership inference"
    metric     the quantity measured, such as "AUC"
    value      how well it went
    baseline   how well it goes without seeing anything of the run: guessing, or the mean of records
    paper      where the attack is from; may be left out
    plots      may be left out: a list of {title, x_label, y_label, logarithmic,
               lines: {name: [[x, ...], [y, ...]]}}
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sordino.privacy.guarantee import format_delta
from sordino.protocol import UserError
from sordino.report.number_formats import format_upper_bound

# The largest number of points that are read of a line.
MOST_POINTS = 10_000


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Holds a plot of an attack.

    Attributes:
        title: The title above the plot.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        lines: The x and y coordinates of every line, by its name.
        logarithmic: Whether both axes are logarithmic; otherwise both are linear.
    """

    title: str
    x_label: str
    y_label: str
    lines: dict[str, tuple[tuple[float, ...], tuple[float, ...]]]
    logarithmic: bool = False


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """Holds what one attack reached, and what guessing without the run reaches.

    Attributes:
        name: The attack, such as "membership inference".
        metric: The quantity measured, such as "AUC".
        value: The value that the attack reached.
        baseline: The value that is reached without seeing anything of the run.
        paper: The paper that the attack is from; empty where none is named.
        plots: Plots of the attack.

    Example:
        >>> row = {"name": "membership inference", "metric": "AUC", "value": 0.52, "baseline": 0.5}
        >>> AttackResult.of(row).paper
        ''
    """

    name: str
    metric: str
    value: float
    baseline: float
    paper: str = ""
    plots: tuple[Plot, ...] = ()

    @classmethod
    def of(cls, row: dict[str, Any]) -> AttackResult:
        """Reads an attack from its row.

        Args:
            row: Row of a JSON document.

        Raises:
            ValueError: Something is missing, or is not what it should be.
        """
        # Files of attacks may come from anywhere, so every field is read with its type.
        return cls(
            name=take_text(row, "name"),
            metric=take_text(row, "metric"),
            value=take_number(row, "value"),
            baseline=take_number(row, "baseline"),
            paper=take_text(row, "paper", ""),
            plots=tuple(read_plot(plot) for plot in read_list(row.get("plots", []))),
        )

    def as_document(self) -> dict[str, Any]:
        """Returns the attack as JSON, without its plots."""
        # Plots would repeat most of the file.
        return {key: value for key, value in asdict(self).items() if key != "plots"}


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Holds what one audit measured, with the guarantee.

    Attributes:
        view: The adversary.
        unit: "record" or "client".
        delta: Where epsilon was measured.
        mu_lower: Measured lower bound; None for an estimate, which bounds nothing.
        epsilon_lower: Measured lower bound; None for an estimate.
        certified: The epsilon that is guaranteed.
        verdict: Verdict on the guarantee.
        confidence: The probability with which a lower bound is valid, from 0 to 1; None where the
            audit does not say it.
        trainings: The number of trainings on each side.
        game: The game that was played, in words.
        tests: Error rates that were reached, as upper limits: false positives, false negatives.
        claims: Published or given bounds: name, bound, verdict.
        given: What the adversary was given beyond the view. Only where it is empty does the audit
            bound what the view reveals.
        engine: Which engine was attacked, and whether it computes what the game plays; empty in
            audits that did not compare.
        engine_differs: Whether the engine computes something else, which contradicts the guarantee.
        document: The whole JSON document, as it was found.
    """

    view: str
    unit: str
    delta: float
    mu_lower: float | None
    epsilon_lower: float | None
    certified: float
    verdict: str
    confidence: float | None
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
        """Reads an audit from what `sordino audit --json` prints.

        Args:
            document: The JSON document.

        Raises:
            ValueError: Something is missing, or is not what it should be.
        """
        # Earlier audits have no engine, and comparing it is optional.
        engine = document.get("engine") or {}
        engine_words = ""
        if engine:
            engine_words = f"{take_text(engine, 'name')}: {take_text(engine, 'verdict')}"
        confidence = None
        if document.get("confidence") is not None:
            confidence = take_number(document, "confidence")
        return cls(
            view=take_text(document, "view"),
            unit=take_text(document, "unit"),
            delta=take_number(document, "delta"),
            mu_lower=read_optional_number(document, "mu_lower"),
            epsilon_lower=read_optional_number(document, "epsilon_lower"),
            certified=take_number(document["certified"], "epsilon"),
            verdict=take_text(document, "verdict", "an estimate, not a bound"),
            confidence=confidence,
            trainings=int(take_number(document, "trainings")),
            game=take_text(document, "pair", ""),
            tests=tuple(
                (take_number(limits, "false_positive"), take_number(limits, "false_negative"))
                for limits in read_list(document.get("tests", []))
            ),
            claims=tuple(
                (take_text(row, "claim"), describe_claim(row), take_text(row, "verdict"))
                for row in read_list(document.get("claims", []))
            ),
            given=take_text(document, "given", ""),
            engine=engine_words,
            # A difference makes every number of the page unreliable, so it has its own field.
            engine_differs=engine.get("verdict") == "differs",
            document=document,
        )


def read_optional_number(document: dict[str, Any], key: str) -> float | None:
    """Reads a number that an audit may not have, such as the lower bound of an estimate.

    Args:
        document: The finding, as `sordino audit --json` prints it.
        key: The name of the number.

    Returns:
        The number; None where it is null.

    Raises:
        ValueError: It is neither a number nor null.
    """
    if document[key] is None:
        return None
    return take_number(document, key)


def describe_claim(row: dict[str, Any]) -> str:
    """Returns what was claimed, for people: mu, or epsilon at a delta.

    Args:
        row: Row of a claim.
    """
    if row.get("epsilon") is None:
        return f"μ = {format_upper_bound(take_number(row, 'mu'))}"
    epsilon = format_upper_bound(take_number(row, "epsilon"))
    return f"ε = {epsilon} at δ = {format_delta(take_number(row, 'delta'))}"


def read_plot(document: dict[str, Any]) -> Plot:
    """Reads a plot from its description.

    Args:
        document: Of a JSON document.

    Raises:
        ValueError: Something is missing, or is not what it should be.
    """
    lines = document.get("lines")
    # Such a file may contain anything, and the page must not fail half drawn.
    if not isinstance(lines, dict):
        raise ValueError("a plot has no lines")
    found = {}
    for name, line in lines.items():
        xs, ys = (
            # Cut off, since drawing millions of points would take minutes.
            tuple(float(value) for value in read_list(side)[:MOST_POINTS])
            for side in read_list(line)
        )
        if len(xs) != len(ys):
            raise ValueError(f"the line {name!r} has {len(xs)} x and {len(ys)} y")
        found[str(name)] = (xs, ys)
    return Plot(
        title=take_text(document, "title"),
        x_label=take_text(document, "x_label", ""),
        y_label=take_text(document, "y_label", ""),
        lines=found,
        logarithmic=document.get("logarithmic", False) is True,
    )


def take_text(row: dict[str, Any], key: str, default: str | None = None) -> str:
    """Reads a text of a row.

    Args:
        row: Row of a JSON document.
        key: Its name.
        default: What replaces a missing one; None if it must not be missing.

    Raises:
        ValueError: It is not a text.
    """
    value = row.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a text")
    return value


def take_number(row: dict[str, Any], key: str) -> float:
    """Reads a number of a row; infinity is the string "inf".

    Args:
        row: Row of a JSON document.
        key: Its name.

    Raises:
        ValueError: It is not a number.
    """
    value = row.get(key)
    if isinstance(value, str):
        value = {"inf": math.inf, "-inf": -math.inf}.get(value, value)
    # Python's True is an int, and would pass as 1.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key} is not a number")
    return float(value)


def read_list(value: Any) -> list[Any]:
    """Returns a list, or refuses.

    Args:
        value: Value of a JSON document.

    Raises:
        ValueError: It is not a list.
    """
    if not isinstance(value, list):
        raise ValueError("a list is missing")
    return value


def read_attacks(run: Path) -> tuple[AttackResult, ...]:
    """Reads all attacks on a run, in the order of their files.

    Args:
        run: The run's folder.

    Raises:
        UserError: A file is not what it should be.
    """
    found: list[AttackResult] = []
    for path, document in read_documents(run / "attacks"):
        try:
            rows = document
            if isinstance(document, dict):
                # `sordino attack` writes all its rows; the headlines are the ones for a report.
                rows = document.get("headlines", [document])
            found += [AttackResult.of(row) for row in read_list(rows)]
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not an attack's result: {error}.") from None
    return tuple(found)


def read_audits(run: Path) -> tuple[Audit, ...]:
    """Reads all audits of a run, in the order of their files.

    Args:
        run: The run's folder.

    Raises:
        UserError: A file is not what it should be.
    """
    found = []
    for path, document in read_documents(run / "audits"):
        try:
            found.append(Audit.of(document))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path} is not an audit's result: {error}.") from None
    return tuple(found)


def read_documents(folder: Path) -> list[tuple[Path, Any]]:
    """Reads the JSON files of a folder; none where there is no folder.

    Args:
        folder: Folder that holds them.

    Raises:
        UserError: A file is not JSON.
    """
    found = []
    # Sorted, so that a page does not depend on the order of the disk.
    for path in sorted(folder.glob("*.json")):
        try:
            found.append((path, json.loads(path.read_bytes())))
        except (OSError, ValueError):
            raise UserError(f"{path} cannot be read: it is not JSON.") from None
    return found
