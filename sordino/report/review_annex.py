"""Answers the questions that reviewers ask about a private model, from a run: the annex.

Its first part follows the topics of NIST SP 800-226, "Guidelines for Evaluating Differential
Privacy Guarantees"; the second those of EDPB Opinion 28/2024 on AI models and personal data. What
only the owner of a run knows is marked. It shows nothing that the run's page does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

from sordino.privacy.guarantee import MEANINGFUL, format_delta
from sordino.protocol.version import own_version
from sordino.protocol.views import UNIT_IN_WORDS
from sordino.report.caveats import is_simulation, list_caveats
from sordino.report.evidence import AttackResult, Audit
from sordino.report.filings import (
    NEIGHBOURS,
    TO_FILL,
    UNITS_IN_FULL,
    state_audit,
    tabulate_views,
)
from sordino.report.number_formats import format_cases_of_100
from sordino.report.phrasing import describe_noise, describe_protocol, describe_test_records
from sordino.report.run_summary import RunSummary, list_known_scores

# Up to the first epsilon a guarantee is strong evidence alone; beyond the second, weak evidence.
STRONG = 1.0
MODERATE = 10.0
# What an adversary would like to know.
TOLD = {"record": "whether a record was used", "client": "whether a client took part"}
# A person may have several units: records, or, where clients are hidden, clients.
SEVERAL_UNITS = {
    "record": "A person with several records is protected less: for k records, epsilon is about "
    "k times as large, and delta grows by more than that.",
    "client": "A person whose records are with several clients is protected less: for k clients, "
    "epsilon is about k times as large, and delta grows by more than that.",
}


@dataclass(frozen=True, kw_only=True)
class ReviewAnswer:
    """Holds a reviewer's question and its answer.

    Attributes:
        question: The question.
        lines: The answer: paragraphs, items of lists and rows of tables.
    """

    question: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The question as a heading, and its answer, in Markdown."""
        written = [f"### {self.question}", ""]
        for before, line in pairwise(["", *self.lines]):
            # Rows of a table and items of a list follow each other; paragraphs stand apart.
            same_block = line[0] in "|-" and before[:1] == line[0]
            if before and not same_block:
                written.append("")
            written.append(line)
        return "\n".join([*written, ""])


def write_cell(text: str) -> str:
    r"""Returns a text for a cell of a table in Markdown, or that it is to be filled in.

    Args:
        text: The text; empty where the owner has said nothing.

    Example:
        >>> write_cell("Ward 3 | Ward 4")
        'Ward 3 \\| Ward 4'
    """
    return text.replace("|", "\\|") or TO_FILL


def write_annex(summary: RunSummary) -> str:
    """Returns an annex for a review board, as Markdown.

    Args:
        summary: Summary of a run.
    """
    run = summary.run
    parts = [
        f"# Annex on privacy: {summary.name}",
        "",
        f"{describe_protocol(run.protocol)}. Written by Sordino {own_version()} from the run's "
        f"folder; ledger {summary.ledger_digest or 'not shown'}.",
        "",
        "| | |",
        "|---|---|",
        f"| owner | {write_cell(summary.about.owner)} |",
        f"| purpose | {write_cell(summary.about.purpose)} |",
        f"| date | {date.today().isoformat()} |",
        f"| prepared and reviewed by | {write_cell(summary.about.names)} |",
        "",
        "## Evaluating the guarantee (topics of NIST SP 800-226)",
        "",
        *(answer.text for answer in answer_guideline(summary)),
        "## Is the model anonymous? (topics of EDPB Opinion 28/2024)",
        "",
        "The opinion asks whether, with all means reasonably likely to be used, personal data of "
        "those trained on can be extracted from the model or obtained by queries. This part is "
        "evidence for that assessment and does not replace it.",
        "",
        *(answer.text for answer in answer_opinion(summary)),
    ]
    return "\n".join(parts)


