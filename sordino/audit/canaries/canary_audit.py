"""Audits a protocol or a run by one training with canaries, and writes an audit folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordino.audit.audit_folder import AuditFolder
from sordino.audit.audit_subject import (
    Subject,
    add_real_data,
    certify_subject,
    choose_seed,
    load_subject,
    refuse_empty_release,
)
from sordino.audit.auditing import keep_finding, make_audit_folder
from sordino.audit.canaries.canary_clients import CanaryEstimate
from sordino.audit.canaries.canary_training import (
    CanaryOptions,
    OnRound,
    audit_with_records,
    estimate_with_clients,
)
from sordino.audit.engine_check import EngineCheck
from sordino.audit.verdict import Finding
from sordino.federation.setup import Setup, prepare
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import ProtocolSource, UserError
from sordino.randomness import LANES, Key

# The default number of canaries of each kind; fewer if the federation has no room for them.
DEFAULT_CANARIES = {"records": 1000, "clients": 20}
DEFAULT_CANARY = "mislabelled"
UNIT_OF = {"records": "record", "clients": "client"}


@dataclass(frozen=True, kw_only=True)
class CanaryQuestion:
    """Describes an audit by one training.

    Attributes:
        kind: "records" or "clients": the kind of the canaries.
        view: The adversary.
        unit: "record" or "client".
        delta: The delta at which epsilon is measured.
        canary: How canary records are made; None for the default.
        canaries: The number of canaries; None for the default.
    """

    kind: str
    view: str
    unit: str
    delta: float
    canary: str | None = None
    canaries: int | None = None


@dataclass(frozen=True, kw_only=True)
class CanaryAnswer:
    """Holds the outcome of one training: a lower bound from records, or an estimate from clients.

    Attributes:
        certified: The guarantee.
        result: The finding or the estimate.
        folder: The folder of the audit.
        run: The folder of the run that was audited; None for a plan.
    """

    certified: Guarantee
    result: Finding | CanaryEstimate
    folder: Path
    run: Path | None


def audit_by_one_training(
    source: ProtocolSource,
    question: CanaryQuestion,
    *,
    folder: Path | None = None,
    on_round: OnRound = lambda done, of: None,
) -> CanaryAnswer:
    """Trains once with canaries, judges the outcome, and writes an audit folder.

    Args:
        source: A protocol, its file or its tables; or the folder of a finished run.
        question: The audit to make.
        folder: The audit folder; by default a new one under audits/.
        on_round: Called after every round.

    Returns:
        The outcome.

    Raises:
        UserError: The question cannot be answered by one training.
        BudgetExceeded: The budget affords no round.
    """
    refuse_impossible(question)
    canary = question.canary or DEFAULT_CANARY
    subject = add_real_data(load_subject(source), canary, None, None)
    unit = find_unit(question)
    certified = certify_subject(subject, question.view, unit, question.delta)
    refuse_empty_release(certified)
    seed = choose_seed(subject.protocol)
    setup = prepare_with_seed(subject, seed)
    options = CanaryOptions(
        canaries=count_canaries(question, setup, subject),
        rounds=len(set(subject.rounds)),
        delta=question.delta,
        seed=seed,
        caps=subject.caps,
        engine=find_engine(subject),
        on_round=on_round,
    )
    result: Finding | CanaryEstimate
    if question.kind == "records":
        result = audit_with_records(setup, certified, options, kind=canary)
        document = result.as_document()
    else:
        result = estimate_with_clients(setup, certified.view, options)
        document = estimate_document(result, certified)
    path = make_audit_folder(folder, subject)
    keep_finding(AuditFolder(path), document, subject.run)
    return CanaryAnswer(
        certified=certified,
        result=result,
        folder=path,
        run=subject.run,
    )


def prepare_with_seed(subject: Subject, seed: int) -> Setup:
    """Returns the federation of an audit by one training.

    Args:
        subject: The plan or the run.
        seed: The seed of all draws.
    """
    key = Key.from_seed(seed)
    # The keys are the audit's, and so is the number: no draw is shared with a run of the same seed.
    return replace(
        prepare(subject.protocol), key=key, noise_key=key, draw_key=key, training=LANES << 34
    )


def refuse_impossible(question: CanaryQuestion) -> None:
    """Refuses canaries that one training cannot have.

    Args:
        question: The audit to make.

    Raises:
        UserError: An unknown kind, or canaries that take too long to make.
    """
    if question.kind not in DEFAULT_CANARIES:
        raise UserError(f"--one-run {question.kind!r}: expected records or clients.")
    if question.canary == "crafted":
        raise UserError(
            "--canary crafted with --one-run: searching for every canary would take too long. "
            "Use mislabelled or random."
        )


def find_unit(question: CanaryQuestion) -> str:
    """Returns the unit that canaries of a kind are about.

    Args:
        question: The audit to make.

    Raises:
        UserError: The question is about the other unit.
    """
    unit = UNIT_OF[question.kind]
    # "record" is the default of the option, so canary clients take it as not stated.
    if question.unit not in (unit, "record"):
        raise UserError(
            f"--unit {question.unit} with --one-run {question.kind}: canary {question.kind} are "
            f"about one {unit}. Use --unit {unit}."
        )
    return unit


def find_engine(subject: Subject) -> str:
    """Returns the engine that trains with canaries: torch if a run was trained by it, else "auto".

    Args:
        subject: The plan or the run.
    """
    # Across machines every client trains by torch. The native engine may be missing here.
    return "torch" if subject.engine in ("torch", "flower") else "auto"


def count_canaries(question: CanaryQuestion, setup: Setup, subject: Subject) -> int:
    """Returns the number of canaries: the given one, or the default as far as there is room.

    Args:
        question: The audit to make.
        setup: The federation with its data.
        subject: The plan or the run.
    """
    if question.canaries is not None:
        return question.canaries
    if question.kind == "records":
        room = int(setup.sizes.sum())
    else:
        room = subject.protocol.clients
    return min(DEFAULT_CANARIES[question.kind], room)


def estimate_document(estimate: CanaryEstimate, certified: Guarantee) -> dict[str, Any]:
    """Returns an estimate as a JSON document, whose lower bounds are null.

    Args:
        estimate: The estimate from one training with canary clients.
        certified: The guarantee about one client.
    """
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
            "mu": estimate.mu,
            "epsilon": estimate.epsilon_of_mu,
            "two_bells": estimate.epsilon,
        },
        "certified": certified.as_document(estimate.delta),
        # Canary clients send directions; torch trains the others.
        "engine": EngineCheck.without_game("torch").as_document(),
    }
