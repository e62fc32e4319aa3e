"""Audits by one training, as `sordino audit --one-run` shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.protocol import Protocol, UserError
from sordino.report.formats import at_most
from sordino.ui.audit import AuditProgress, refresh_report, show
from sordino.ui.console import facts_table, messages, print_json, results

if TYPE_CHECKING:
    from sordino.audit.canary_clients import CanaryEstimate
    from sordino.privacy.guarantee import Guarantee

ONE_RUN = {"records": 1000, "clients": 20}  # canaries, at most as many as there is room for


@dataclass(frozen=True, kw_only=True)
class OneTraining:
    """What is asked of one training; `canaries` is None for as many as there is room for."""

    kind: str
    view: str
    unit: str
    delta: float
    canary: str | None
    canaries: int | None


def show_one_run(
    subject: Protocol | Path, asked: OneTraining, out: Path | None, json: bool
) -> None:
    """An audit by one training."""
    from sordino.audit.auditing import (
        caps_of,
        finish,
        game_seed,
        made_folder,
        promised,
        refuse_nothing,
        subject_of,
        with_data,
    )
    from sordino.audit.folder import AuditFolder
    from sordino.audit.one_training import audit_with_records, estimate_with_clients
    from sordino.federation.randomness import LANES, Key
    from sordino.federation.setup import prepare

    if asked.kind not in ONE_RUN:
        raise UserError(f"--one-run {asked.kind!r}: expected records or clients.")
    if asked.canary == "crafted":
        raise UserError(
            "--canary crafted with --one-run: one such search for every canary takes too long. Use mislabelled or random."
        )
    found = with_data(subject_of(subject), asked.canary or "mislabelled", None, None)
    needed = "client" if asked.kind == "clients" else "record"
    if asked.unit != needed and not (asked.kind == "clients" and asked.unit == "record"):
        raise UserError(
            f"--unit {asked.unit} with --one-run {asked.kind}: canary {asked.kind} speak about one {needed}."
        )
    certified = promised(found, asked.view, needed, asked.delta)
    refuse_nothing(certified)
    setup = prepare(found.protocol)
    room = int(setup.sizes.sum()) if asked.kind == "records" else found.protocol.clients
    count = asked.canaries if asked.canaries is not None else min(ONE_RUN[asked.kind], room)
    rounds, seed = len(set(found.rounds)), game_seed(found.protocol)
    # Keys and a number of its own: no draw is shared with a run of the same seed, and coins that came up badly once do not stay.
    key = Key.from_seed(seed)
    setup, caps = (
        replace(setup, key=key, noise_key=key, draw_key=key, training=LANES << 34),
        caps_of(found),
    )
    with AuditProgress("round") as progress:
        if asked.kind == "records":
            finding = audit_with_records(
                setup,
                certified,
                canaries=count,
                kind=asked.canary or "mislabelled",
                rounds=rounds,
                delta=asked.delta,
                seed=seed,
                caps=caps,
                on_round=progress.advance,
            )
        else:
            estimate = estimate_with_clients(
                setup,
                certified.view,
                canaries=count,
                rounds=rounds,
                delta=asked.delta,
                seed=seed,
                caps=caps,
                on_round=progress.advance,
            )
    document = (
        finding.as_document() if asked.kind == "records" else estimate_document(estimate, certified)
    )
    place = made_folder(out, found)
    finish(AuditFolder(place), document, found.run)
    messages.print(f"Audit folder: {place}", soft_wrap=True)
    if found.run is not None:
        refresh_report(found.run)
    if asked.kind == "records":
        show(finding, json=json, folder=str(place))
    else:
        show_estimate(estimate, certified, json)


def estimate_document(estimate: CanaryEstimate, certified: Guarantee) -> dict[str, Any]:
    """What canary clients suggest, as JSON says it: an estimate, so there is no lower bound."""
    mu, epsilon = estimate.mu, estimate.epsilon_of_mu
    return {
        "view": str(certified.view),
        "unit": "client",
        "mu_lower": None,
        "epsilon_lower": None,
        "delta": estimate.delta,
        "trainings": 1,
        "canaries": estimate.canaries,
        "estimate": {
            "kind": estimate.kind,
            "adjacency": estimate.adjacency,
            "mu": mu,
            "epsilon": epsilon,
            "two_bells": estimate.epsilon,
        },
        "certified": certified.as_document(estimate.delta),
    }


def show_estimate(estimate: CanaryEstimate, certified: Guarantee, json: bool) -> None:
    """What canary clients suggest, beside what is certified."""
    if json:
        print_json(estimate_document(estimate, certified))
        return
    promised = "" if certified.mu is None else f"mu = {at_most(certified.mu)}, "
    promised += f"epsilon = {at_most(certified.epsilon(estimate.delta))}"
    rows = [
        (
            "Estimate",
            f"mu = {estimate.mu:.3g}, epsilon = {estimate.epsilon_of_mu:.3g} at delta = {estimate.delta:g} ({estimate.adjacency})",
        ),
        ("From", f"one training with {estimate.canaries} canary clients; an estimate, not a bound"),
        (
            "Certified",
            f"{promised} ({certified.adjacency}: a client is replaced, which is twice as far)",
        ),
    ]
    results.print(facts_table(rows))
