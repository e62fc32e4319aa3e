"""Shows the end of a training: federation, scores, guarantee, folder, and what to type next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sordino.data import are_scores_covered
from sordino.federation.store.run import Run
from sordino.federation.store.upload_archive import is_kept
from sordino.privacy.published import find_withheld, publish_metrics
from sordino.protocol import Protocol
from sordino.protocol.errors import format_command
from sordino.report.learning import find_warnings
from sordino.report.number_formats import format_duration, format_percent
from sordino.report.phrasing import (
    TEST_RECORDS,
    describe_noise,
    describe_own_scores,
    describe_protocol,
    describe_test_records,
    find_test_source,
)
from sordino.report.price_tables import privacy_lines
from sordino.report.run_summary import find_last_scores, find_own_scores, run_document
from sordino.report.terminal_tables import facts_table, make_table

BARS = "▁▂▃▄▅▆▇█"
# For outputs without Unicode.
PLAIN_BARS = "_.:-=+*#"
STATUS_STYLES = {
    "finished": ("finished", "green"),
    "diverged": ("diverged", "red"),
    "budget": ("stopped by the budget", "yellow"),
}


def kept_lines(plan: Protocol, parameters: int, every: int) -> list[str]:
    """Says how much space kept uploads will take.

    Args:
        plan: The protocol to train.
        parameters: The number of the model's parameters.
        every: The distance, in rounds, between two that are kept; 0 keeps none.

    Returns:
        One sentence, or none where no uploads are kept.
    """
    if every == 0:
        return []
    # By the archive's own rule, so that the estimate counts what will be written.
    rounds = sum(is_kept(t, plan.rounds, every) for t in range(plan.rounds))
    # The global model of a round is kept along with its uploads.
    vectors = rounds * (1 + plan.participation.count_expected(clients=plan.clients))
    size = vectors * parameters * np.dtype(np.float32).itemsize
    return [
        f"Uploads of {rounds} rounds are kept: about {size / 1e6:,.0f} MB. "
        "They are what the server sees: keep them secret."
    ]


def summary(run: Run, encoding: str = "utf-8") -> Panel:
    """Builds the closing panel of a training.

    Args:
        run: A run that has ended.
        encoding: The encoding of the output, which decides which characters curves are drawn
            with.

    Returns:
        The panel for a terminal.
    """
    seconds = float(run.metrics["seconds"].sum())
    rows = [
        ("Trained", f"{describe_protocol(run.protocol)}; {run.facts['parameters']:,} parameters"),
        ("Result", result_line(run, encoding)),
    ]
    own = find_own_scores(run)
    if own is not None:
        rows.append(("Personal models", describe_own_scores(own)))
    warnings = find_warnings(run)
    if warnings:
        rows += label_first("Warning", warnings)
    rows += label_first("Privacy", privacy_lines(run))
    rows += [
        ("Noise", f"{describe_noise(run.protocol)}; {run.facts['noise']}"),
        (
            "Time",
            f"{format_duration(seconds)}, {run.facts['engine']} engine, "
            f"workers: {run.facts['workers']}",
        ),
        ("Run", str(run.folder)),
    ]
    report = run.folder / "report.html"
    if report.exists():
        rows.append(("Report", str(report)))
    rows += next_steps(run)
    title = Text(*STATUS_STYLES.get(run.status, (run.status, "")))
    return Panel(facts_table(rows), title=title, title_align="left", expand=False)


def next_steps(run: Run) -> list[tuple[str, str]]:
    """Lists what to type next.

    Args:
        run: A run that has ended.

    Returns:
        Rows for `facts_table`: commands and their meanings, aligned.
    """
    # Only a regression has a baseline, and classes would mean nothing there.
    if run.facts.get("baseline") is None:
        scored = "its model, class by class"
    else:
        scored = "its error, next to that of the mean"
    commands = {
        format_command("certify", run.folder): "what each adversary learns, at most",
        format_command("audit", run.folder, "--minutes", "1"): "what an adversary learns, at least",
    }
    # Attacks on uploads need kept ones.
    if run.facts.get("keep_uploads", 0) > 0:
        commands[format_command("attack", run.folder)] = "what published attacks learn from it"
    options = []
    if run.personal:
        options.append("--clients")
    commands[format_command("evaluate", run.folder, *options)] = scored
    commands["sordino new"] = "a protocol of your own to start from"
    width = max(len(command) for command in commands)
    lines = [f"{command:{width}}  {meaning}" for command, meaning in commands.items()]
    return label_first("Next", lines)


def label_first(word: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Returns rows for `facts_table`, of which only the first has a word.

    Args:
        word: The word.
        lines: The texts, at least one.

    Example:
        >>> label_first("Next", ["this", "that"])
        [('Next', 'this'), ('', 'that')]
    """
    words = [word] + [""] * (len(lines) - 1)
    return list(zip(words, lines, strict=True))


