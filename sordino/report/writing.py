"""Writes reports to files: of one run, of several, and at the end of a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.protocol.errors import format_command

if TYPE_CHECKING:
    from sordino.federation.store.run import Run

PAGE = "report.html"


def write_report(source: str | Path | Run, target: Path | None = None) -> Path:
    """Writes the report of a run.

    Args:
        source: The run, or its folder.
        target: The file; by default report.html in the run's folder.

    Returns:
        The file.

    Raises:
        UserError: There is no run, its files are damaged, or the page cannot be written.

    Example:
        >>> write_report("runs/digits-1")  # doctest: +SKIP
        PosixPath('runs/digits-1/report.html')
    """
    from sordino.report.page import run_page
    from sordino.report.run_summary import summarize_run

    summary = summarize_run(source)
    if target is None:
        target = summary.run.folder / PAGE
    return write_page(run_page(summary), target)


def write_comparison(sources: Sequence[str | Path], target: Path = Path("comparison.html")) -> Path:
    """Writes a page that shows several runs side by side.

    Args:
        sources: The folders of the runs.
        target: The file.

    Returns:
        The file.

    Raises:
        UserError: Fewer than two runs, one of them is damaged, or the page cannot be written.

    Example:
        >>> write_comparison(["runs/digits-1", "runs/digits-2"])  # doctest: +SKIP
        PosixPath('comparison.html')
    """
    from sordino.report.comparison import comparison_page, summarize_runs

    return write_page(comparison_page(summarize_runs(sources)), target)


def write_page(page: str, target: Path) -> Path:
    """Writes a page, whole or not at all.

    Args:
        page: The HTML.
        target: The file.

    Returns:
        The file.

    Raises:
        UserError: It cannot be written.
    """
    from sordino.federation.store.files import write_whole, writing

    with writing(target):
        write_whole(target, page.encode())
    return target


def write_final_report(run: Run, say: Callable[[str], None]) -> None:
    """Writes the report of a training that has ended. Errors become messages.

    The report is not part of the training, which must not fail because of it.

    Args:
        run: What was trained.
        say: Prints a message.
    """
    command = format_command("report", run.folder)
    try:
        write_report(run)
    except KeyboardInterrupt:
        say(f"The report was not written. The run is complete; `{command}` writes it.")
    except Exception as error:
        # An error in a page must not look like an error of the run.
        reason = str(error).rstrip(".") or type(error).__name__
        say(f"The report could not be written ({reason}). The run is complete. Try `{command}`.")


def rewrite_report(folder: Path, say: Callable[[str], None]) -> None:
    """Writes the report of a run again, if there is one, after an audit or an attack of the run.

    Args:
        folder: The run's folder.
        say: Prints a message.
    """
    from sordino.federation.store.run import Run

    if (folder / PAGE).exists():
        write_final_report(Run.load(folder), say)
