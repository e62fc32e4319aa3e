"""Gathers all that a report says about a run, for the page, its figures and its JSON block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data import IN_PYTHON, KNOWN, LabelShares, are_scores_covered
from sordino.federation.round_metrics import OWN_SCORES
from sordino.federation.store.run import Run
from sordino.federation.store.run_folder import RunFolder
from sordino.federation.store.signatures import signers_of
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.ledger import read_ledger
from sordino.privacy.published import Withheld, find_withheld, publish_metrics
from sordino.protocol import UNITS, Budget, Protocol, View, dumps
from sordino.report.about import About, read_about
from sordino.report.drawing import MOST_POINTS, spread_indices
from sordino.report.evidence import AttackResult, Audit, read_attacks, read_audits
from sordino.report.number_formats import format_measurement, format_percent
from sordino.report.phrasing import find_test_source
from sordino.report.run_prices import (
    ClientSpending,
    Headline,
    choose_run_headline,
    group_similar_views,
    list_views_with,
    price_clients,
    price_run,
    take_in_time,
)
from sordino.report.spending_trace import SpendingCurve, trace_spending

# False positive rates at which trade-offs are drawn, denser where tests are interesting.
ALPHAS = np.concatenate([np.geomspace(1e-4, 0.04, 11), [0.05], np.linspace(0.07, 1, 40)])
# The index of 5 % in `ALPHAS`.
FIVE_PERCENT = 11
# Rows of clients in the machine-readable block.
MOST_CLIENTS = 500
# Cells of the partition (clients times labels) in the machine-readable block.
MOST_CELLS = 5000
# Metrics in the machine-readable block.
PUBLISHED = (
    "round",
    "participants",
    "loss",
    "accuracy",
    "signal_to_noise",
    "bytes_up",
    "seconds",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSummary:
    """Holds a run and everything the page says about it.

    Attributes:
        run: The run, with those of its metrics that may be published; NaN replaces the others.
        withheld: The parts left out, since the guarantee does not cover them.
        headline: View, unit and delta that it is summed up in.
        guarantees: Per unit, the headline's first, the bounds of the views; a unit that would take
            too long may lack some.
        odds: Per view, the share of cases in which the best adversary tells two neighbouring data
            sets apart, at most; in the headline's unit.
        curves: The trade-off functions at `ALPHAS` of the views that look different in a picture,
            the headline's first; in the headline's unit.
        spent: The headline's epsilon against rounds.
        clients: What each client has spent; empty where the participants are hidden.
        shares: The number of records of every client and label, where it may be shown.
        audits: What audits found.
        attacks: What attacks found.
        ledger_digest: The hash of the ledger's last line, which commits to all lines. Empty where
            anything is withheld or the records are private: the ledger seals both, and a guess of
            them could be checked against the digest.
        sealed: Whether the ledger seals what the run is priced by.
        signers: Fingerprints of the keys that have signed the run.
        about: What its owner has said about it.
    """

    run: Run
    withheld: Withheld
    headline: Headline
    guarantees: dict[str, list[Guarantee]]
    odds: dict[View, float]
    curves: dict[str, np.ndarray]
    spent: SpendingCurve
    clients: list[ClientSpending]
    shares: LabelShares | None
    audits: tuple[Audit, ...]
    attacks: tuple[AttackResult, ...]
    ledger_digest: str
    sealed: bool
    signers: tuple[str, ...]
    about: About

    @property
    def name(self) -> str:
        """The run's name: that of its folder."""
        return self.run.folder.resolve().name

    @property
    def main(self) -> Guarantee:
        """The bound that the run is summed up in."""
        view, unit, _ = self.headline
        return next(guarantee for guarantee in self.guarantees[unit] if guarantee.view == view)

    @property
    def budget(self) -> Budget | None:
        """The budget that the headline is measured against; None where it has another view."""
        budget = self.run.protocol.privacy.budget
        if budget is None:
            return None
        view, unit, delta = self.headline
        # A diverged run is not summed up in the view "final", even if its budget names it.
        same_question = (View.parse(budget.view), budget.unit, budget.delta) == (view, unit, delta)
        return budget if same_question else None

    def audits_in(self, view: View, unit: str, *, given_more: bool = False) -> list[Audit]:
        """Returns the audits of one view and unit whose lower bound holds at the headline's delta.

        Args:
            view: The adversary that the price holds against.
            unit: "record" or "client".
            given_more: Return those instead whose adversary was given more than the view. They test
                the promise, but do not bound what the view reveals.

        Returns:
            The audits, the one that shows most first.
        """
        bounds: list[tuple[float, Audit]] = []
        for audit in self.audits:
            same_question = (audit.view, audit.unit) == (str(view), unit)
            if not same_question or bool(audit.given) != given_more:
                continue
            # Epsilon grows as delta shrinks: what was shown at a smaller delta is no lower bound
            # at a larger one.
            if audit.delta < self.headline.delta:
                continue
            if audit.epsilon_lower is not None:
                bounds.append((audit.epsilon_lower, audit))
        bounds.sort(key=lambda bound: bound[0], reverse=True)
        return [audit for _, audit in bounds]