def answer_guideline(summary: RunSummary) -> list[ReviewAnswer]:
    """Answers the questions about a guarantee of differential privacy.

    Args:
        summary: Summary of a run.
    """
    protocol = summary.run.protocol
    guarantee = summary.main
    delta = summary.headline.delta
    unit = UNITS_IN_FULL[guarantee.unit]
    return [
        ReviewAnswer(
            question="What is guaranteed, and against whom?",
            lines=(guarantee.sentence(delta), grade_epsilon(guarantee.epsilon(delta))),
        ),
        ReviewAnswer(
            question="What is the unit of privacy?",
            lines=(
                f"One {unit}. {NEIGHBOURS[guarantee.adjacency].format(unit=unit)}",
                SEVERAL_UNITS[guarantee.unit],
            ),
        ),
        ReviewAnswer(
            question="How small is delta, and is it below one over the number of units?",
            lines=(compare_delta(summary),),
        ),
        ReviewAnswer(question="Who is trusted with what?", lines=tuple(tabulate_views(summary))),
        ReviewAnswer(
            question="Which mechanisms are used, and why are they private?",
            lines=(
                f"{describe_noise(protocol)}.",
                *(f"- {line}" for line in guarantee.derivation),
            ),
        ),
        ReviewAnswer(
            question="Was the implementation tested?",
            lines=tuple(list_audits(summary.audits)),
        ),
        ReviewAnswer(
            question="Where do the random numbers come from?",
            lines=(describe_randomness(summary),),
        ),
        ReviewAnswer(
            question="Is the whole of the training accounted for, tuning included?",
            lines=(
                f"{len(summary.run.rounds_paid):,} rounds were charged in the ledger before they "
                "released anything.",
                f"{TO_FILL}: other trainings on the same records, and how limits, clip and rates "
                "were chosen. Each training adds to what is learned; `sordino sweep --price` says "
                "by how much.",
            ),
        ),
        ReviewAnswer(
            question="What does privacy cost in accuracy, and is the cost the same for everybody?",
            lines=(
                describe_accuracy(summary),
                f"{TO_FILL}: accuracy for the groups that the model is about. Noise and clipping "
                "cost rare groups more than common ones.",
            ),
        ),
        ReviewAnswer(
            question="What is not covered?",
            lines=tuple(
                f"- **{one.title}.** {one.text}" for one in list_caveats(summary, of_page=False)
            ),
        ),
        ReviewAnswer(
            question="Who has access to records, keys and logs?",
            lines=(
                f"{TO_FILL}. {locate_records(summary)}",
                "Not to be published: the folders `private/`, `clients/` and `uploads/`, the "
                "checkpoints, `partition.json`, `run.json` and the ledger.",
            ),
        ),
    ]


def answer_opinion(summary: RunSummary) -> list[ReviewAnswer]:
    """Answers the questions about whether a model is anonymous.

    Args:
        summary: Summary of a run.
    """
    unit = summary.headline.unit
    return [
        ReviewAnswer(
            question="Which measures were taken in design and training?",
            lines=(
                f"{locate_records(summary)} What a record can change is limited, and noise hides "
                f"it: {describe_noise(summary.run.protocol)}.",
                f"{TO_FILL}: selection and minimisation of the records, legal basis, the data "
                "protection impact assessment.",
            ),
        ),
        ReviewAnswer(
            question=f"How likely is it that an adversary can tell {TOLD[unit]}?",
            lines=tuple(list_odds(summary)),
        ),
        ReviewAnswer(
            question="Which attacks were tried, and what did they get?",
            lines=tuple(list_attacks(summary.attacks)),
        ),
        ReviewAnswer(
            question="What limits these tests?",
            lines=(
                "The upper bounds hold for every attack, also ones not yet known, under the "
                "assumptions stated with them. Audits and attacks are lower bounds: what was "
                "tried, on this run, with this much computing.",
                f"{TO_FILL}: who can query the model, how often, and what else they may know.",
            ),
        ),
    ]


