"""Holds published bounds against trainings.

The federation that a claim speaks about is trained many times, and attacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from sordino.audit.audit_subject import choose_seed
from sordino.audit.auditing import audit
from sordino.audit.expected_bounds import count_needed_trainings, find_largest_mu
from sordino.audit.game import CHUNK, WorstCaseGame, make_chunks
from sordino.audit.judging import judge_scores
from sordino.audit.lower_bounds import FIRM, Scores
from sordino.audit.verdict import Claim, Finding
from sordino.federation.processors import single_threaded
from sordino.papers.claims import Verdict
from sordino.papers.parameters import Number
from sordino.papers.udp_fl import algorithm_3_step
from sordino.privacy.certify import certify
from sordino.protocol import (
    Assumptions,
    Constant,
    Cyclic,
    Data,
    FedAvg,
    FedProx,
    Gaussian,
    Interpolate,
    Model,
    NoisySgd,
    Poisson,
    Protocol,
    StageWise,
    Staircase,
    UserError,
    View,
)

Falling = Constant | Cyclic | StageWise
SCHEDULES: dict[str, type[Falling]] = {
    "convergent/theorem-3a": Constant,
    "convergent/theorem-3b": Cyclic,
    "convergent/theorem-3c": StageWise,
    "convergent/theorem-4": Constant,
}
# The least number of trainings on each side, and the number for a claim about an epsilon.
LEAST_TRAININGS = 1000
EPSILON_TRAININGS = 2000
DELTA = 1e-5
# The greatest number, even where more would be needed to refute a claim.
MOST_TRAININGS = 10**7


def federation_of(verdict: Verdict) -> Protocol:
    """Returns the federation that a claim speaks about.

    Args:
        verdict: A check of the claim, whose parameters are used.

    Raises:
        UserError: The claim is not about a federation that can be trained.

    Example:
        >>> from sordino.papers.catalogue import find
        >>> from sordino.papers.claims import check
        >>> federation_of(check(find("convergent/theorem-4"))).local.proximal
        1.0
    """
    name = verdict.claim.name
    if name in SCHEDULES:
        return average_noisy_models(verdict.parameters, SCHEDULES[name])
    if name in FEDERATIONS:
        return FEDERATIONS[name](verdict.parameters)
    measurable = ", ".join((*SCHEDULES, *FEDERATIONS))
    raise UserError(f"{name} cannot be measured by training: these can: {measurable}.")


def average_noisy_models(given: Mapping[str, Number], kind: type[Falling]) -> Protocol:
    """Returns Noisy-FedAvg or Noisy-FedProx, which convergent-dp's theorems are about.

    Args:
        given: The parameters of the claim.
        kind: The kind of schedule of the learning rates.
    """
    steps: dict[str, Any] = {
        "steps": int(given["steps"]),
        # One record for each client and step: the exchanged record is then in every gradient, which
        # is the worst case that the theorems speak about.
        "batch": 1,
        "clip": float(given["clip"]),
        "schedule": kind(rate=float(given["rate"])),
    }
    local = FedAvg(**steps)
    if "proximal" in given:
        local = FedProx(**steps, proximal=float(given["proximal"]))
    return Protocol(
        # A fixed seed: a refutation that is published must be repeatable.
        seed=1,
        clients=int(given["clients"]),
        rounds=int(given["rounds"]),
        local=local,
        noise=Gaussian(sigma=float(given["sigma"])),
        assumptions=Assumptions(smoothness=float(given["smoothness"])),
    )


def add_staircase_noise(given: Mapping[str, Number]) -> Protocol:
    """Returns one client, on whose whole update is the noise that udp-fl's Algorithm 3 finds.

    Args:
        given: The parameters of the claim.
    """
    rounds = int(given["rounds"])
    step = algorithm_3_step(epsilon=float(given["epsilon"]), rounds=rounds)
    return Protocol(
        seed=1,
        clients=1,
        rounds=rounds,
        # One step at rate 1 of clip 1/2: an exchanged record moves the update by the width, 1.
        local=FedAvg(steps=1, batch=1, clip=0.5, schedule=Constant(rate=1.0)),
        noise=Staircase(step=step, width=1.0),
        model=Model(name="logistic", parameters=int(given["dimension"])),
    )


def keep_own_models(given: Mapping[str, Number]) -> Protocol:
    """Returns PriFedSync with noisy SGD and three clients.

    Args:
        given: The parameters of the claim.
    """
    return Protocol(
        seed=1,
        clients=3,
        rounds=int(given["rounds"]),
        participation=Poisson(rate=float(given.get("probability", 1.0))),
        personalization=Interpolate(alpha=0.1),
        local=NoisySgd(
            steps=int(given["steps"]),
            batch=int(given["batch"]),
            clip=1.0,
            schedule=Constant(rate=0.1),
        ),
        noise=Gaussian(multiplier=float(given["sigma"])),
        # The bound depends on the number of records, not on what they are.
        data=Data(name="mnist", records=int(given["records"])),
        model=Model(name="logistic"),
    )


# Claims about an epsilon; those of SCHEDULES are about the mu of the last model.
FEDERATIONS: Mapping[str, Callable[[Mapping[str, Number]], Protocol]] = {
    "udp-fl/algorithm-3": add_staircase_noise,
    "prifedsync/theorem-2": keep_own_models,
    "prifedsync/theorem-2-limit": keep_own_models,
}
VIEWS = {
    "udp-fl/algorithm-3": View.SERVER,
    "prifedsync/theorem-2": View.WEAK,
    "prifedsync/theorem-2-limit": View.WEAK,
}


def choose_refuting_trainings(published: float, certified: float) -> int:
    """Returns how many trainings on each side could refute a claim.

    They are also enough to show a quarter of the certified mu.

    Args:
        published: The claimed mu.
        certified: The certified mu.

    Example:
        >>> choose_refuting_trainings(0.3, 4.5), choose_refuting_trainings(6.0, 70.0)
        (1000, 16000)
    """
    # Capped, since the trainings needed grow fast with mu; the loop adds what the claim needs.
    trainings = max(LEAST_TRAININGS, count_needed_trainings(min(certified, 3.0), 0.25) or 0)
    # A margin of 2 %, since a bound exactly at the claim would not refute it.
    while find_largest_mu(trainings, FIRM) < 1.02 * published and trainings < MOST_TRAININGS:
        trainings *= 2
    return trainings


def measure(
    verdict: Verdict, folder: str | Path, *, trainings: int | None = None, **options: Any
) -> Finding:
    """Audits what a claim's adversary sees, which for claims about a mu is the last model.

    Args:
        verdict: A check of the claim.
        folder: The folder of the audit.
        trainings: The number of trainings on each side; by default enough to refute the claim.
        **options: The options of `sordino.audit.auditing.audit`.

    Returns:
        The finding, with a verdict on the claim.

    Raises:
        UserError: The claim is not about a federation that can be trained.

    Example:
        >>> finding = measure(check(find("convergent/theorem-3a")), "audits/3a")  # doctest: +SKIP
        >>> finding.claims[0].verdict  # doctest: +SKIP
        'refuted'
    """
    protocol = federation_of(verdict)
    name = verdict.claim.name
    view = VIEWS.get(name, View.FINAL)
    claim = Claim(name=name, mu=verdict.published)
    if name in FEDERATIONS:
        delta = float(verdict.parameters.get("delta", DELTA))
        claim = Claim(name=name, epsilon=verdict.published, delta=delta, view=str(view))
        trainings = trainings or EPSILON_TRAININGS
    if trainings is None:
        trainings = choose_refuting_trainings(verdict.published, certify(protocol, view).mu or 0.0)
    return audit(protocol, view, trainings=trainings, claims=(claim,), folder=folder, **options)


@dataclass(frozen=True, kw_only=True)
class InterimBound:
    """The lower bound that some of the planned trainings have shown.

    Attributes:
        trainings: The number of trainings on each side that are done.
        planned: The number of trainings on each side that are planned.
        mu_lower: The lower bound on mu that they show.
        finding: The finding, once all trainings are done.
    """

    trainings: int
    planned: int
    mu_lower: float
    finding: Finding | None = None


def measure_in_steps(
    verdict: Verdict, *, trainings: int | None = None, steps: int = 10
) -> Iterator[InterimBound]:
    """Measures as `measure` does, with no folder, and reports its progress.

    Only the last step has a verdict. The number of trainings is fixed before the first: a bound
    that is stopped when it looks good would be wrong more often than it says.

    Args:
        verdict: A check of the claim.
        trainings: The number of trainings on each side; by default enough to refute the claim.
        steps: The approximate number of reports.

    Yields:
        The bound so far.

    Raises:
        UserError: The claim is not about a federation that can be trained.

    Example:
        >>> from sordino.papers.catalogue import find
        >>> from sordino.papers.claims import check
        >>> verdict = check(find("convergent/theorem-3a"), rounds=60, clients=2)
        >>> *_, last = measure_in_steps(verdict, trainings=1000, steps=2)
        >>> last.mu_lower > 0, last.finding.claims[0].verdict
        (True, 'refuted')
    """
    if verdict.claim.name not in SCHEDULES:
        raise UserError(f"{verdict.claim.name} is not about the last model.")
    protocol = federation_of(verdict)
    certified = certify(protocol, "final")
    if trainings is None:
        trainings = choose_refuting_trainings(verdict.published, certified.mu or 0.0)
    game = WorstCaseGame(
        protocol=protocol,
        view=View.FINAL,
        unit="record",
        trainings=trainings,
        seed=choose_seed(protocol),
        rounds=protocol.rounds,
    )
    claim = Claim(name=verdict.claim.name, mu=verdict.published)
    # A power of two, since the trainings of a chunk must share a keystream.
    size = min(CHUNK, 1 << max(4, (trainings // steps).bit_length() - 1))
    chunks = sorted(make_chunks(trainings, size), key=lambda chunk: chunk.start)
    sides: dict[tuple[int, int], list[np.ndarray]] = {
        (half, side): [] for half in (0, 1) for side in (0, 1)
    }
    for start, same_start in groupby(chunks, key=lambda chunk: chunk.start):
        for chunk in same_start:
            # Several threads would change the order of sums, and with it the last bits of scores.
            with single_threaded():
                sides[chunk.half, chunk.side].append(game.play(chunk).scores)
        joined = {place: np.concatenate(parts) for place, parts in sides.items()}
        # One half of the trainings chooses the threshold and the other judges it: judging where one
        # has chosen would make the bound too good.
        scores = Scores(choosing=(joined[0, 0], joined[0, 1]), judging=(joined[1, 0], joined[1, 1]))
        finding = judge_scores(scores, certified, (claim,), 1e-5, game.description)
        is_last = start + size >= trainings
        yield InterimBound(
            trainings=scores.trainings,
            planned=trainings,
            mu_lower=finding.mu_lower,
            finding=finding if is_last else None,
        )
