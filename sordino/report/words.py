"""A run in plain words, for people who decide about data and do not compute: what was protected, from whom, how well, and what was not."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.federation.data import tested_on as noted_tested_on
from sordino.privacy.guarantee import MEANINGFUL, Guarantee, rounded_up
from sordino.privacy.sizes import size_of
from sordino.protocol import Custom, NoisySgd, Protocol, View
from sordino.report.formats import at_least, at_most, of_a_hundred, percent

if TYPE_CHECKING:  # a story needs torch, and most words do not
    from sordino.federation.run import Run
    from sordino.report.story import Story

RULES = {
    "fedavg": "Noisy-FedAvg",
    "fedprox": "Noisy-FedProx",
    "scaffold": "Noisy-SCAFFOLD",
    "bezier": "Noisy-FedAvg along Bezier curves",
    "clipped-glm": "clipped logistic regression",
    "noisy-sgd": "noisy SGD",
}
WHO = {
    "server": "The server, or whoever reads each client's messages",
    "rounds": "Whoever sees the model after every round",
    "final": "Whoever is given the finished model only",
    "weak": "One other client",
    "strong": "All other clients together",
}
HIDDEN = {"record": "any one record", "client": "all records of any one client"}
ENDED = {
    "finished": "finished",
    "diverged": "diverged: the model was no longer finite, and the last finite one is kept",
    "budget": "ended by its budget, before the next round would have passed it",
    "unfinished": "not finished: this is what was spent so far",
}


def ended(status: str) -> str:
    """How a run ended."""
    return ENDED.get(status, status)


def described(protocol: Protocol) -> str:
    """A protocol in one line; of a path to data, the last part."""
    rule = RULES[protocol.local.tag]
    model = protocol.model.name if protocol.model is not None else "?"
    data = Path(protocol.data.name).name if protocol.data is not None else "?"
    return f"{model} on {data}, {protocol.clients:,} clients, {protocol.rounds:,} rounds of {rule}"


def noise_line(protocol: Protocol) -> str:
    """How much noise there is, and on what."""
    noise = protocol.noise
    if isinstance(protocol.local, NoisySgd):
        std = rounded_up(size_of(noise) * protocol.local.noise_unit)
        return (
            f"multiplier {size_of(noise):g}: sigma {std} on every step's sum of clipped gradients"
        )
    sizes = {"sigma": "sigma", "scale": "scale", "step": "step", "width": "width"}
    named = ", ".join(
        f"{word} {getattr(noise, name):g}" for name, word in sizes.items() if hasattr(noise, name)
    )
    kind = noise.factory if isinstance(noise, Custom) else noise.tag.capitalize()
    place = {
        "client": "each coordinate of an upload",
        "server": "each coordinate of the mean, added by the server",
    }
    both = f"an upload, and sigma {getattr(noise, 'server_sigma', None)} on the mean"
    return f"{kind}, {named} on {place.get(noise.where, both)}{own_noise(protocol)}"


def own_noise(protocol: Protocol) -> str:
    """How many clients have other noise than the protocol's, and which.

    Example:
        >>> from sordino import ClientBudget, Constant, FedAvg, Gaussian
        >>> rule = FedAvg(steps=1, batch=4, clip=1.0, schedule=Constant(rate=0.1))
        >>> own = (ClientBudget(id=0, epsilon=2.0), ClientBudget(id=1, epsilon=2.0, mechanism="laplace"))
        >>> own_noise(Protocol(clients=2, rounds=5, local=rule, noise=Gaussian(sigma=0.1), client=own))
        ', but for 1 of 2 clients, whose noise is made for their own budgets (1 laplace)'
    """
    kinds = Counter(client.mechanism for client in protocol.client if client.mechanism is not None)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return (
        f", but for {kinds.total()} of {protocol.clients} clients, whose noise is made for their own budgets ({listed})"
        if kinds
        else ""
    )


def who(view: View) -> str:
    """Who an adversary is."""
    if view.kind == "coalition":
        return (
            "A curious participant"
            if view.colluders == 1
            else f"{view.colluders} participants who pool what they know"
        )
    return WHO[view.kind]


def claim(guarantee: Guarantee, delta: float) -> str:
    """The headline: who learns how much about what, at most."""
    epsilon = guarantee.epsilon(delta)
    if math.isinf(epsilon):
        return f"{who(guarantee.view)} may learn everything: nothing is promised."
    condition = f", {guarantee.condition}" if guarantee.condition else ""
    about = f"about {HIDDEN[guarantee.unit]}{condition}."
    if epsilon > MEANINGFUL:
        return f"{who(guarantee.view)} learns without a meaningful limit {about}"
    return f"{who(guarantee.view)} learns at most ε\u00a0=\u00a0{at_most(epsilon)} {about}"


def meaning(story: Story) -> str:
    """What the headline means, without a formula."""
    view, unit, _ = story.headline
    what = {"record": "one record", "client": "the records of one client"}[unit]
    right = of_a_hundred(story.odds[view])
    pair = f"Take two data sets that differ in {what}, and let the best attacker there can be say which of them was trained on."
    if right == "100":
        return f"{pair} Nothing promises that it is ever wrong."
    return f"{pair} It is right in at most {right} of 100 cases; 50 is guessing. This holds whatever the attacker knows or computes."


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One of the numbers that a page opens with; `share` of 1 is drawn as a bar."""

    word: str
    number: str
    note: str
    share: float | None = None