def grade_epsilon(epsilon: float) -> str:
    """Says how strong an argument a guarantee is by itself.

    Args:
        epsilon: The upper bound.

    Example:
        >>> grade_epsilon(0.5)
        'Up to 1 the guarantee alone is strong evidence.'
    """
    if epsilon <= STRONG:
        return f"Up to {STRONG:g} the guarantee alone is strong evidence."
    if epsilon <= MODERATE:
        return (
            f"Between {STRONG:g} and {MODERATE:g} the guarantee should be read with the audits "
            "below, and with what an adversary could do with it."
        )
    if epsilon <= MEANINGFUL:
        return f"Beyond {MODERATE:g} the guarantee alone is weak evidence."
    return "There is no meaningful limit: nothing should be claimed from this guarantee."


def compare_delta(summary: RunSummary) -> str:
    """Compares delta with one over the number of records or clients.

    Args:
        summary: Summary of a run.
    """
    delta = summary.headline.delta
    units = summary.run.protocol.clients
    counted = "clients"
    if summary.headline.unit == "record":
        units = sum(summary.run.sizes)
        counted = "records"
    comparison = "below" if delta * units < 1 else "not below"
    return f"delta = {format_delta(delta)}, which is {comparison} one in {units:,} {counted}."


def list_audits(audits: Sequence[Audit]) -> list[str]:
    """Lists what audits measured.

    Args:
        audits: Audits of the run.
    """
    lines = [state_audit(audit) for audit in audits]
    return lines or ["No audit was made. `sordino audit RUN` makes one."]


def list_attacks(attacks: Sequence[AttackResult]) -> list[str]:
    """Lists what attacks reached, compared with guessing.

    Args:
        attacks: Attacks of the run.
    """
    if not attacks:
        return ["No attack was tried. `sordino attack RUN` tries those of the literature."]
    rows = ["| attack | measure | reached | by guessing |", "|---|---|---|---|"]
    for attack in attacks:
        name = write_cell(attack.name)
        metric = write_cell(attack.metric)
        rows.append(f"| {name} | {metric} | {attack.value:.3g} | {attack.baseline:.3g} |")
    return rows


def list_odds(summary: RunSummary) -> list[str]:
    """Lists in how many of 100 cases the best adversary is right, at most.

    Args:
        summary: Summary of a run.
    """
    lines = [
        f"The adversary knows everything but {UNIT_IN_WORDS[summary.headline.unit]}, and both "
        "answers are equally likely. Of 100 cases it is right in at most (guessing gives 50):"
    ]
    for view, odds in summary.odds.items():
        lines.append(f"- {view.adversary}: {format_cases_of_100(odds)}")
    return lines


def describe_randomness(summary: RunSummary) -> str:
    """Says where the noise of a run came from, and whether it was drawn as integers.

    Args:
        summary: Summary of a run.
    """
    protocol = summary.run.protocol
    numbers = "in floating point, whose lowest bits are not hardened against attacks"
    if protocol.release.integers:
        numbers = "as integers of a discrete Gaussian, with no floating point in between"
    if protocol.noise.secure:
        source = "The key is from the operating system's entropy and is not kept."
    else:
        source = "The key is made of a seed: anyone who knows the seed can remove the noise."
    return f"Noise is drawn from a ChaCha20 keystream, {numbers}. {source}"


def locate_records(summary: RunSummary) -> str:
    """Says where the records of the clients were during the training.

    Args:
        summary: Summary of a run.
    """
    if is_simulation(summary):
        return "The clients were simulated on one machine, which had the records of all of them."
    return "Every client trained on its own machine, which its records did not leave."


def describe_accuracy(summary: RunSummary) -> str:
    """Says what the model reaches, and on whose records.

    Args:
        summary: Summary of a run.
    """
    scores = list_known_scores(summary.run)
    listed = ", ".join(f"{name} {value}" for name, value in scores) or "not scored"
    return (
        f"On {describe_test_records(summary.run)}: {listed}. `sordino report RUN --without-noise` "
        "trains the same federation without noise, to compare."
    )
