"""Published bounds held against trainings: the federation that a claim speaks about is trained many times, and attacked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from sordino.audit.auditing import audit, game_seed
from sordino.audit.bounds import FIRM, Scores, most_shown, trainings_needed
from sordino.audit.game import CHUNK, WorstCaseGame, chunks_of
from sordino.audit.verdict import Claim as Question
from sordino.audit.verdict import Finding, judged
from sordino.engines.torch_engine import single_threaded
from sordino.papers.claims import Verdict
from sordino.privacy.certify import certify
from sordino.protocol import (
    Assumptions,
    Constant,
    Cyclic,
    FedAvg,
    FedProx,
    Gaussian,
    Protocol,
    Schedule,
    StageWise,
    UserError,
    View,
)

SCHEDULES: dict[str, type[Constant] | type[Cyclic] | type[StageWise]] = {
    "convergent/theorem-3a": Constant,
    "convergent/theorem-3b": Cyclic,
    "convergent/theorem-3c": StageWise,
    "convergent/theorem-4": Constant,
}
LEAST = 1000  # trainings on each side


def federation_of(verdict: Verdict) -> Protocol:
    """The federation that a claim about the last model speaks about, at the parameters of its check.

    Raises:
        UserError: the claim is not about a federation that can be trained.

    Example:
        >>> from sordino.papers.catalogue import find
        >>> from sordino.papers.claims import check
        >>> federation_of(check(find("convergent/theorem-4"))).local.proximal
        1.0
    """
    name, given = verdict.claim.name, verdict.parameters
    if name not in SCHEDULES:
        raise UserError(
            f"{name} cannot be measured by training: these can: {', '.join(SCHEDULES)}."
        )
    schedule: Schedule = SCHEDULES[name](rate=float(given["rate"]))
    steps: dict[str, Any] = {
        "steps": int(given["steps"]),
        "batch": 1,
        "clip": float(given["clip"]),
        "schedule": schedule,
    }
    local = (
        FedProx(**steps, proximal=float(given["proximal"]))
        if "proximal" in given
        else FedAvg(**steps)
    )
    return Protocol(
        seed=1,
        clients=int(given["clients"]),
        rounds=int(given["rounds"]),
        local=local,
        noise=Gaussian(sigma=float(given["sigma"])),
        assumptions=Assumptions(smoothness=float(given["smoothness"])),
    )


def trainings_for(published: float, certified: float) -> int:
    """The fewest trainings on each side that could refute a claim of this mu, and show a quarter of what is certified.

    Example:
        >>> trainings_for(0.3, 4.5), trainings_for(6.0, 70.0)
        (1000, 16000)
    """
    trainings = max(LEAST, trainings_needed(min(certified, 3.0), 0.25))
    while most_shown(trainings, FIRM) < 1.02 * published and trainings < 10**7:
        trainings *= 2
    return trainings


def measure(
    verdict: Verdict, folder: str | Path, *, trainings: int | None = None, **options: Any
) -> Finding:
    """Audit the last model of the federation that a claim speaks about, and hold the claim against what is found.

    Example:
        >>> measure(check(find("convergent/theorem-3a")), "audits/3a").claims[0].verdict  # doctest: +SKIP
        'refuted'
    """
    protocol = federation_of(verdict)
    count = (
        trainings
        if trainings is not None
        else trainings_for(verdict.published, certify(protocol, "final").mu or 0.0)
    )
    return audit(
        protocol, "final", trainings=count, claims=(_question(verdict),), folder=folder, **options
    )


def _question(verdict: Verdict) -> Question:
    return Question(name=verdict.claim.name, mu=verdict.published)


@dataclass(frozen=True, kw_only=True)
class Look:
    """What has been shown after so many of the planned trainings on each side; the last look has the finding."""

    trainings: int
    planned: int
    mu_lower: float
    finding: Finding | None = None


def watched(verdict: Verdict, *, trainings: int | None = None, looks: int = 10) -> Iterator[Look]:
    """As `measure`, with no folder, looked at about so many times while it goes on.

    Only the last look has a verdict: the number of trainings is fixed before the first, and a bound that is stopped when it looks good
    would be wrong more often than it says.

    Example:
        >>> from sordino.papers.catalogue import find
        >>> from sordino.papers.claims import check
        >>> *_, last = watched(check(find("convergent/theorem-3a"), rounds=60, clients=2), trainings=1000, looks=2)
        >>> last.mu_lower > 0, last.finding.claims[0].verdict
        (True, 'refuted')
    """
    protocol = federation_of(verdict)
    certified = certify(protocol, "final")
    count = (
        trainings
        if trainings is not None
        else trainings_for(verdict.published, certified.mu or 0.0)
    )
    game = WorstCaseGame(
        protocol=protocol,
        view=View.FINAL,
        unit="record",
        trainings=count,
        seed=game_seed(protocol),
        rounds=protocol.rounds,
    )
    size = min(
        CHUNK, 1 << max(4, (count // looks).bit_length() - 1)
    )  # a power of two: chunks must not straddle keystreams
    sides: dict[tuple[int, int], list[np.ndarray]] = {
        (half, side): [] for half in (0, 1) for side in (0, 1)
    }
    for start, chunks in groupby(
        sorted(chunks_of(count, size), key=lambda chunk: chunk.start), key=lambda chunk: chunk.start
    ):
        for chunk in chunks:
            with single_threaded():
                sides[chunk.half, chunk.side].append(game.play(chunk).scores)
        joined = {place: np.concatenate(parts) for place, parts in sides.items()}
        scores = Scores(choosing=(joined[0, 0], joined[0, 1]), judging=(joined[1, 0], joined[1, 1]))
        finding = judged(scores, certified, (_question(verdict),), 1e-5, game.description)
        last = start + size >= count
        yield Look(
            trainings=scores.trainings,
            planned=count,
            mu_lower=finding.mu_lower,
            finding=finding if last else None,
        )
