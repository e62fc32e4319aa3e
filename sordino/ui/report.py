"""`sordino report`: a page about one run, or about several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.ui.arguments import Json
from sordino.ui.console import messages, print_json, results


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folder of a run; of several runs, to compare them."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="By default RUN/report.html, or comparison.html here for several runs.",
        ),
    ] = None,
    pdf: Annotated[
        bool,
        typer.Option(
            "--pdf", help="Print the page to a PDF file beside it, with a browser of this machine."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Write a page that says in plain words what was protected, from whom, and how well."""
    from sordino.report.pdf import browser, print_page
    from sordino.report.writing import PAGE, written

    if pdf:
        browser()  # a mistake shows before anything is computed
    page, document = one_run(runs[0]) if len(runs) == 1 else several(runs)
    target = (
        out if out is not None else runs[0] / PAGE if len(runs) == 1 else Path("comparison.html")
    )
    written(page, target)
    files = {"page": str(target)}
    if pdf:
        with messages.status("printing"):
            files["pdf"] = str(print_page(target))
    if json:
        print_json({**files, **document})
    else:
        results.print("Wrote " + " and ".join(files.values()), soft_wrap=True)


def one_run(run: Path) -> tuple[str, dict[str, Any]]:
    """The page of a run, and its numbers."""
    from sordino.report.page import run_page
    from sordino.report.story import story_document, told

    with messages.status("writing the report"):
        story = told(run)
        return run_page(story), story_document(story)


def several(runs: list[Path]) -> tuple[str, dict[str, Any]]:
    """The page of several runs, and its numbers."""
    from sordino.report.comparison import comparison_document, comparison_page, told_alike

    with messages.status("reading the runs") as status:
        stories = told_alike(runs, lambda done, of: status.update(f"run {done + 1} of {of}"))
        return comparison_page(stories), comparison_document(stories)
