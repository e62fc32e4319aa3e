"""Renders the page of one run."""

from __future__ import annotations

import json
import time
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sordino.privacy.guarantee import MEANINGFUL, format_delta
from sordino.protocol import dumps
from sordino.protocol.documents import to_json_value
from sordino.protocol.errors import format_command
from sordino.protocol.views import UNIT_IN_WORDS
from sordino.report.attack_figures import draw_attack_plots
from sordino.report.caveats import list_caveats, list_warnings
from sordino.report.deployments import REGISTRY, deployment_rows
from sordino.report.evidence import Audit
from sordino.report.figures import draw_figures
from sordino.report.number_formats import (
    format_cases_of_100,
    format_lower_bound,
    format_upper_bound,
    state_epsilon,
)
from sordino.report.phrasing import (
    describe_ending,
    describe_own_scores,
    describe_protocol,
    describe_test_records,
    name_adversary,
    state_headline,
)
from sordino.report.provenance import list_provenance
from sordino.report.run_prices import choose_client_view
from sordino.report.run_summary import (
    RunSummary,
    find_own_scores,
    has_own_files,
    list_known_scores,
    summary_document,
)
from sordino.report.tiles import explain_headline, list_tiles
from sordino.report.view_figure import format_epsilons, format_measured

if TYPE_CHECKING:
    from jinja2 import Environment

    from sordino.report.noise_cost import NoiseCost

ADJACENCY_WORDS = {
    "replace-one": "Two data sets are neighbours if the unit that is hidden is replaced by another "
    "in one of them.",
    "add-or-remove": "Two data sets are neighbours if the unit that is hidden is in one of them "
    "and not in the other.",
}
# The largest number of characters of a protocol that are shown.
LONGEST_PROTOCOL = 20_000