def result_line(run: Run, encoding: str = "utf-8") -> str:
    """Says how well a training went, on test records.

    Args:
        run: A run that has ended.
        encoding: The encoding of the output.

    Returns:
        A line with the last scores and, where the guarantee covers them, the curve of all.
    """
    if run.status == "diverged":
        last = int(run.metrics["round"][-1]) + 1
        return f"the model was no longer finite after round {last}; the last finite one is kept"
    final = find_last_scores(run)
    if math.isnan(final["loss"]):
        return "not scored"
    # A guarantee about the last model does not cover the scores of all rounds.
    shown = publish_metrics(run.metrics, find_withheld(run.protocol))
    if math.isnan(final["accuracy"]):
        baseline = ""
        if run.facts.get("baseline") is not None:
            baseline = f", where predicting their mean has {run.facts['baseline']:.4f}"
        # Upwards is better in every curve, and a loss falls.
        curve = sparkline(-shown["loss"], encoding)
        return f"loss {final['loss']:.4f} on {describe_test_records(run)}{baseline}  {curve}"
    accuracy = format_percent(final["accuracy"])
    curve = sparkline(shown["accuracy"], encoding)
    return f"accuracy {accuracy} on {describe_test_records(run)}, loss {final['loss']:.3f}  {curve}"


def repeats_table(runs: list[Run]) -> Table:
    """Builds a table of repeated trainings.

    Args:
        runs: The runs, which differ in their seeds.

    Returns:
        A table with one row per seed, then the mean and the spread.
    """
    table = make_table(
        {"seed": "right", "status": "left", "accuracy": "right", "loss": "right", "run": "left"},
        f"Repeats, scored on {describe_test_records(runs[0])}",
    )
    for run in runs:
        scores = find_last_scores(run)
        table.add_row(
            str(run.protocol.seed),
            run.status,
            format_percent(scores["accuracy"]),
            f"{scores['loss']:.4f}",
            str(run.folder),
        )
    table.add_section()
    spread = mean_and_spread(runs)
    accuracy = spread["accuracy"]
    loss = spread["loss"]
    table.add_row("", "mean", format_percent(accuracy["mean"]), f"{loss['mean']:.4f}", "")
    table.add_row("", "spread (std)", format_percent(accuracy["std"]), f"{loss['std']:.4f}", "")
    return table


def repeats_document(runs: list[Run]) -> dict[str, Any]:
    """Returns repeated trainings as `sordino train --repeats --json` prints them.

    Args:
        runs: The runs, which differ in their seeds.

    Returns:
        Every run, mean and spread of the last scores, and whether these are covered.
    """
    # They differ only in their seeds, so all are scored on the same records.
    source = find_test_source(runs[0])
    return {
        "runs": [run_document(run) for run in runs],
        **mean_and_spread(runs),
        "tested_on": source,
        "scores_covered": are_scores_covered(source),
    }


def mean_and_spread(runs: list[Run]) -> dict[str, dict[str, float]]:
    """Computes the mean and the sample standard deviation of the last scores.

    Args:
        runs: Repeated runs.

    Returns:
        For "loss" and "accuracy", their "mean" and "std"; the latter is nan for one run.
    """
    found = {}
    for name in ("loss", "accuracy"):
        values = np.array([find_last_scores(run)[name] for run in runs])
        deviation = math.nan
        # One repeat has no spread; zero would be read as certainty.
        if len(values) > 1:
            deviation = float(values.std(ddof=1))
        found[name] = {"mean": float(values.mean()), "std": deviation}
    return found


def sparkline(values: np.ndarray, encoding: str = "utf-8", width: int = 30) -> str:
    """Draws a curve in one line of text.

    Args:
        values: The values; those that are not finite are left out.
        encoding: The encoding of the output; without Unicode, plain characters are used.
        width: The largest number of characters.

    Returns:
        The line; empty for fewer than three values, or where all are equal.
    """
    finite = values[np.isfinite(values)]
    # Two points do not make a curve.
    if len(finite) < 3:
        return ""
    chosen = np.linspace(0, len(finite) - 1, min(width, len(finite))).round().astype(int)
    picked = finite[chosen]
    low = picked.min()
    high = picked.max()
    # Equal values have no scale.
    if high == low:
        return ""
    bars = BARS if encoding.startswith("utf") else PLAIN_BARS
    heights = (picked - low) / (high - low) * (len(bars) - 1)
    return "".join(bars[round(height)] for height in heights)


def score_rows(scores: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the scores of a model, as `sordino evaluate` prints them.

    Args:
        scores: The scores, as `evaluate_run` returns them; "clients" and "personal" hold one
            accuracy for every client.

    Returns:
        Pairs of a word and a text.
    """
    records = f"{scores['records']:,} of {scores['data']}"
    rows = [
        ("Records", f"{records}: {TEST_RECORDS[scores['tested_on']]}"),
        ("Loss", f"{scores['loss']:.4f}"),
    ]
    if scores["baseline"] is not None:
        text = f"{scores['baseline']:.4f}, always predicting the mean of these records"
        rows.append(("Baseline", text))
    if scores["accuracy"] is not None:
        rows.append(("Accuracy", format_percent(scores["accuracy"])))
        for name, share in scores["classes"].items():
            rows.append((f"  {name}", format_percent(share)))
    for key, title in (("clients", "Global model"), ("personal", "Personal models")):
        if key in scores:
            rows.append((title, _describe_shares(sorted(scores[key]))))
    return rows


def _describe_shares(shares: Sequence[float]) -> str:
    """Says how the accuracies of clients spread, which come in ascending order."""
    mean = format_percent(sum(shares) / len(shares))
    worst = format_percent(shares[0])
    best = format_percent(shares[-1])
    return (
        f"{len(shares)} clients, each on its own label distribution: "
        f"mean {mean}, worst {worst}, best {best}"
    )
