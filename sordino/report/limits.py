"""What a run does not protect: said as plainly as what it does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sordino.privacy.guarantee import notes_on
from sordino.protocol import View
from sordino.report.formats import at_most
from sordino.report.story import Story, scored_rounds
from sordino.report.words import tested_on, who

SECURE = "For people's data, train with noise.secure = true."


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Something that is not protected; `grave` where it undoes the promise."""

    title: str
    text: str
    grave: bool = False


def not_protected(story: Story) -> list[Limit]:
    """Everything that the promise does not cover, what is graver first."""
    found = [*of_this_run(story), *of_every_run(story)]
    return sorted(found, key=lambda limit: not limit.grave)


def warnings(story: Story) -> list[Limit]:
    """What must be read before anything else."""
    found = []
    if not story.run.protocol.noise.secure:
        text = f"Its noise can be repeated from a seed, and whoever knows the seed can take it away. {SECURE}"
        found.append(Limit(title="A run for research.", text=text, grave=True))
    if any(audit.verdict == "refuted" or audit.engine_differs for audit in story.audits):
        text = "What was measured is more than what is promised. Do not rely on this page, and tell the makers of Sordino."
        found.append(Limit(title="An audit contradicts the promise.", text=text, grave=True))
    if story.withheld:
        text = " ".join(story.withheld.reasons)
        text += " The rest is in private/ in the run's folder, which is not to be published."
        found.append(Limit(title="Not all is shown.", text=text))
    if story.run.status == "unfinished":
        found.append(
            Limit(
                title="The run is not finished.",
                text="This page says what was spent so far.",
                grave=True,
            )
        )
    return found


def of_this_run(story: Story) -> Iterator[Limit]:
    """What follows from this protocol, these records and what became of the run."""
    protocol, (view, unit, delta) = story.run.protocol, story.headline
    if not protocol.noise.secure:
        text = f"The noise was drawn from the seed {protocol.seed}, so that the run can be repeated. Who knows it, as every reader of this "
        text += f"page does, can take the noise away, and nothing here holds. {SECURE}"
        yield Limit(title="Whoever knows the seed", text=text, grave=True)
    for guarantee in story.guarantees[unit]:
        if math.isinf(guarantee.epsilon(delta)):
            why = f" {guarantee.derivation[-1]}" if guarantee.derivation else ""
            yield Limit(
                title=who(guarantee.view),
                text=f"There is no limit to what it learns.{why}",
                grave=True,
            )
    for guarantee in story.guarantees[unit]:
        if guarantee.unconditional is not None:
            free = at_most(guarantee.unconditional.epsilon(delta))
            vouched = " and ".join(guarantee.assumptions)
            text = f"In the view {guarantee.view} the bound holds if, as vouched, {vouched}. Without that, ε = {free}."
            yield Limit(title="What was vouched for and not checked", text=text)
    total = {"record": sum(story.run.sizes), "client": protocol.clients}[unit]
    if delta >= 1 / total:
        text = f"δ = {delta:g} is not below 1/{total:,}, one over the number of {unit}s: such a promise would allow revealing one outright."
        yield Limit(title="A δ that is too large", text=text, grave=True)
    if unit == "record":
        whole = [one for one in story.guarantees["client"] if one.view == view]
        much = f": ε = {at_most(whole[0].epsilon(delta))} in the view {view}" if whole else ""
        yield Limit(
            title="All that one client holds",
            text=f"One record is hidden. All records of a client together are hidden less well{much}.",
        )
    if story.run.status == "diverged":
        yield Limit(
            title="That it diverged",
            text="When a run stops being finite depends on the data, so its last model alone is promised nothing.",
        )
    if protocol.keeps_models:
        yield Limit(
            title="Clients' own models",
            text="They stay with their clients. Who is given one learns from that client's records without limit.",
        )
    if story.run.facts.get("keep_uploads") not in (None, 0):
        text = "What the server received was kept in the run's folder, for attacks. Who gets hold of it sees as much as the server."
        yield Limit(title="Uploads that were kept", text=text)
    if len(scored_rounds(story.run)) > 1 and View.FINAL in story.odds:
        yield Limit(
            title="The scores of all rounds in this page",
            text="They come from the models of all rounds. Who reads them is covered as one who sees these models, not as one who is "
            "given the finished model only.",
        )
    if story.withheld.draw:
        text = "The ledger says who took part in which round. Who reads it is not covered: keep it, and the run's folder, to the server."
        yield Limit(title="Who took part", text=text, grave=True)
    for note in notes_on(protocol):
        yield Limit(title="Records that were dealt by label", text=note)
    for note in story.run.notes:
        yield Limit(title="Records that were divided by label", text=note, grave=True)
    yield from of_the_scores(story)
    if story.shares is not None:
        text = "How many records of each label a client has is drawn here from private records. Leave the picture out of what is published."
        yield Limit(title="The partition in this page", text=text)


def of_the_scores(story: Story) -> Iterator[Limit]:
    """What accuracy and loss tell about the records that they come from."""
    exact = "Accuracy and loss are exact, without noise, and no promise covers them"
    kind = tested_on(story.run)
    if kind == "held-out":
        text = f"The data have no test part, so that a fifth of the clients' own records was held out and scored. {exact}. "
        text += 'Bring public test records, or score nothing: data.test = "none".'
        yield Limit(title="Scores on private records", text=text, grave=True)
    if kind == "brought":
        text = f"The test records came with the data. {exact}: whether these records are public, their owner knows. "
        text += 'If they are not, score nothing: data.test = "none".'
        yield Limit(title="Scores on test records that were brought", text=text)


def of_every_run(story: Story) -> Iterator[Limit]:
    """What no such promise covers."""
    yield Limit(
        title="Other trainings on the same records",
        text="This page prices one run. What several runs reveal adds up: earlier ones, those for tuning settings, and later ones.",
    )
    yield Limit(
        title="What is true of people in general",
        text="That a habit makes ill can be learned from a model, and then applies to everybody, whether their record was used or not.",
    )
    yield Limit(
        title="Machines, messages and people",
        text="Stolen devices, intercepted messages, a server or a client that does not follow the protocol, harmful uploads, timing, and "
        "the lowest bits of floating-point noise are outside of it.",
    )
    yield Limit(
        title="Numbers that were not released",
        text="The share of clipped steps in metrics.jsonl comes from private records: no guarantee covers it.",
    )
    if story.audits or story.attacks:
        yield Limit(
            title="Attacks that were not tried",
            text="An audit or an attack says what is learned at least. One that finds little proves little.",
        )
