"""Reports on disk: of a run, of several side by side, and at the end of a training, which they never fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.protocol.errors import typed

if TYPE_CHECKING:
    from sordino.federation.run import Run

PAGE = "report.html"


def write_report(source: str | Path | Run, target: Path | None = None) -> Path:
    """Write the report of a run, by default into its folder as report.html.

    Raises:
        UserError: there is no run, its files are damaged, or the page cannot be written.

    Example:
        >>> write_report("runs/digits-1")  # doctest: +SKIP
        PosixPath('runs/digits-1/report.html')
    """
    from sordino.report.page import run_page
    from sordino.report.story import told

    story = told(source)
    return written(run_page(story), target if target is not None else story.run.folder / PAGE)


def write_comparison(sources: Sequence[str | Path], target: Path = Path("comparison.html")) -> Path:
    """Write a page that shows several runs side by side.

    Raises:
        UserError: fewer than two runs, one of them is damaged, or the page cannot be written.

    Example:
        >>> write_comparison(["runs/digits-1", "runs/digits-2"])  # doctest: +SKIP
        PosixPath('comparison.html')
    """
    from sordino.report.comparison import comparison_page, told_alike

    return written(comparison_page(told_alike(sources)), target)


def written(page: str, target: Path) -> Path:
    """Write a page, whole or not at all."""
    from sordino.federation.storage import write_whole, writing

    with writing(target):
        write_whole(target, page.encode())
    return target


def at_the_end(run: Run, say: Callable[[str], None]) -> None:
    """Write the report of a training that has ended. It is no part of the training: whatever goes wrong with it is only said."""
    try:
        write_report(run)
    except KeyboardInterrupt:
        say(
            f"The report was not written. The run is complete; `{typed('report', run.folder)}` writes it."
        )
    except Exception as error:  # a fault in a page must not look like a fault in a run
        reason = str(error).rstrip(".") or type(error).__name__
        say(
            f"The report could not be written ({reason}). The run is complete. Try `{typed('report', run.folder)}`."
        )


def refresh(folder: Path, say: Callable[[str], None]) -> None:
    """Write the report of a run anew if it has one, since something was found out about it."""
    from sordino.federation.run import Run

    if (folder / PAGE).exists():
        at_the_end(Run.load(folder), say)
