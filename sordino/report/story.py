"""All that a report says about a run, gathered once: the page, its figures and its machine-readable block read it from here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.federation.data import Shares
from sordino.federation.folder import RunFolder
from sordino.federation.run import Run
from sordino.federation.signatures import signers_of
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.ledger import read as read_ledger
from sordino.privacy.published import Withheld, find_withheld, published_metrics
from sordino.protocol import UNITS, View, dumps
from sordino.report.drawing import MOST_POINTS, thinned
from sordino.report.evidence import Attack, Audit, attacks_on, audits_of
from sordino.report.promises import (
    Asked,
    ClientSpent,
    Spent,
    client_spending,
    grouped,
    headline_of,
    in_time,
    promised,
    spending,
    views_with,
)
from sordino.report.words import tested_on

ALPHAS = np.concatenate(
    [np.geomspace(1e-4, 0.04, 11), [0.05], np.linspace(0.07, 1, 40)]
)  # false positive rates at which trade-offs are drawn
FIVE = 11  # the place of 5 % among them
MOST_CLIENTS = 500  # rows of clients in the machine-readable block
MOST_CELLS = 5000  # numbers of the partition in it


@dataclass(frozen=True, kw_only=True, eq=False)
class Story:
    """A run and everything that is said about it.

    Attributes:
        run: the run, with those of its metrics that may be published; NaN stands for the others.
        withheld: what is left out, since the promise does not cover it.
        headline: view, unit and delta that it is summed up in.
        guarantees: per unit, the headline's first, the bounds of the views; a unit that would take too long may lack some.
        odds: per view, how often the best attacker tells two neighbouring data sets apart, as a share; in the headline's unit.
        curves: the trade-off function at ALPHAS, for views that can be told apart, the headline's first; in the headline's unit.
        spent: the headline's epsilon against rounds.
        clients: what each client has spent; nobody where who took part is hidden.
        shares: who has what, where it was written down.
        audits, attacks: what was found by them.
        ledger_digest: the hash that the ledger's last line is chained to; it stands for all of its lines. Empty where anything
            is withheld: the ledger seals it too, and a guess of it could be held against the digest.
        sealed: whether the ledger seals what the run is priced by.
        signers: fingerprints of the keys that have signed the run.
    """

    run: Run
    withheld: Withheld
    headline: Asked
    guarantees: dict[str, list[Guarantee]]
    odds: dict[View, float]
    curves: dict[str, np.ndarray]
    spent: Spent
    clients: list[ClientSpent]
    shares: Shares | None
    audits: tuple[Audit, ...]
    attacks: tuple[Attack, ...]
    ledger_digest: str
    sealed: bool
    signers: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's name: that of its folder."""
        return self.run.folder.resolve().name

    @property
    def main(self) -> Guarantee:
        """The bound that the run is summed up in."""
        view, unit, _ = self.headline
        return next(guarantee for guarantee in self.guarantees[unit] if guarantee.view == view)

    def audits_in(self, view: View, unit: str, *, given_more: bool = False) -> list[Audit]:
        """The audits of one view and unit that bound something, the one that shows most first.

        Whose adversary was given more than the view tests the promise, and bounds what is learned from that much only.
        """
        asked = [
            audit
            for audit in self.audits
            if (audit.view, audit.unit) == (str(view), unit) and (audit.given != "") == given_more
        ]
        found = [audit for audit in asked if audit.epsilon_lower is not None]
        return sorted(
            found,
            key=lambda audit: audit.epsilon_lower if audit.epsilon_lower is not None else 0.0,
            reverse=True,
        )


def told(source: str | Path | Run, asked: Asked | None = None) -> Story:
    """Gather what there is to say about a run; it is summed up as asked, or else as its budget says.

    Raises:
        UserError: there is no run, or something in its folder is damaged.

    Example:
        >>> told("runs/digits-1").main.epsilon(1e-5)  # doctest: +SKIP
        7.93
    """
    run = source if isinstance(source, Run) else Run.load(source)
    asked = asked if asked is not None else headline_of(run)
    view, unit, delta = asked
    place = RunFolder.existing(run.folder)
    evidence = {
        "audits": audits_of(run.folder),
        "attacks": attacks_on(run.folder),
        "shares": place.shares(),
    }
    other = next(name for name in UNITS if name != unit)
    mine = [promised(run, (one, unit, delta)) for one in views_with(run, view)]
    others = in_time(promised(run, (one, other, delta)) for one in views_with(run, view))
    drawn = in_time(tested(mine, view, delta))
    withheld = find_withheld(run.protocol, view)
    return Story(
        run=replace(run, metrics=published_metrics(run.metrics, withheld)),
        withheld=withheld,
        headline=asked,
        guarantees={unit: mine, other: others},
        odds={one.view: best_guess(one) for one in mine},
        curves=dict(drawn),
        spent=spending(run, asked),
        clients=[] if withheld.draw else client_spending(run, asked),
        ledger_digest="" if withheld else read_ledger(place.ledger_path).chain,
        sealed=run.sealed,
        signers=signers_of(run.folder),
        **evidence,  # type: ignore[arg-type]
    )


