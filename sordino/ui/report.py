"""`sordino report`: a page about one run, or about several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.ui.arguments import Json
from sordino.ui.console import messages, print_json, results

if TYPE_CHECKING:
    from sordino.report.story import Story


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folder of a run; of several runs, to compare them.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="By default RUN/report.html, or comparison.html here for several runs.")
    ] = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="Print the page to a PDF file beside it, with a browser of this machine.")] = False,
    json: Json = False,
) -> None:
    """Write a page that says in plain words what was protected, from whom, and how well."""
    from sordino.report.pdf import browser, print_page
    from sordino.report.writing import PAGE, write_comparison, written

    if pdf:
        browser()  # a mistake shows before anything is computed
    if len(runs) == 1:
        from sordino.report.page import run_page
        from sordino.report.story import story_document, told

        with messages.status("writing the report"):
            story = told(runs[0])
            page = written(run_page(story), out if out is not None else story.run.folder / PAGE)
        document = story_document(story)
    else:
        stories = compared(runs)
        page = write_comparison(stories, out if out is not None else Path("comparison.html"))
        document = {"runs": [story_document(story) for story in stories]}
    files = {"page": str(page)}
    if pdf:
        with messages.status("printing"):
            files["pdf"] = str(print_page(page))
    if json:
        print_json({**files, **document})
    else:
        results.print("Wrote " + " and ".join(files.values()), soft_wrap=True)


def compared(runs: list[Path]) -> list[Story]:
    """The stories of several runs, with the progress."""
    from sordino.report.comparison import told_alike

    with messages.status("reading the runs") as status:

        def show(done: int, of: int) -> None:
            status.update(f"run {done + 1} of {of}")

        sources: list[Any] = list(runs)
        return told_alike(sources, show)
