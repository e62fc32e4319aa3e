"""What is said when a training ends: what was trained, how well, where it is, what to type next."""

from __future__ import annotations

import math

import numpy as np
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sordino.federation.run import Run
from sordino.federation.uploads import is_kept
from sordino.privacy.published import find_withheld, published_metrics
from sordino.protocol import Protocol
from sordino.protocol.errors import typed
from sordino.report.formats import duration, percent
from sordino.report.story import last_scores
from sordino.report.words import described, noise_line, scored_on
from sordino.ui.console import facts_table, results
from sordino.ui.prices import privacy_lines

BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"


def kept_lines(plan: Protocol, parameters: int, every: int) -> list[str]:
    """How much space kept uploads will take, where they are kept."""
    if every == 0:
        return []
    rounds = sum(is_kept(t, plan.rounds, every) for t in range(plan.rounds))
    vectors = rounds * (1 + plan.participation.expected(clients=plan.clients))
    size = vectors * parameters * np.dtype(np.float32).itemsize
    return [
        f"Uploads are kept, of {rounds} rounds: about {size / 1e6:,.0f} MB. They are what the server sees; keep them as secret."
    ]


def summary(run: Run) -> Panel:
    """The closing panel of a training."""
    rows = [
        ("Trained", f"{described(run.protocol)}; {run.facts['parameters']:,} parameters"),
        ("Result", result_line(run)),
        *[("Privacy" if first == 0 else "", line) for first, line in enumerate(privacy_lines(run))],
        ("Noise", f"{noise_line(run.protocol)}; {run.facts['noise']}"),
        (
            "Time",
            f"{duration(float(run.metrics['seconds'].sum()))}, {run.facts['engine']} engine, workers: {run.facts['workers']}",
        ),
        ("Run", str(run.folder)),
        *(
            [("Report", str(run.folder / "report.html"))]
            if (run.folder / "report.html").exists()
            else []
        ),
        *next_steps(run),
    ]
    words = {
        "finished": ("finished", "green"),
        "diverged": ("diverged", "red"),
        "budget": ("stopped by the budget", "yellow"),
    }
    title = Text(*words.get(run.status, (run.status, "")))
    return Panel(facts_table(rows), title=title, title_align="left", expand=False)


def next_steps(run: Run) -> list[tuple[str, str]]:
    """What to type next, aligned."""
    scored = (
        "its model, class by class"
        if run.facts.get("baseline") is None
        else "its error, beside that of the mean"
    )
    kept = run.facts.get("keep_uploads", 0) > 0
    attacked = {typed("attack", run.folder): "what published attacks get out of it"} if kept else {}
    commands = {
        typed("certify", run.folder): "what each adversary learns, at most",
        typed("audit", run.folder): "what an adversary learns, at least",
        **attacked,
        typed("evaluate", run.folder, *(["--clients"] if run.personal else [])): scored,
        "sordino new": "a protocol of your own to start from",
    }
    width = max(len(command) for command in commands)
    words = ["Next", *[""] * (len(commands) - 1)]
    return [
        (word, f"{command:{width}}  {meaning}")
        for word, (command, meaning) in zip(words, commands.items(), strict=True)
    ]


def result_line(run: Run) -> str:
    """How well it went, on test records."""
    if run.status == "diverged":
        return f"the model was no longer finite after round {int(run.metrics['round'][-1]) + 1}; the last finite one is kept"
    final = last_scores(run)
    # A curve of all rounds is more than a promise about the last model covers.
    shown = published_metrics(run.metrics, find_withheld(run.protocol))
    if math.isnan(final["loss"]):
        return "not scored"
    if math.isnan(final["accuracy"]):
        beside = (
            f", where predicting their mean has {run.facts['baseline']:.4f}"
            if run.facts.get("baseline") is not None
            else ""
        )
        return f"loss {final['loss']:.4f} on {scored_on(run)}{beside}  {sparkline(-shown['loss'])}"
    return f"accuracy {percent(final['accuracy'])} on {scored_on(run)}, loss {final['loss']:.3f}  {sparkline(shown['accuracy'])}"


def repeats_table(runs: list[Run]) -> Table:
    """One row per seed, then mean and spread."""
    table = Table(title="Repeats", title_justify="left")
    for column, justify in (
        ("seed", "right"),
        ("status", "left"),
        ("accuracy", "right"),
        ("loss", "right"),
        ("run", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for run in runs:
        scores = last_scores(run)
        table.add_row(
            str(run.protocol.seed),
            run.status,
            percent(scores["accuracy"]),
            f"{scores['loss']:.4f}",
            str(run.folder),
        )
    table.add_section()
    spread = mean_and_spread(runs)
    accuracy, loss = spread["accuracy"], spread["loss"]
    table.add_row("", "mean", percent(accuracy["mean"]), f"{loss['mean']:.4f}", "")
    table.add_row("", "spread (std)", percent(accuracy["std"]), f"{loss['std']:.4f}", "")
    return table


def mean_and_spread(runs: list[Run]) -> dict[str, dict[str, float]]:
    """Mean and sample standard deviation over repeated runs."""
    out = {}
    for name in ("loss", "accuracy"):
        values = np.array([last_scores(run)[name] for run in runs])
        out[name] = {
            "mean": float(values.mean()),
            "std": float(values.std(ddof=1)) if len(values) > 1 else math.nan,
        }
    return out


def sparkline(values: np.ndarray, width: int = 30) -> str:
    """A curve in one line of text; of plain letters where the output can show no others."""
    known = values[np.isfinite(values)]
    if len(known) < 3:
        return ""
    picked = known[np.linspace(0, len(known) - 1, min(width, len(known))).round().astype(int)]
    low, high = picked.min(), picked.max()
    if high == low:
        return ""
    bars = BARS if results.encoding.startswith("utf") else PLAIN_BARS
    return "".join(bars[round((value - low) / (high - low) * (len(bars) - 1))] for value in picked)
