"""Prints the tables of convergent-dp from what was measured, the paper's values beside ours."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.convergent.measuring import CHANCE
from experiments.convergent.published import find_accuracy, find_distance
from experiments.convergent.results import Result, read_results
from experiments.markdown_tables import print_header, print_row

Series = dict[tuple[str, str, str], list[Result]]


def print_tables(folder: Path, tables: Sequence[str]) -> None:
    """Prints every table of which something was measured.

    Args:
        folder: Of the files.
        tables: Their names.
    """
    for table in tables:
        results = read_results(folder, table)
        if not results:
            continue
        print(f"\n{table}\n")
        twins = results[0].distance is not None
        if twins:
            print_distances(table, results)
        if any(result.accuracy is not None for result in results):
            print_accuracies(table, results)


def group_cells(results: Iterable[Result]) -> Series:
    """Returns the lines of every cell, over its seeds.

    Args:
        results: Of a table.
    """
    found: Series = {}
    for result in results:
        found.setdefault((result.cell, result.model, result.schedule), []).append(result)
    return found


def print_distances(table: str, results: Sequence[Result]) -> None:
    """Prints distances against rounds, with the bound and the price after the last.

    Args:
        table: Its name.
        results: Of the table.
    """
    rounds = sorted({result.rounds for result in results})
    print_header(
        "cell",
        "schedule",
        "seeds",
        *(f"T = {number}" for number in rounds),
        "at most",
        "epsilon, `rounds`",
        "epsilon, `server`",
        *(f"paper, {number}" for number in find_printed(table, results)),
    )
    for (cell, _, schedule), lines in group_cells(results).items():
        last = max(lines, key=lambda line: line.rounds)
        print_row(
            cell,
            schedule,
            len({line.seed for line in lines}),
            *(spell_mean(distances_at(lines, number)) for number in rounds),
            f"{last.bound:.4g}",
            f"{last.epsilon_rounds:.3g}",
            f"{last.epsilon_server:.3g}",
            *(
                spell_printed(find_distance(table, cell, number))
                for number in find_printed(table, results)
            ),
        )


def print_accuracies(table: str, results: Sequence[Result]) -> None:
    """Prints accuracy after the last round, with the price.

    Args:
        table: Its name.
        results: Of the table.
    """
    print_header(
        "cell",
        "schedule",
        "seeds",
        "accuracy, %",
        "paper",
        "epsilon, `rounds`",
        "epsilon, `server`",
    )
    for (cell, _, schedule), lines in group_cells(results).items():
        scored = [line for line in lines if line.accuracy is not None]
        values = [line.accuracy for line in scored if line.accuracy is not None]
        if not values:
            continue
        print_row(
            cell,
            schedule,
            len(scored),
            spell_accuracy(values, scored[-1].rounds),
            spell_printed(find_accuracy(table, cell)),
            f"{scored[-1].epsilon_rounds:,.4g}",
            f"{scored[-1].epsilon_server:,.4g}",
        )


def find_printed(table: str, results: Iterable[Result]) -> list[int]:
    """Returns the rounds after which the paper prints a distance.

    Args:
        table: Its name.
        results: Of the table.
    """
    return sorted(
        {
            result.rounds
            for result in results
            if find_distance(table, result.cell, result.rounds) is not None
        }
    )


def distances_at(lines: Iterable[Result], rounds: int) -> list[float]:
    """Returns the distances after a number of rounds, one for each seed.

    Args:
        lines: Of a cell.
        rounds: How many.
    """
    return [line.distance for line in lines if line.rounds == rounds and line.distance is not None]


def spell_mean(values: Sequence[float]) -> str:
    """Returns the mean of seeds and their spread, in four digits; nothing of none.

    Args:
        values: One for each seed.
    """
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.4g}"
    return f"{statistics.mean(values):.4g} ± {statistics.stdev(values):.2g}"


def spell_accuracy(values: Sequence[float], rounds: int) -> str:
    """Returns an accuracy in percent; a dash where it is at chance.

    Args:
        values: One for each seed.
        rounds: After which it was measured.
    """
    if max(values) < CHANCE:
        return f"- ({statistics.mean(values):.1f} after {rounds} rounds)"
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def spell_printed(value: float | None) -> str:
    """Returns what the paper prints; nothing where it prints nothing.

    Args:
        value: Of the paper.
    """
    return "" if value is None else f"{value:g}"