def summarize_run(source: str | Path | Run, headline: Headline | None = None) -> RunSummary:
    """Gathers what there is to say about a run.

    Args:
        source: The run, or its folder.
        headline: What it is summed up in; by default as its budget says.

    Returns:
        The summary.

    Raises:
        UserError: There is no run, or something in its folder is damaged.

    Example:
        >>> summarize_run("runs/digits-1").main.epsilon(1e-5)  # doctest: +SKIP
        7.93
    """
    run = source if isinstance(source, Run) else Run.load(source)
    if headline is None:
        headline = choose_run_headline(run)
    view, unit, delta = headline
    folder = RunFolder.existing(run.folder)
    audits = read_audits(run.folder)
    attacks = read_attacks(run.folder)
    views = list_views_with(run, view)
    other_unit = next(name for name in UNITS if name != unit)
    guarantees = [price_run(run, Headline(one, unit, delta)) for one in views]
    # The other unit is an extra: a page can do without some of its rows.
    others = take_in_time(price_run(run, Headline(one, other_unit, delta)) for one in views)
    withheld = find_withheld(run.protocol, view)
    clients: list[ClientSpending] = []
    if not withheld.draw:
        clients = price_clients(run, headline)
    ledger_digest = ""
    if not withheld and has_public_records(run.protocol):
        ledger_digest = read_ledger(folder.ledger_path).chain
    return RunSummary(
        run=replace(run, metrics=publish_metrics(run.metrics, withheld)),
        withheld=withheld,
        headline=headline,
        guarantees={unit: guarantees, other_unit: others},
        odds={one.view: bound_best_guess(one) for one in guarantees},
        curves=dict(take_in_time(tabulate_tradeoffs(guarantees, view, delta))),
        spent=trace_spending(run, headline),
        clients=clients,
        shares=None if has_own_files(run.protocol) else folder.shares(),
        audits=audits,
        attacks=attacks,
        ledger_digest=ledger_digest,
        sealed=run.sealed,
        signers=signers_of(run.folder),
        about=read_about(run.folder),
    )


def has_public_records(protocol: Protocol) -> bool:
    """Returns whether a run was trained on a published data set, whose records everybody knows.

    Args:
        protocol: The run's protocol.
    """
    return protocol.data is not None and protocol.data.name in KNOWN


def has_own_files(protocol: Protocol) -> bool:
    """Returns whether a run was trained on its owner's files, whose labels no page may show.

    One label of one record changes how many of it a client has, exactly.

    Args:
        protocol: The run's protocol.
    """
    if protocol.data is None:
        return False
    name = protocol.data.name
    # Only their owner knows whether data that were passed in Python are public.
    return not has_public_records(protocol) and not name.startswith(IN_PYTHON)


