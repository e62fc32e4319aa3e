"""Lists what a run does not protect, in words as plain as those for what it protects."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sordino.privacy.guarantee import Guarantee, format_delta, notes_on
from sordino.protocol import Protocol, View
from sordino.report.learning import find_warnings
from sordino.report.number_formats import state_epsilon
from sordino.report.phrasing import explain_missing_limit, find_test_source, name_adversary
from sordino.report.run_summary import (
    RunSummary,
    find_own_scores,
    has_public_records,
    select_scored_rounds,
)

USE_SECURE_NOISE = "For people's data, train with noise.secure = true."
EXACT_SCORES = "Accuracy and loss are exact, without noise, and no guarantee covers them"
SCORE_NOTHING = 'score nothing: data.test = "none".'


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """Describes something that is not protected.

    Attributes:
        title: A few words.
        text: One or more sentences.
        grave: Whether it undoes the guarantee.
        about_page: Whether it is about something that only the page of the run shows.
    """

    title: str
    text: str
    grave: bool = False
    about_page: bool = False


def list_caveats(summary: RunSummary, *, of_page: bool = True) -> list[Caveat]:
    """Lists everything that the guarantee does not cover.

    Args:
        summary: Summary of a run.
        of_page: Whether the caveats are for the page of the run, and not for a document that shows
            less than the page does.

    Returns:
        The caveats, grave ones first.
    """
    found = [*caveats_of_run(summary), *caveats_of_every_run(summary)]
    if not of_page:
        found = [caveat for caveat in found if not caveat.about_page]
    # The sort is stable: grave caveats move to the front, and the order is kept otherwise.
    return sorted(found, key=lambda caveat: not caveat.grave)


def list_warnings(summary: RunSummary) -> list[Caveat]:
    """Lists what must be read before anything else.

    Args:
        summary: Summary of a run.

    Returns:
        The warnings, which a page shows above its first table.
    """
    found = []
    if not summary.run.protocol.noise.secure:
        text = (
            "Its noise can be reproduced from a seed, and anyone who knows the seed can remove it. "
            f"{USE_SECURE_NOISE}"
        )
        found.append(Caveat(title="A run for research.", text=text, grave=True))
    # Either is a failure of Sordino and not of the protocol, so nothing on the page can be trusted.
    if any(audit.verdict == "refuted" or audit.engine_differs for audit in summary.audits):
        text = (
            "More was measured than the guarantee allows. "
            "Do not rely on this page, and report it to the makers of Sordino."
        )
        found.append(Caveat(title="An audit contradicts the guarantee.", text=text, grave=True))
    if summary.withheld:
        reasons = " ".join(summary.withheld.reasons)
        text = (
            f"{reasons} The rest is in private/ in the run's folder, which must not be published."
        )
        found.append(Caveat(title="Not everything is shown.", text=text))
    if summary.run.status == "unfinished":
        text = "This page says what was spent so far."
        found.append(Caveat(title="The run is not finished.", text=text, grave=True))
    return found


def caveats_of_run(summary: RunSummary) -> Iterator[Caveat]:
    """Yields what follows from the protocol, the records and the course of the run.

    Args:
        summary: Summary of a run.
    """
    yield from _caveats_of_guarantees(summary)
    yield from _caveats_of_folder(summary)
    for note in notes_on(summary.run.protocol):
        yield Caveat(title="Records that were assigned by their contents", text=note)
    # The run itself noted these, when it saw records that make its guarantee weaker.
    for note in summary.run.notes:
        yield Caveat(title="Records that were divided by label", text=note, grave=True)
    yield from caveats_of_scores(summary)
    if summary.shares is not None:
        yield Caveat(
            title="The partition in this page",
            text="How many records of each label a client has is drawn here from private records. "
            "Leave the picture out of anything that is published.",
            grave=not has_public_records(summary.run.protocol),
            about_page=True,
        )
    if summary.attacks:
        yield Caveat(
            title="The scores of attacks",
            text="Clients' records decide whether an attack was right, and a twin without noise "
            "was trained on them: no guarantee covers these numbers. Do not publish them.",
            grave=not has_public_records(summary.run.protocol),
        )


def _caveats_of_guarantees(summary: RunSummary) -> Iterator[Caveat]:
    """Yields what the guarantees themselves leave open."""
    protocol = summary.run.protocol
    view, unit, delta = summary.headline
    guarantees = summary.guarantees[unit]
    if not protocol.noise.secure:
        yield Caveat(
            title="Anyone who knows the seed",
            text=f"The noise was drawn from the seed {protocol.seed}, so that the run can be "
            "repeated. Anyone who knows it, as every reader of this text does, can remove the "
            f"noise, and nothing here holds. {USE_SECURE_NOISE}",
            grave=True,
        )
    for guarantee in guarantees:
        # An infinite bound is in the table too, but a table is easily passed over.
        if math.isinf(guarantee.epsilon(delta)):
            text = f"There is no limit to what it learns. {explain_missing_limit(guarantee)}"
            yield Caveat(title=name_adversary(guarantee.view), text=text.rstrip(), grave=True)
    for guarantee in guarantees:
        if guarantee.assumptions:
            yield _describe_vouching(guarantee, delta)
    units = {"record": sum(summary.run.sizes), "client": protocol.clients}[unit]
    # A mechanism that publishes one unit's data at random satisfies delta = 1/n.
    if delta >= 1 / units:
        yield Caveat(
            title="A δ that is too large",
            text=f"δ = {format_delta(delta)} is not below 1/{units:,}, one over the number of "
            f"{unit}s: such a guarantee would allow revealing one outright.",
            grave=True,
        )
    # Readers often take a guarantee about a record for one about a person with many records.
    if unit == "record":
        text = "One record is hidden. All records of a client together are hidden less well."
        for guarantee in summary.guarantees["client"]:
            if guarantee.view == view:
                text += f" In the view {view}: {state_epsilon(guarantee.epsilon(delta))}."
        yield Caveat(title="All records of one client", text=text)


def _describe_vouching(guarantee: Guarantee, delta: float) -> Caveat:
    """Returns what a bound rests on, and what holds where that is not true."""
    vouched = " and ".join(guarantee.assumptions)
    text = f"In the view {guarantee.view} the bound holds if, as vouched, {vouched}."
    if guarantee.unconditional is not None:
        text += f" Without that: {state_epsilon(guarantee.unconditional.epsilon(delta))}."
    return Caveat(title="What was vouched for and not checked", text=text)


def _caveats_of_folder(summary: RunSummary) -> Iterator[Caveat]:
    """Yields what the run's end, its scores and its other files reveal."""
    if summary.run.status == "diverged":
        yield Caveat(
            title="The divergence",
            text="When a model stops being finite depends on the records, "
            "so nothing is promised about the last model alone.",
        )
    for warning in find_warnings(summary.run):
        yield Caveat(title="A model that learned nothing", text=warning, grave=True)
    if is_simulation(summary):
        yield Caveat(
            title="The machine that simulated the clients",
            text="All clients were simulated on one machine, and whoever controls it has all "
            "records. The bounds hold against those who see what a view shows, and no more.",
        )
    if summary.run.protocol.keeps_models:
        yield Caveat(
            title="Clients' personal models", text=describe_own_models(summary.run.protocol)
        )
    if find_own_scores(summary.run) is not None:
        yield Caveat(
            title="The scores of clients' personal models",
            text="They are exact, and each model is scored on test records chosen by the labels of "
            "its client's records. No guarantee covers them.",
        )
    if summary.run.facts.get("keep_uploads") not in (None, 0):
        yield Caveat(
            title="Uploads that were kept",
            text="What the server received was kept in the run's folder, for attacks. "
            "Anyone who obtains it sees as much as the server.",
        )
    # The scores are functions of every round's model, which the view final does not show.
    if len(select_scored_rounds(summary.run)) > 1 and View.FINAL in summary.odds:
        yield Caveat(
            title="The scores of all rounds in this page",
            text="They come from the models of all rounds. For their readers the bound of the "
            "view rounds holds, not that of the view final.",
            about_page=True,
        )
    if summary.withheld.draw:
        yield Caveat(
            title="Who took part",
            text="The ledger says who took part in which round. The bound does not hold against "
            "its readers: the ledger and the run's folder must stay with the server.",
            grave=True,
        )


