"""Published bounds held against trainings: the federation that a claim speaks about is trained many times, and attacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sordino.audit.auditing import audit
from sordino.audit.bounds import FIRM, most_shown, trainings_needed
from sordino.audit.verdict import Claim as Question
from sordino.audit.verdict import Finding
from sordino.papers.claims import Verdict
from sordino.privacy.certify import certify
from sordino.protocol import Assumptions, Constant, Cyclic, FedAvg, FedProx, Gaussian, Protocol, Schedule, StageWise, UserError

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
        raise UserError(f"{name} cannot be measured by training: these can: {', '.join(SCHEDULES)}.")
    schedule: Schedule = SCHEDULES[name](rate=float(given["rate"]))
    steps: dict[str, Any] = {"steps": int(given["steps"]), "batch": 1, "clip": float(given["clip"]), "schedule": schedule}
    local = FedProx(**steps, proximal=float(given["proximal"])) if "proximal" in given else FedAvg(**steps)
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


def measure(verdict: Verdict, folder: str | Path, *, trainings: int | None = None, **options: Any) -> Finding:
    """Audit the last model of the federation that a claim speaks about, and hold the claim against what is found.

    Example:
        >>> measure(check(find("convergent/theorem-3a")), "audits/3a").claims[0].verdict  # doctest: +SKIP
        'refuted'
    """
    protocol = federation_of(verdict)
    certified = certify(protocol, "final").mu or 0.0
    count = trainings if trainings is not None else trainings_for(verdict.published, certified)
    question = Question(name=verdict.claim.name, mu=verdict.published)
    return audit(protocol, "final", trainings=count, claims=(question,), folder=folder, **options)
