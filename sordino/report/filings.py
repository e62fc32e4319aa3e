"""Drafts what is filed about a run: an entry of the DP Deployments Registry, and a model card.

What the run's folder says is filled in, and what only its owner knows is marked. Neither shows
anything that the run's page does not show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from typing import Any

from sordino.privacy.guarantee import MEANINGFUL, Guarantee, format_delta
from sordino.protocol import UserError
from sordino.protocol.version import own_version
from sordino.report.caveats import list_caveats
from sordino.report.evidence import Audit
from sordino.report.number_formats import format_lower_bound, format_upper_bound
from sordino.report.phrasing import describe_noise, describe_protocol, describe_test_records
from sordino.report.run_summary import RunSummary, list_known_scores

# Stands where the owner of a run has to write something.
TO_FILL = "TO BE FILLED IN"
# Neighbouring data sets in the words of the registry.
NEIGHBOURS = {
    "replace-one": "Two data sets are adjacent if one {unit} of one is replaced by another.",
    "add-or-remove": "Two data sets are adjacent if one {unit} contributes to one and not to the "
    "other; sizes are public and stay.",
}
UNITS_IN_FULL = {"record": "record of a client", "client": "client with all its records"}


def build_registry_entry(summary: RunSummary, published: str) -> dict[str, Any]:
    """Returns an entry for the public registry of deployments of OpenDP and NIST.

    Args:
        summary: Summary of a finished run.
        published: Date of publication, as YYYY-MM-DD.

    Returns:
        A document that fits the registry's schema; strings that only the owner can write say so.

    Raises:
        UserError: The run promises no finite epsilon, so that there is nothing to register.
    """
    guarantee = summary.main
    delta = summary.headline.delta
    parameters = _state_parameters(guarantee, delta)
    return {
        "url_slug": _make_slug(summary.name),
        # The owner completes and submits it: writing a file registers nothing.
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": summary.name,
                "data_curators": [summary.about.owner or TO_FILL],
                "intended_use": summary.about.purpose or TO_FILL,
                "data_product_type": "Machine learning model",
                "data_product_region": TO_FILL,
                "description": describe_protocol(summary.run.protocol),
                "publication_date": published,
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": TO_FILL,
                "unprotected_quantities": _join_caveats(summary),
            },
            "privacy_loss": _state_loss(guarantee, delta, parameters),
            "deployment_model": _state_model(summary),
            "accounting": {
                "post_processing": "Everything that is computed from uploads.",
                "composition": " ".join(guarantee.derivation),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": (
                    f"{TO_FILL}: how limits, clip and rates were chosen, and whether private "
                    "records were looked at."
                ),
                "mechanisms": _state_mechanisms(summary),
                "justification": TO_FILL,
            },
            "administrative": {"registry_authors": [summary.about.names or TO_FILL]},
        },
    }


def draft_registry_entry(summary: RunSummary) -> str:
    """Returns an entry for the registry, dated today, as YAML.

    Args:
        summary: Summary of a finished run.
    """
    return write_yaml(build_registry_entry(summary, date.today().isoformat()))


def write_yaml(document: Mapping[str, Any]) -> str:
    """Returns a document of tables, lists, strings and numbers as YAML.

    Args:
        document: The document.

    Example:
        >>> print(write_yaml({"tier": 3, "names": ["a"], "inner": {"x": "y: z"}}), end="")
        tier: 3
        names:
          - "a"
        inner:
          x: "y: z"
    """
    return "".join(_write_lines(document, ""))


def write_model_card(summary: RunSummary) -> str:
    """Returns a Hugging Face model card with a section about privacy.

    Args:
        summary: Summary of a finished run.
    """
    run = summary.run
    _, unit, delta = summary.headline
    results = [f"- {name}: {value}" for name, value in list_known_scores(run)] or ["- not scored"]
    audits = [state_audit(audit) for audit in summary.audits]
    caveats = [
        f"- **{caveat.title}.** {caveat.text}" for caveat in list_caveats(summary, of_page=False)
    ]
    return "\n".join(
        [
            "---",
            "library_name: sordino",
            "tags: [differential-privacy, federated-learning]",
            f"license: {TO_FILL}",
            "---",
            "",
            f"# {summary.name}",
            "",
            f"{describe_protocol(run.protocol)}. Trained with Sordino {own_version()}.",
            "",
            "## Intended use",
            "",
            f"{TO_FILL}: by whom, for what, and for what not.",
            "",
            "## Results",
            "",
            f"On {describe_test_records(run)}:",
            "",
            *results,
            "",
            "## Privacy",
            "",
            f"{summary.main.sentence(delta)}",
            "",
            f"Noise: {describe_noise(run.protocol)}. Neighbouring data sets: "
            f"{summary.main.adjacency}; unit: one {UNITS_IN_FULL[unit]}; "
            f"delta = {format_delta(delta)}.",
            "",
            *tabulate_views(summary),
            "",
            "## Measured",
            "",
            *(audits or ["- nothing: `sordino audit` measures what an adversary learns at least"]),
            "",
            "## Not protected",
            "",
            *caveats,
            "",
        ]
    )


def tabulate_views(summary: RunSummary) -> list[str]:
    """Returns a table, in Markdown, of what each adversary learns at most.

    Args:
        summary: Summary of a run.
    """
    _, unit, delta = summary.headline
    rows = ["| view | the adversary | epsilon, at most |", "|---|---|---|"]
    for guarantee in summary.guarantees[unit]:
        epsilon = format_upper_bound(guarantee.epsilon(delta))
        if guarantee.condition:
            epsilon += f" ({guarantee.condition})"
        rows.append(f"| `{guarantee.view}` | {guarantee.view.adversary} | {epsilon} |")
    return rows


def state_audit(audit: Audit) -> str:
    """Returns what an audit measured, as an item of a list in Markdown.

    Args:
        audit: What was found.
    """
    measured = "no lower bound"
    if audit.epsilon_lower is not None:
        measured = f"epsilon of at least {format_lower_bound(audit.epsilon_lower)}"
    certified = format_upper_bound(audit.certified)
    line = (
        f"- {audit.view}, one {audit.unit}, delta = {format_delta(audit.delta)}: {measured} "
        f"measured, {certified} certified, {audit.trainings:,} trainings on each side; verdict: "
        f"{audit.verdict}."
    )
    if audit.given:
        line += f" The adversary was given more than the view shows: {audit.given}."
    if audit.engine:
        line += f" Engine {audit.engine}."
    return line


def _state_parameters(guarantee: Guarantee, delta: float) -> dict[str, float]:
    """Returns epsilon as the page prints it, which is rounded up, and delta."""
    epsilon = guarantee.epsilon(delta)
    shown = format_upper_bound(epsilon)
    if epsilon > MEANINGFUL:
        raise UserError(
            f"epsilon has {shown} in the view {guarantee.view}: there is no promise to register. "
            "Train with more noise."
        )
    parameters = {"epsilon": float(shown), "delta": delta}
    if guarantee.rho is not None:
        parameters["rho"] = float(format_upper_bound(guarantee.rho))
    return parameters


def _state_loss(
    guarantee: Guarantee, delta: float, parameters: Mapping[str, float]
) -> dict[str, Any]:
    """Returns the unit of privacy, and how much can be learned about it."""
    unit = UNITS_IN_FULL[guarantee.unit]
    return {
        "privacy_unit": f"One {unit}",
        "privacy_unit_details": NEIGHBOURS[guarantee.adjacency].format(unit=unit),
        "privacy_parameters": dict(parameters),
        "privacy_parameters_details": guarantee.sentence(delta),
    }


def _state_model(summary: RunSummary) -> dict[str, Any]:
    """Returns who takes part, and whom they trust with what."""
    _, unit, delta = summary.headline
    actors = []
    for guarantee in summary.guarantees[unit]:
        epsilon = format_upper_bound(guarantee.epsilon(delta))
        limit = f"learns at most epsilon = {epsilon}"
        if guarantee.epsilon(delta) > MEANINGFUL:
            limit = f"there is {epsilon} to what it learns"
        if guarantee.condition:
            limit += f", {guarantee.condition}"
        actors.append(f"{guarantee.view} ({guarantee.view.adversary}): {limit}.")
    protocol = summary.run.protocol
    return {
        # The registry's words for how a deployment is laid out.
        "model_name": "Shuffle" if protocol.channel.shuffles else "Federated",
        "model_name_details": f"Channel: {protocol.channel.tag}.",
        "actors": " ".join(actors),
        "release_type": "One release",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _state_mechanisms(summary: RunSummary) -> str:
    """Returns the noise and its source, the program, and the digest of the ledger."""
    protocol = summary.run.protocol
    source = "drawn from the operating system's entropy"
    if not protocol.noise.secure:
        source = "reproducible from a seed, and so private only while the seed is secret"
    return (
        f"{describe_noise(protocol)}; {source}. Sordino {own_version()}; ledger "
        f"{summary.ledger_digest or 'not shown'}."
    )


def _join_caveats(summary: RunSummary) -> str:
    """Returns everything that the guarantee does not cover, in one text."""
    caveats = list_caveats(summary, of_page=False)
    return " ".join(f"{caveat.title}: {caveat.text}" for caveat in caveats)


def _make_slug(name: str) -> str:
    """Returns a name in lower case, with underscores for all but letters and digits."""
    letters = [letter if letter.isalnum() else "_" for letter in name.lower()]
    return "".join(letters).strip("_")


def _write_lines(value: Any, indent: str) -> list[str]:
    """Returns the lines of a table or a list."""
    lines = []
    if isinstance(value, list):
        return [f"{indent}- {_write_scalar(one)}\n" for one in value]
    for key, inner in value.items():
        if isinstance(inner, (dict, list)):
            lines.append(f"{indent}{key}:\n")
            lines.extend(_write_lines(inner, f"{indent}  "))
        else:
            lines.append(f"{indent}{key}: {_write_scalar(inner)}\n")
    return lines


def _write_scalar(value: Any) -> str:
    """Returns a string or a number as in JSON, but for 1e-05, which YAML reads as a text."""
    # Strings are always quoted, since YAML reads a bare no or 12:30 as something else.
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "." not in text:
        return text.replace("e", ".0e")
    return text
