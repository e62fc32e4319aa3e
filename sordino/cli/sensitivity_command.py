"""Measures sensitivity for `sordino audit --sensitivity`: a table, a plot and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.cli.console import messages, print_json, results
from sordino.cli.work_progress import WorkProgress
from sordino.protocol import Protocol

if TYPE_CHECKING:
    from sordino.audit.twin_sweeps import Sensitivity


def show_twins(
    subject: Protocol | Path,
    sweep: str | None,
    values: str | None,
    seeds: int,
    out: Path | None,
    json: bool,
) -> None:
    """Measures the sensitivity of a protocol, in a plot and a table.

    Args:
        subject: A protocol, or the folder of a run.
        sweep: The key that is varied; None for the protocol unchanged.
        values: Its values, separated by commas outside of brackets and quotes.
        seeds: Twins for each value.
        out: The plot; None for a file named after the key.
        json: Print one JSON document and nothing else.
    """
    from sordino.audit.audit_subject import load_subject
    from sordino.report.sensitivity_plots import default_plot_name
    from sordino.sweeps.sweep_request import split_outside_brackets

    protocol = load_subject(subject).protocol
    listed = None
    if values is not None:
        parts = [part.strip() for part in split_outside_brackets(values)]
        # A comma at the end adds no value.
        listed = [part for part in parts if part]
    if out is None:
        key = None
        if sweep is not None:
            key = sweep.split(".")[-1]
        out = Path(default_plot_name(key))
    run_sensitivity(protocol, sweep=sweep, values=listed, seeds=seeds, out=out, json=json)


def run_sensitivity(
    protocol: Protocol,
    *,
    sweep: str | None,
    values: list[Any] | None,
    seeds: int,
    out: Path,
    json: bool,
) -> None:
    """Measures the distance of twins, draws it, and prints it.

    Args:
        protocol: The protocol to train, twice for every seed and value.
        sweep: The key of the file that is varied; None for the protocol unchanged.
        values: Its values, spelled as in the file; None for the paper's values.
        seeds: How many seeds, from the protocol's own seed on.
        out: The plot, a .png, .svg or .pdf file; or a folder for it, made if necessary.
        json: Print one JSON document and nothing else.

    Raises:
        UserError: A key that cannot vary, no values, fewer than one seed, a protocol that cannot be
            trained, or a plot that cannot be written.
    """
    from sordino.audit.twin_sweeps import make_variants, refuse_bad_seeds
    from sordino.report.sensitivity_plots import draw_sensitivity, plot_path

    refuse_bad_seeds(seeds)
    # A mistake shows before a folder is made.
    make_variants(protocol, sweep, values)
    target = plot_path(out, sweep)
    rows = list(measure_rows(protocol, sweep, values, seeds))
    draw_sensitivity(rows, sweep, target)
    show_sensitivity(rows, sweep, json=json)
    messages.print(f"Plot: {target}", soft_wrap=True)


def measure_rows(
    protocol: Protocol,
    key: str | None,
    values: Sequence[Any] | None,
    seeds: int,
    *,
    score: bool = False,
) -> Iterator[Sensitivity]:
    """Yields the rows of a sweep as they are found, with a live display.

    Args:
        protocol: The protocol to train.
        key: The key that is varied; None for the protocol unchanged.
        values: Its values; None for the paper's values.
        seeds: Twins for each value.
        score: Whether the models are scored too.
    """
    from sordino.audit.twin_sweeps import make_variants, sweep_key

    # Values of a sweep may differ in cost, so that progress counts local steps and not values.
    work = seeds * sum(
        variant.protocol.rounds * estimate_effort(variant.protocol)
        for variant in make_variants(protocol, key, values)
    )
    with WorkProgress("twins", work) as progress:
        yield from sweep_key(
            protocol,
            key,
            values,
            seeds=seeds,
            score=score,
            on_round=lambda plan: progress.advance(estimate_effort(plan)),
        )


def estimate_effort(protocol: Protocol) -> float:
    """Returns how much work a round is, in local steps, to estimate the time left.

    Args:
        protocol: The protocol to train.
    """
    return max(
        1.0, protocol.participation.count_expected(clients=protocol.clients) * protocol.local.steps
    )


def show_sensitivity(rows: Sequence[Sensitivity], key: str | None, *, json: bool = False) -> None:
    """Prints the rows of a sweep, as a table or as JSON.

    Args:
        rows: The rows that were measured.
        key: The key that was varied.
        json: Print one JSON document and nothing else.
    """
    from sordino.audit.twin_sweeps import explain_zeros
    from sordino.report.sensitivity_plots import sensitivity_table

    note = explain_zeros(rows)
    if json:
        print_json({"sweep": key, "rows": [row.as_document() for row in rows], "note": note})
        return
    results.print(sensitivity_table(rows, key))
    if note is not None:
        results.print(note, soft_wrap=True)
    results.print(
        "Measured on one pair of data sets per seed, one record replaced; "
        "the bound holds for every pair.",
        soft_wrap=True,
    )