def tiles(story: Story) -> list[Tile]:
    """The numbers that sum a run up."""
    return [spent_tile(story), guess_tile(story), audit_tile(story), score_tile(story)]


def spent_tile(story: Story) -> Tile:
    """Privacy spent, of the budget where there is one."""
    view, unit, delta = story.headline
    epsilon, budget = story.main.epsilon(delta), story.run.protocol.privacy.budget
    where = f"view {view}, unit {unit}, δ = {delta:g}"
    if story.main.condition:
        where += f"; {story.main.condition}"
    if budget is None:
        return Tile(
            word="Privacy spent, at most",
            number=f"ε {at_most(epsilon)}",
            note=f"no budget was set; {where}",
        )
    share = min(1.0, epsilon / budget.epsilon)
    return Tile(
        word="Privacy spent, at most",
        number=f"ε {at_most(epsilon)}",
        note=f"of {budget.epsilon:g} allowed; {where}",
        share=share,
    )


def guess_tile(story: Story) -> Tile:
    """How often the best attacker is right."""
    share = story.odds[story.headline[0]]
    return Tile(
        word="The best attacker is right",
        number=f"{of_a_hundred(share)} of 100",
        note="times at most; 50 is guessing",
        share=share,
    )


def audit_tile(story: Story) -> Tile:
    """What an audit has measured in the headline's view, or that there was none."""
    view, unit, _ = story.headline
    found, more = (
        story.audits_in(view, unit, given_more=given_more) for given_more in (False, True)
    )
    word = "Measured by audit, at least"
    if not found and more:
        word = (
            "The audit contradicts the promise"
            if any(audit.verdict == "refuted" for audit in more)
            else word
        )
        return Tile(
            word=word,
            number=f"ε {at_least(more[0].epsilon_lower)}",
            note=f"by who is given {more[0].given}, as the bound allows",
        )
    if not found:
        others = sorted({audit.view for audit in story.audits})
        elsewhere = f"; audited in the view {', '.join(others)}" if others else ""
        return Tile(word=word, number="not audited", note=f"in the view {view}{elsewhere}")
    best = found[0]
    refuted = [audit for audit in (*found, *more) if audit.verdict == "refuted"]
    word = word if not refuted else "The audit contradicts the promise"
    note = (
        f"by {best.trainings:,} trainings on each side" if best.trainings > 1 else "by one training"
    )
    return Tile(
        word=word,
        number=f"ε {at_least(best.epsilon_lower)}",
        note=f"{note}; the truth lies between the two",
    )


TESTED = {
    "public": "public test records",
    "brought": "test records that came with the data",
    "held-out": "held-out private records, not covered",
    "none": "no records",
}


def tested_on(run: Run) -> str:
    """Returns whose records a run was scored on; earlier versions did not note it, and held out of own data what they lacked."""
    return noted_tested_on(run.protocol, run.facts)


def scored_on(run: Run) -> str:
    """Returns the records that a run was scored on, in words."""
    return TESTED[tested_on(run)]


def score_tile(story: Story) -> Tile:
    """How well the model does."""
    from sordino.report.story import last_scores

    scores = last_scores(story.run)
    if math.isnan(scores["loss"]):
        return Tile(word="The model", number="not scored", note="no test records were looked at")
    if math.isnan(scores["accuracy"]):
        return Tile(
            word=f"Loss on {scored_on(story.run)}",
            number=f"{scores['loss']:.4g}",
            note=ended(story.run.status).partition(":")[0],
        )
    note = (
        f"loss {scores['loss']:.3g}; {ended(story.run.status).partition(':')[0].partition(',')[0]}"
    )
    return Tile(
        word=f"Accuracy on {scored_on(story.run)}",
        number=percent(scores["accuracy"]),
        note=note,
        share=scores["accuracy"],
    )