def is_simulation(summary: RunSummary) -> bool:
    """Returns whether all clients' records were on the machine that trained.

    Args:
        summary: Summary of a run.
    """
    return bool(summary.run.engine != "flower")


def describe_own_models(protocol: Protocol) -> str:
    """Returns what a client's personal model reveals to anyone who receives it.

    Args:
        protocol: Protocol of clients that keep models.
    """
    # Such models are made of the steps' noisy sums, and are what the client uploads.
    if protocol.release.in_steps:
        return (
            "They are what their clients uploaded, with the noise of every step. Anyone who is "
            "given one learns at most what the bound of the view server allows."
        )
    return (
        "They stay with their clients. "
        "Anyone who is given one learns about that client's records without limit."
    )


def caveats_of_scores(summary: RunSummary) -> Iterator[Caveat]:
    """Yields what accuracy and loss reveal about the records that were scored.

    Args:
        summary: Summary of a run.
    """
    source = find_test_source(summary.run)
    if source == "held-out":
        yield Caveat(
            title="Scores on private records",
            text="The data have no test part, so a fifth of the clients' records was held out and "
            f"scored. {EXACT_SCORES}. Bring public test records, or {SCORE_NOTHING}",
            grave=True,
        )
    if source == "brought":
        yield Caveat(
            title="Scores on test records that were brought",
            text=f"The test records came with the data. {EXACT_SCORES}: only their owner knows "
            f"whether these records are public. If they are not, {SCORE_NOTHING}",
        )


def caveats_of_every_run(summary: RunSummary) -> Iterator[Caveat]:
    """Yields what no guarantee of differential privacy covers.

    Args:
        summary: Summary of a run.
    """
    yield Caveat(
        title="Other trainings on the same records",
        text="Only one run is priced here. What several runs reveal adds up: earlier runs, "
        "runs that tuned settings, and later ones.",
    )
    yield Caveat(
        title="What is true of people in general",
        text="A model can teach that a habit makes people ill. That then applies to everybody, "
        "whether their record was used or not.",
    )
    last = "harmful uploads, timing, and the lowest bits of floating-point noise"
    if summary.run.protocol.release.integers:
        # Noise of integers has no bits but those of its law.
        last = "harmful uploads and timing"
    yield Caveat(
        title="Machines, messages and people",
        text="Not covered: stolen devices, intercepted messages, a server or a client that does "
        f"not follow the protocol, {last}.",
    )
    yield Caveat(
        title="Numbers that were not released",
        text="The share of clipped steps in metrics.jsonl comes from private records: "
        "no guarantee covers it.",
    )
    if summary.audits or summary.attacks:
        yield Caveat(
            title="Attacks that were not tried",
            text="An audit or an attack shows what an adversary learns at least. "
            "One that finds little proves little.",
        )
