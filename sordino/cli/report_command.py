"""The command `sordino report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.arguments import Json, WithoutNoise
from sordino.cli.console import messages, print_json, results
from sordino.cli.option_checks import refuse_with
from sordino.cli.twin_training import train_compared_twin
from sordino.protocol import UserError

if TYPE_CHECKING:
    from sordino.report.noise_cost import NoiseCost

# A panel of the help.
ABOUT = "Said at the top of the page, and kept in the run's folder"
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="By default RUN/report.html, or comparison.html here for several runs.",
    ),
]
Pdf = Annotated[
    bool,
    typer.Option(
        "--pdf", help="Print the page to a PDF file next to it, with a browser of this machine."
    ),
]
Registry = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write a draft for the DP Deployments Registry (.yaml) instead."
    ),
]
ModelCard = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a Hugging Face model card (.md) instead."),
]
Annex = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write answers to the questions of NIST SP 800-226 and EDPB Opinion 28/2024 (.md) "
        "instead.",
    ),
]
Owner = Annotated[
    str | None, typer.Option(help="Who is responsible for the run.", rich_help_panel=ABOUT)
]
Purpose = Annotated[str | None, typer.Option(help="What the model is for.", rich_help_panel=ABOUT)]
Names = Annotated[
    str | None,
    typer.Option(help="Who prepared and reviewed the report.", rich_help_panel=ABOUT),
]


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folder of a run; of several runs, to compare them."),
    ],
    out: Out = None,
    pdf: Pdf = False,
    without_noise: WithoutNoise = False,
    registry: Registry = None,
    model_card: ModelCard = None,
    annex: Annex = None,
    owner: Owner = None,
    purpose: Purpose = None,
    names: Names = None,
    json: Json = False,
) -> None:
    """Write a page that says in plain words what was protected, from whom, and how well."""
    filings = {"registry": registry, "model_card": model_card, "annex": annex}
    files_wanted = any(target is not None for target in filings.values())
    # Every refusal comes before anything is written.
    if without_noise:
        refuse_with("--without-noise", **filings)
        refuse_other_options(runs, out, pdf)
    if files_wanted:
        refuse_with("--registry, --model-card and --annex", out=out, pdf=pdf)
    said = {"owner": owner, "purpose": purpose, "names": names}
    if any(text is not None for text in said.values()):
        keep_said(runs, said)
    if without_noise:
        show_noise_cost(runs[0], None, json)
    elif files_wanted:
        write_filings(runs, filings, json=json)
    else:
        write_pages(runs, out, pdf, json)


def write_pages(runs: list[Path], out: Path | None, pdf: bool, json: bool) -> None:
    """Writes the page of a run, or one that compares several.

    Args:
        runs: The folders of the runs.
        out: The file; None for the usual one.
        pdf: Whether the page is printed to a PDF file too.
        json: Print one JSON document and nothing else.
    """
    from sordino.report.pdf import find_browser, print_page
    from sordino.report.writing import PAGE, write_page

    if pdf:
        # A missing browser shows before anything is computed.
        find_browser()
    if len(runs) == 1:
        page, document = render_run(runs[0])
        # With the run's other files, where `sordino verify` looks for it.
        target = runs[0] / PAGE
    else:
        page, document = render_comparison(runs)
        # In the working folder: it belongs to none of the runs.
        target = Path("comparison.html")
    if out is not None:
        target = out
    write_page(page, target)
    files = {"page": str(target)}
    if pdf:
        with messages.status("printing"):
            files["pdf"] = str(print_page(target))
    if json:
        print_json({**files, **document})
    else:
        results.print("Wrote " + " and ".join(files.values()), soft_wrap=True)


def keep_said(runs: list[Path], said: dict[str, str | None]) -> None:
    """Keeps a run's owner, purpose and names in its folder, for this page and all later ones.

    Args:
        runs: The folder of one run.
        said: Owner, purpose and names; None for one that is not stated.

    Raises:
        UserError: Several runs, no run, or a text that is not one line.
    """
    from sordino.federation.store.run import Run
    from sordino.report.about import keep_about

    if len(runs) != 1:
        raise UserError("--owner, --purpose and --names are about one run: give one folder.")
    # It is a run, or nothing is written.
    keep_about(Run.load(runs[0]).folder, **said)


def write_filings(runs: list[Path], targets: dict[str, Path | None], *, json: bool) -> None:
    """Writes filings about a run, such as a model card.

    Args:
        runs: The folder of one run.
        targets: The file of each kind of filing; None for those that are not wanted.
        json: Whether to print one JSON document and nothing else.

    Raises:
        UserError: Several runs, a run without a guarantee, or a file that cannot be written.
    """
    from sordino.report.filings import draft_registry_entry, write_model_card
    from sordino.report.review_annex import write_annex
    from sordino.report.run_summary import summarize_run
    from sordino.report.writing import write_page

    writers = {
        "registry": draft_registry_entry,
        "model_card": write_model_card,
        "annex": write_annex,
    }
    if len(runs) != 1:
        raise UserError("--registry, --model-card and --annex are about one run: give one folder.")
    with messages.status("pricing the run"):
        # Once for all files, so that they cannot state different numbers.
        summary = summarize_run(runs[0])
        files = {
            kind: str(write_page(writers[kind](summary), target))
            for kind, target in targets.items()
            if target is not None
        }
    if json:
        print_json(files)
        return
    results.print("Wrote " + " and ".join(files.values()), soft_wrap=True)
    results.print("What only you know is marked TO BE FILLED IN.", soft_wrap=True)


def refuse_other_options(runs: list[Path], out: Path | None, pdf: bool) -> None:
    """Refuses several runs, another place or a PDF file, together with --without-noise.

    Args:
        runs: The folders of the runs.
        out: The file of the page; None for the usual one.
        pdf: Whether a PDF file is wanted.

    Raises:
        UserError: Several runs, a file elsewhere, or a PDF file.
    """
    if len(runs) > 1:
        raise UserError("--without-noise compares one run with its twin: give one folder.")
    if out is not None or pdf:
        raise UserError(
            "--without-noise: the page is not private and stays in the run's folder, below "
            "private/. Leave out --out and --pdf."
        )


def show_noise_cost(folder: Path, workers: int | None, json: bool) -> None:
    """Trains a run's twin without noise, writes the comparison and says what noise cost.

    Args:
        folder: Folder of the run.
        workers: Worker processes; None for one per core.
        json: Print one JSON document and nothing else.
    """
    page, cost = write_comparison_with_twin(folder, workers)
    if json:
        print_json({"page": str(page), "without_noise": cost.as_document()})
        return
    results.print(cost.sentence, soft_wrap=True)
    results.print(f"Wrote {page}", soft_wrap=True)


def write_comparison_with_twin(folder: Path, workers: int | None) -> tuple[Path, NoiseCost]:
    """Trains a run's twin without noise, and writes the comparison below private/.

    Args:
        folder: Folder of the run.
        workers: Worker processes; None for one per core.

    Returns:
        The page and the comparison.
    """
    from sordino.report.noise_cost import compare_with_twin, write_noise_cost
    from sordino.report.page import run_page
    from sordino.report.run_summary import summarize_run

    twin = train_compared_twin(folder, workers)
    with messages.status("writing the report"):
        summary = summarize_run(folder)
        cost = compare_with_twin(summary.run, twin)
        page = write_noise_cost(summary.run, cost, run_page(summary, cost))
    return page, cost


def render_run(run: Path) -> tuple[str, dict[str, Any]]:
    """Returns the page of a run, and its numbers.

    Args:
        run: The run's folder.
    """
    from sordino.report.page import run_page
    from sordino.report.run_summary import summarize_run, summary_document

    with messages.status("writing the report"):
        summary = summarize_run(run)
        return run_page(summary), summary_document(summary)


def render_comparison(runs: list[Path]) -> tuple[str, dict[str, Any]]:
    """Returns the page of several runs, and its numbers.

    Args:
        runs: Their folders.
    """
    from sordino.report.comparison import comparison_document, comparison_page, summarize_runs

    with messages.status("reading the runs") as status:
        summaries = summarize_runs(runs, lambda done, of: status.update(f"run {done + 1} of {of}"))
        return comparison_page(summaries), comparison_document(summaries)