# Templates are read once.
@cache
def environment() -> Environment:
    """Returns the templates; everything that is put into them is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("sordino.report"),
        autoescape=True,
        # A misspelt name in a template must fail, and not print an empty text.
        undefined=StrictUndefined,
        trim_blocks=True,
    )


def render_page(template: str, document: dict[str, Any], **values: Any) -> str:
    """Renders a page from its template, with its machine-readable block.

    Args:
        template: The name of the template's file.
        document: The content of the machine-readable block.
        **values: The values that the template shows, by name.
    """
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    page = environment().get_template(template)
    return page.render(version=version("sordino"), made=made, block=embed_json(document), **values)


def embed_json(document: dict[str, Any]) -> str:
    """Returns JSON that cannot end the element it is in.

    Args:
        document: The document to embed.
    """
    # NaN is no JSON, and browsers would refuse the whole block.
    text = json.dumps(to_json_value(document), allow_nan=False, separators=(",", ":"))
    # In a script element `</script>` would end it, and the rest would run as part of the page.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def run_page(summary: RunSummary, cost: NoiseCost | None = None) -> str:
    """Renders the report of a run as one HTML file.

    Args:
        summary: Summary of the run.
        cost: The scores of the same training without noise, for a page that is not published.
    """
    document = summary_document(summary)
    if cost is not None:
        document["without_noise"] = cost.as_document()
    view, unit, delta = summary.headline
    judged = [
        (name, claimed, f"{audit.view}, {audit.unit}", verdict)
        for audit in summary.audits
        for name, claimed, verdict in audit.claims
    ]
    return render_page(
        "run.html",
        document,
        summary=summary,
        cost=cost,
        described=describe_protocol(summary.run.protocol),
        ended=describe_ending(summary.run.status),
        claim=state_headline(summary.main, delta),
        meaning=explain_headline(summary),
        warnings=list_warnings(summary),
        tiles=list_tiles(summary),
        adjacency=ADJACENCY_WORDS[summary.main.adjacency],
        views=view_rows(summary),
        delta=format_delta(delta),
        unit=UNIT_IN_WORDS[unit],
        figures=draw_figures(summary),
        spent_text=describe_spending(summary),
        learning_text=describe_scores(summary),
        own_models_text=describe_own_models_of(summary),
        clients_text=describe_clients(summary),
        partition_text=describe_missing_partition(summary),
        audits=[audit_row(audit) for audit in summary.audits],
        judged=judged,
        audit_command=format_command("audit", summary.run.folder, "--view", view, "--minutes", "1"),
        attack_plots=draw_attack_plots(summary),
        without_noise=any(attack.name.endswith(", noise 0") for attack in summary.attacks),
        limits=list_caveats(summary),
        provenance=list_provenance(summary),
        protocol=shorten_protocol(dumps(summary.run.protocol)),
        derivations=list_derivations(summary),
        deployments=deployment_rows(),
        registry=REGISTRY,
    )


def view_rows(summary: RunSummary) -> list[dict[str, Any]]:
    """Returns the rows of the table of adversaries.

    Args:
        summary: Summary of the run.
    """
    rows = []
    for guarantee in summary.guarantees[summary.headline.unit]:
        view = guarantee.view
        record, client = format_epsilons(summary, view)
        rows.append(
            {
                "main": view == summary.headline.view,
                "who": name_adversary(view),
                "view": str(view),
                "sees": guarantee.sees,
                "record": record,
                "client": client,
                "right": format_cases_of_100(summary.odds[view]),
                "measured": format_measured(summary, view),
            }
        )
    return rows


def describe_spending(summary: RunSummary) -> str:
    """Says what was spent where no figure shows it.

    Args:
        summary: Summary of the run.
    """
    epsilon = summary.main.epsilon(summary.headline.delta)
    if epsilon == 0:
        return "Nothing was spent."
    if epsilon > MEANINGFUL:
        return f"There is {format_upper_bound(epsilon)} to what was spent."
    return f"Spent, at most: {state_epsilon(epsilon)}."


def describe_scores(summary: RunSummary) -> str:
    """Says how the last model scored where no figure shows it.

    Args:
        summary: Summary of the run.
    """
    scores = list_known_scores(summary.run)
    if not scores:
        return "The model was not scored."
    text = ", ".join(f"{name} {value}" for name, value in scores)
    return f"The last model on {describe_test_records(summary.run)}: {text}."


def describe_own_models_of(summary: RunSummary) -> str:
    """Says how accurate clients' personal models are; nothing where there are none, or no score.

    Args:
        summary: Summary of the run.
    """
    scores = find_own_scores(summary.run)
    if scores is None:
        return ""
    return f"Clients' personal models: {describe_own_scores(scores)}."


def describe_clients(summary: RunSummary) -> str:
    """Says how often clients took part, and what each has spent, once where all spent the same.

    Args:
        summary: Summary of the run.
    """
    # How often a client took part tells who took part.
    if summary.withheld.draw:
        return (
            "Who took part, and how often, is left out: "
            "the guarantee relies on the adversary not knowing it."
        )
    total = summary.run.protocol.clients
    counts = {row.rounds for row in summary.clients}
    text = f"{total:,} clients took part in {min(counts):,} to {max(counts):,} rounds."
    if len(counts) == 1:
        text = f"All {total:,} clients took part in {min(counts):,} rounds."
    epsilons = {row.epsilon for row in summary.clients if row.epsilon is not None}
    # Where clients have personal budgets, one number for all would be wrong; and a figure shows
    # clients that spent different amounts.
    if len(epsilons) == 1 and not summary.run.protocol.client:
        bound = state_epsilon(epsilons.pop())
        view = choose_client_view(summary.run, summary.headline)
        text += f" Given who contributed, each has spent at most {bound} in the view {view}."
        if bound != state_epsilon(summary.main.epsilon(summary.headline.delta)):
            text += " The headline does not rely on who contributed."
    return text


def describe_missing_partition(summary: RunSummary) -> str:
    """Says why no figure shows which client has which labels.

    Args:
        summary: Summary of the run.
    """
    if has_own_files(summary.run.protocol):
        return (
            "Which client has which labels is private, and left out: one record would change it. "
            "The owner has it (partition.json in the run's folder)."
        )
    return "Which client has which labels was not recorded."


def audit_row(audit: Audit) -> tuple[str, ...]:
    """Returns an audit as a row of the table.

    Args:
        audit: What was found.
    """
    name = f"{audit.view}, one {audit.unit}"
    if audit.given:
        name += f", given {audit.given}"
    measured = format_lower_bound(audit.epsilon_lower)
    if audit.epsilon_lower is not None and audit.confidence is not None:
        measured += f" ({100 * audit.confidence:g} % sure)"
    return (
        name,
        measured,
        format_upper_bound(audit.certified),
        format_delta(audit.delta),
        f"{audit.trainings:,}",
        audit.verdict,
        audit.engine or "not compared",
    )


def shorten_protocol(text: str) -> str:
    """Returns the beginning of a protocol that is very long.

    Args:
        text: The protocol file.
    """
    if len(text) <= LONGEST_PROTOCOL:
        return text
    rest = len(text) - LONGEST_PROTOCOL
    return f"{text[:LONGEST_PROTOCOL]}\n# ... and {rest:,} more characters, in protocol.toml"


def list_derivations(summary: RunSummary) -> list[dict[str, Any]]:
    """Lists the derivation of each bound.

    Args:
        summary: Summary of the run.

    Returns:
        A dictionary for every derivation: its "title", its "lines", and the "views" that it serves,
        each with its bound and with what its adversary sees.
    """
    rows: list[dict[str, Any]] = []
    for unit, guarantees in summary.guarantees.items():
        groups: dict[tuple[str, ...], dict[str, Any]] = {}
        for one in guarantees:
            # The first line says what the adversary sees; views often share the others.
            group = groups.setdefault(
                (one.method, *one.derivation[1:]),
                {
                    "title": f"About one {unit}: {one.method}",
                    "views": [],
                    "lines": one.derivation[1:],
                },
            )
            epsilon = state_epsilon(one.epsilon(summary.headline.delta))
            first = " ".join(one.derivation[:1])
            group["views"].append((f"{one.view}: {epsilon}", first))
        rows += groups.values()
    return rows