def tested(
    guarantees: list[Guarantee], first: View, delta: float
) -> Iterator[tuple[str, np.ndarray]]:
    """The trade-off functions of views that can be told apart, under joint names, one of them first."""
    groups = grouped(guarantees, delta)
    for name in sorted(groups, key=lambda joint: str(first) not in joint.split(", ")):
        yield name if len(groups) > 1 else "all views", groups[name].curve.betas(ALPHAS)


def best_guess(guarantee: Guarantee) -> float:
    """How often the best attacker is right, at most, about which of two neighbouring data sets was used, both being equally likely.

    It errs with probability min (alpha + beta(alpha)) / 2. By the two supporting lines of an epsilon, beta is at least what makes that
    (1 - delta) / (1 + e^epsilon); the largest of a few is taken. For a curve that is exact at 0 that one is the largest.
    """
    epsilons = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
    return float(np.min(1 - (1 - guarantee.curve.deltas(epsilons)) / (1 + np.exp(epsilons))))


def as_document(run: Run) -> dict[str, Any]:
    """A run as `sordino train --json` says it."""
    asked = headline_of(run)
    return {
        "folder": str(run.folder),
        "status": run.status,
        "rounds": len(run.metrics["round"]),
        **last_scores(run),
        "tested_on": tested_on(run),
        "scores_covered": tested_on(run) in ("public", "none"),
        "seconds": float(run.metrics["seconds"].sum()),
        "guarantee": promised(run, asked).as_document(asked[2]),
        "noise": run.facts["noise"],
    }


def last_scores(run: Run) -> dict[str, float]:
    """Loss and accuracy of the final model; NaN where they are not known."""
    return {
        name: float(run.metrics[name][-1]) if len(run.metrics[name]) > 0 else float("nan")
        for name in ("loss", "accuracy")
    }


def story_document(story: Story) -> dict[str, Any]:
    """What the page's machine-readable block says."""
    run, (view, unit, delta) = story.run, story.headline
    rows = scored_rounds(run)
    names = ("round", "participants", "loss", "accuracy", "signal_to_noise", "bytes_up", "seconds")
    shares = (
        story.shares
        if story.shares is not None and story.shares.counts.size <= MOST_CELLS
        else None
    )
    return {
        "report": 1,
        "run": as_document(run),
        "headline": {"view": str(view), "unit": unit, "delta": delta},
        "guarantees": {
            unit: [one.as_document(delta) for one in found]
            for unit, found in story.guarantees.items()
        },
        "best_guess": {str(one): odds for one, odds in story.odds.items()},
        "trade_offs": {
            "alpha": ALPHAS.tolist(),
            **{names: betas.tolist() for names, betas in story.curves.items()},
        },
        "spent": {"rounds": list(story.spent.rounds), "epsilon": list(story.spent.epsilons)},
        "withheld": list(story.withheld.reasons),
        "metrics": {name: run.metrics[name][rows].tolist() for name in names},
        "clients": [client_document(row) for row in story.clients[:MOST_CLIENTS]],
        "partition": None
        if shares is None
        else {"classes": shares.classes, "counts": shares.counts.tolist()},
        "audits": [audit.document for audit in story.audits],
        "attacks": [attack.as_document() for attack in story.attacks],
        "facts": {key: value for key, value in run.facts.items() if key != "sizes"},
        "ledger": {"digest": story.ledger_digest or None, "charges": len(run.rounds_paid)},
        "seal": {"sealed": story.sealed, "signed_by": list(story.signers)},
        "protocol": dumps(run.protocol),
    }


def client_document(row: ClientSpent) -> dict[str, Any]:
    """A client as the block says it."""
    return {
        "client": row.client,
        "records": row.records,
        "rounds": row.rounds,
        "unit": row.unit,
        "delta": row.delta,
        "epsilon": row.epsilon,
        "budget": None if row.budget is None else row.budget.epsilon,
    }


def scored_rounds(run: Run, most: int = MOST_POINTS) -> np.ndarray:
    """Places of some rounds whose model was scored, the last among them."""
    scored = np.flatnonzero(np.isfinite(run.metrics["loss"].astype(float)))
    return scored[thinned(len(scored), most)]