def tabulate_tradeoffs(
    guarantees: list[Guarantee], first: View, delta: float
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the trade-off functions of views that look different in a picture.

    Args:
        guarantees: One for each view.
        first: The view whose curve comes first.
        delta: Where views are compared.

    Yields:
        The joint name of the views, and the least false negative rates at `ALPHAS`.
    """
    groups = group_similar_views(guarantees, delta)
    for name in sorted(groups, key=lambda joint: str(first) not in joint.split(", ")):
        betas = groups[name].curve.betas(ALPHAS)
        if len(groups) == 1:
            name = "all views"
        yield name, betas


def bound_best_guess(guarantee: Guarantee) -> float:
    """Bounds how often the best adversary is right about which of two data sets was used.

    The two are neighbours, and equally likely.

    Args:
        guarantee: The bound on what the adversary learns.

    Returns:
        A probability from 0.5 to 1.
    """
    # The adversary errs with probability min (alpha + beta(alpha)) / 2. The two supporting lines of
    # an epsilon keep that at (1 - delta) / (1 + e^epsilon) or above. So every epsilon gives a valid
    # bound, and the best of a few is taken; where a curve is exact at 0, that is epsilon 0.
    epsilons = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
    errors = (1 - guarantee.curve.deltas(epsilons)) / (1 + np.exp(epsilons))
    return float(np.min(1 - errors))


def run_document(run: Run) -> dict[str, Any]:
    """Returns a run as `sordino train --json` prints it.

    Args:
        run: What was trained.
    """
    headline = choose_run_headline(run)
    source = find_test_source(run)
    return {
        "folder": str(run.folder),
        "status": run.status,
        "rounds": len(run.metrics["round"]),
        **find_last_scores(run),
        "tested_on": source,
        "scores_covered": are_scores_covered(source),
        "own_models": find_own_scores(run),
        "seconds": float(run.metrics["seconds"].sum()),
        "guarantee": price_run(run, headline).as_document(headline.delta),
        "noise": run.facts["noise"],
    }


def find_last_scores(run: Run) -> dict[str, float]:
    """Returns loss and accuracy of the final model.

    Args:
        run: What was trained.

    Returns:
        "loss" and "accuracy"; NaN where they are not known.
    """
    scores = {}
    for name in ("loss", "accuracy"):
        values = run.metrics[name]
        scores[name] = float("nan")
        if len(values) > 0:
            scores[name] = float(values[-1])
    return scores


def list_known_scores(run: Run) -> list[tuple[str, str]]:
    """Lists the scores of the final model that are known, as texts; none where it was not scored.

    Args:
        run: What was trained.
    """
    scores = find_last_scores(run)
    known = []
    if not math.isnan(scores["accuracy"]):
        known.append(("accuracy", format_percent(scores["accuracy"])))
    if not math.isnan(scores["loss"]):
        known.append(("loss", format_measurement(scores["loss"])))
    return known


def find_own_scores(run: Run) -> dict[str, Any] | None:
    """Returns how accurate clients' personal models were after the last round.

    Args:
        run: What was trained.

    Returns:
        "mean", "worst" and "spread" over the clients, and "covered", which is False: no guarantee
        covers them. None where clients keep no models, or their scores are withheld.
    """
    own = publish_metrics(run.metrics, find_withheld(run.protocol))
    last = {name.removeprefix("own_"): own[name][-1:] for name in OWN_SCORES}
    if len(last["accuracy"]) == 0 or math.isnan(last["accuracy"][0]):
        return None
    return {
        "mean": float(last["accuracy"][0]),
        "worst": float(last["worst"][0]),
        "spread": float(last["spread"][0]),
        "covered": False,
    }


def summary_document(summary: RunSummary) -> dict[str, Any]:
    """Returns what the machine-readable block of a page holds.

    Args:
        summary: Summary of a run.
    """
    run = summary.run
    view, unit, delta = summary.headline
    rows = select_scored_rounds(run)
    shown = PUBLISHED if find_own_scores(run) is None else (*PUBLISHED, *OWN_SCORES)
    return {
        "report": 1,
        "run": run_document(run),
        "headline": {"view": str(view), "unit": unit, "delta": delta},
        "guarantees": {
            unit: [one.as_document(delta) for one in found]
            for unit, found in summary.guarantees.items()
        },
        "best_guess": {str(one): odds for one, odds in summary.odds.items()},
        "trade_offs": {
            "alpha": ALPHAS.tolist(),
            **{names: betas.tolist() for names, betas in summary.curves.items()},
        },
        "spent": {"rounds": list(summary.spent.rounds), "epsilon": list(summary.spent.epsilons)},
        "about": asdict(summary.about),
        "withheld": list(summary.withheld.reasons),
        "metrics": {name: run.metrics[name][rows].tolist() for name in shown},
        "clients": [client_document(row) for row in summary.clients[:MOST_CLIENTS]],
        "partition": partition_document(summary.shares),
        "audits": [audit.document for audit in summary.audits],
        "attacks": [attack.as_document() for attack in summary.attacks],
        "facts": publish_facts(run),
        "ledger": {"digest": summary.ledger_digest or None, "charges": len(run.rounds_paid)},
        "seal": {"sealed": summary.sealed, "signed_by": list(summary.signers)},
        "protocol": dumps(run.protocol),
    }


def publish_facts(run: Run) -> dict[str, Any]:
    """Returns the facts about a run that a page may show.

    Args:
        run: What was trained.
    """
    facts = {key: value for key, value in run.facts.items() if key != "sizes"}
    # Whoever knows all records but one could check every guess of it against a digest of the data.
    if "data_digest" in facts and not has_public_records(run.protocol):
        facts["data_digest"] = None
    return facts


def partition_document(shares: LabelShares | None) -> dict[str, Any] | None:
    """Returns the partition as the machine-readable block holds it.

    Args:
        shares: The number of records of every client and label, where it is known.

    Returns:
        None where it is not known, or has too many cells for a page.
    """
    if shares is None or shares.counts.size > MOST_CELLS:
        return None
    return {"classes": shares.classes, "counts": shares.counts.tolist()}


def client_document(row: ClientSpending) -> dict[str, Any]:
    """Returns a client as the machine-readable block holds it.

    Args:
        row: What the client has spent.
    """
    budget = None
    if row.budget is not None:
        budget = row.budget.epsilon
    return {
        "client": row.client,
        "records": row.records,
        "rounds": row.rounds,
        "unit": row.unit,
        "delta": row.delta,
        "epsilon": row.epsilon,
        "budget": budget,
    }


def select_scored_rounds(run: Run, most: int = MOST_POINTS) -> np.ndarray:
    """Selects rounds whose model was scored, the last among them.

    Args:
        run: What was trained.
        most: The largest number of rounds to select.

    Returns:
        Their indices in the metrics.
    """
    scored = np.flatnonzero(np.isfinite(run.metrics["loss"].astype(float)))
    chosen: np.ndarray = scored[spread_indices(len(scored), most)]
    return chosen
