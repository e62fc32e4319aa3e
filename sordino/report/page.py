"""The page of one run."""

from __future__ import annotations

import json
import math
import time
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sordino.privacy.guarantee import UNIT_IN_WORDS
from sordino.protocol import dumps
from sordino.protocol.documents import plain
from sordino.protocol.errors import typed
from sordino.report.figures import attack_plots, epsilons_of, figures, measured_text
from sordino.report.formats import (
    at_least,
    at_most,
    duration,
    measure,
    of_a_hundred,
    percent,
    size,
)
from sordino.report.limits import not_protected, warnings
from sordino.report.promises import client_view
from sordino.report.story import Story, last_scores, story_document
from sordino.report.words import claim, described, ended, meaning, noise_line, scored_on, tiles, who

if TYPE_CHECKING:
    from jinja2 import Environment

ADJACENCY = {
    "replace-one": "Two data sets are neighbours if what is hidden is replaced by something else in one of them.",
    "add-or-remove": "Two data sets are neighbours if what is hidden is in one of them and not in the other.",
}
LONGEST = 20_000  # characters of a protocol that are shown


@cache
def environment() -> Environment:
    """The templates; whatever is put into them is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("sordino.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )


def rendered(template: str, document: dict[str, Any], **values: Any) -> str:
    """A page from its template, with its machine-readable block."""
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return (
        environment()
        .get_template(template)
        .render(version=version("sordino"), made=made, block=embedded(document), **values)
    )


def embedded(document: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(plain(document), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def run_page(story: Story) -> str:
    """The report of a run, as one HTML file."""
    view, unit, delta = story.headline
    limits = not_protected(story)
    return rendered(
        "run.html",
        story_document(story),
        story=story,
        described=described(story.run.protocol),
        ended=ended(story.run.status),
        claim=claim(story.main, delta),
        meaning=meaning(story),
        warnings=warnings(story),
        tiles=tiles(story),
        adjacency=ADJACENCY[story.main.adjacency],
        views=view_rows(story),
        delta=f"{delta:g}",
        unit=unit,
        figures=figures(story),
        spent_text=spent_text(story),
        learning_text=learning_text(story),
        clients_text=clients_text(story),
        audits=[audit_row(audit) for audit in story.audits],
        judged=[
            (name, claimed, f"{audit.view}, {audit.unit}", verdict)
            for audit in story.audits
            for name, claimed, verdict in audit.claims
        ],
        audit_command=typed("audit", story.run.folder, "--view", view),
        attack_plots=attack_plots(story),
        without_noise=any(attack.name.endswith(", noise 0") for attack in story.attacks),
        limits=limits,
        provenance=provenance(story),
        protocol=shortened(dumps(story.run.protocol)),
        derivations=derivations(story),
    )


def view_rows(story: Story) -> list[dict[str, Any]]:
    """The adversaries, one row each."""
    main, unit, _ = story.headline
    rows = []
    for guarantee in story.guarantees[unit]:
        view = guarantee.view
        record, client = epsilons_of(story, view)
        rows.append(
            {
                "main": view == main,
                "who": who(view),
                "view": str(view),
                "sees": view.sees,
                "record": record,
                "client": client,
                "right": of_a_hundred(story.odds[view]),
                "measured": measured_text(story, view),
            }
        )
    return rows


def spent_text(story: Story) -> str:
    """Returns what is said of the privacy spent where no figure shows it."""
    epsilon = story.main.epsilon(story.headline[2])
    if epsilon == 0:
        return "Nothing was spent."
    return f"There is {at_most(epsilon)} to what was spent."


def learning_text(story: Story) -> str:
    """Returns what is said of the scores where no figure shows them."""
    scores = last_scores(story.run)
    if math.isnan(scores["loss"]):
        return "The model was not scored."
    right = scores["accuracy"]
    accuracy = "" if math.isnan(right) else f"accuracy {percent(right)}, "
    return f"The last model on {scored_on(story.run)}: {accuracy}loss {measure(scores['loss'])}."


def clients_text(story: Story) -> str:
    """What is to be said of the clients where no figure says it."""
    if story.withheld.draw:
        return "Who took part, and how often, is left out: the promise counts on nobody knowing."
    rows, total = story.clients, story.run.protocol.clients
    often = {row.rounds for row in rows}
    epsilons = {row.epsilon for row in rows if row.epsilon is not None}
    part = (
        f"All {total:,} clients took part in {often.pop():,} rounds"
        if len(often) == 1
        else f"{total:,} clients took part in {min(often):,} to {max(often):,} rounds"
    )
    if len(epsilons) == 1 and not story.run.protocol.client:
        return f"{part}. Given that, each has spent ε = {at_most(epsilons.pop())} in the view {client_view(story.run, story.headline)}."
    return f"{part}."


def audit_row(audit: Any) -> tuple[str, ...]:
    """An audit as a row."""
    name = f"{audit.view}, one {audit.unit}" + (f", given {audit.given}" if audit.given else "")
    return (
        name,
        at_least(audit.epsilon_lower),
        at_most(audit.certified),
        f"{audit.delta:g}",
        f"{audit.trainings:,}",
        audit.verdict,
        audit.engine or "not compared",
    )


def provenance(story: Story) -> list[tuple[str, str]]:
    """Where the run comes from and what it was made with."""
    run, protocol, known = story.run, story.run.protocol, story.run.facts
    vouched = sorted(
        {text for found in story.guarantees.values() for one in found for text in one.assumptions}
    )
    enforced = (
        f"enforced: models stay in a ball of diameter {protocol.assumptions.diameter:g}"
        if protocol.assumptions.diameter is not None
        else ""
    )
    versions = ", ".join(
        f"{name} {known[name]}" for name in ("sordino", "python", "torch") if name in known
    )
    return [
        ("Federation", described(protocol)),
        (
            "Records",
            f"{sum(run.sizes):,} training records; unit of the headline: {UNIT_IN_WORDS[story.headline[1]]}",
        ),
        ("Noise", f"{noise_line(protocol)}; {known['noise']}"),
        (
            "Seed",
            "from the operating system for noise and draws"
            if protocol.noise.secure
            else str(protocol.seed),
        ),
        ("Assumptions", "; ".join([*vouched, *([enforced] if enforced else [])]) or "none"),
        (
            "Engine",
            f"{known['engine']}; workers: {known['workers']}; device: {known.get('device', 'cpu')}",
        ),
        ("Versions", versions or "unknown"),
        ("Generator", str(known.get("generator", "unknown"))),
        (
            "Time",
            f"{known.get('started', '?')} to {known.get('ended', 'now')}; {duration(float(run.metrics['seconds'].sum()))} of training",
        ),
        ("Traffic", traffic_line(story)),
        ("Parameters", f"{known['parameters']:,}"),
        ("Ledger", ledger_line(story)),
        ("Seal", seal_line(story)),
        ("Data digest", str(known.get("data_digest", "unknown"))),
        ("Model digest", str(known.get("model_digest", "unknown"))),
        ("Folder", str(run.folder)),
    ]


def traffic_line(story: Story) -> str:
    """Returns how much was sent."""
    if story.withheld.draw:
        return "left out: it tells how many took part"
    metrics = story.run.metrics
    up = size(float(metrics["bytes_up"].sum()))
    down = size(float(metrics["bytes_down"].sum()))
    return f"{up} up, {down} down"


def ledger_line(story: Story) -> str:
    """Returns what is said of the ledger."""
    digest = f"digest {story.ledger_digest}"
    if story.withheld:
        digest = (
            "its digest is left out, since a guess of what is withheld could be held against it"
        )
    return f"{len(story.run.rounds_paid):,} rounds paid for; {digest}"


def seal_line(story: Story) -> str:
    """Whether changes of the run's folder would be noticed, and which key has signed it."""
    if not story.sealed:
        return "none: the run was written before there were seals, and a change of its files leaves no trace"
    if not story.signers:
        return "sealed, not signed: somebody who writes the whole folder anew leaves no trace"
    keys = ", ".join(story.signers)
    return f"sealed and signed by {keys}; sordino verify checks it against a key that you know"


def shortened(text: str) -> str:
    """The beginning of a text that is very long."""
    return (
        text
        if len(text) <= LONGEST
        else f"{text[:LONGEST]}\n# ... and {len(text) - LONGEST:,} characters more, in protocol.toml"
    )


def derivations(story: Story) -> list[dict[str, Any]]:
    """How each bound comes about."""
    delta = story.headline[2]
    return [
        {
            "title": f"{one.view}, one {one.unit}: {one.method}, ε = {at_most(one.epsilon(delta))}",
            "lines": one.derivation,
        }
        for found in story.guarantees.values()
        for one in found
    ]
