"""Canary, a membership attack by queries that separate members best (Wen et al. 2023).

The paper is "Canary in a coalmine: better membership inference with ensembled adversarial queries".
In place of a record, the attacker asks about a query near it. The query is optimised on shadow
models so that those trained on the record are confident and the others are not. It may not go far
from the record, or it would fit the shadows alone. LiRA judges the answers about the query and
about the record, and the two scores are averaged, as in the paper's ensembles of queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.attacks.attack import Tick
from sordino.attacks.lira import class_margins, score_online
from sordino.attacks.observed import ObservedMembership, ObservedRecords
from sordino.attacks.shadows import MembershipEvidence, Shadows, collect_evidence
from sordino.models.flat import FlatModel


@dataclass(frozen=True, kw_only=True)
class QueryOptimiser:
    """The settings by which queries are optimised.

    Attributes:
        iterations: The steps of gradient descent.
        models: The number of shadows that a step uses, drawn afresh for each.
        rate: The rate of Adam, in standard deviations of the inputs.
        reach: How far a query may be from its record in any coordinate, in the same unit.
    """

    iterations: int = 20
    models: int = 4
    rate: float = 0.05
    reach: float = 0.2


def score_by_queries(
    seen: ObservedMembership,
    shadows: Shadows,
    known: MembershipEvidence,
    inputs: Tensor,
    optimiser: QueryOptimiser,
    tick: Tick,
) -> np.ndarray:
    """Returns the mean of LiRA's scores of the records and of the queries near them.

    Args:
        seen: What the attacker is given.
        shadows: The attacker's models.
        known: Answers about the records in question.
        inputs: The records in question, in the same order.
        optimiser: How queries are made.
        tick: Called with the share of the work that is done.

    Returns:
        One score for each record; higher speaks for a member.
    """
    records = ObservedRecords(inputs=inputs, labels=known.labels)
    queries = optimise_queries(seen.federation.module, shadows, records, optimiser, tick)
    about_queries = collect_evidence(seen, shadows, replace(records, inputs=queries))
    scores: np.ndarray = (score_online(known) + score_online(about_queries)) / 2
    return scores


def optimise_queries(
    module: nn.Module,
    shadows: Shadows,
    records: ObservedRecords,
    optimiser: QueryOptimiser,
    tick: Tick,
) -> Tensor:
    """Returns one query for each record, optimised on the shadows.

    Args:
        module: The structure of the models.
        shadows: The attacker's models.
        records: The records in question.
        optimiser: How queries are made.
        tick: Called with the share of the work that is done.

    Returns:
        The queries, in the shape of the records.
    """
    flat = FlatModel(module)
    net = flat.net.eval().requires_grad_(False)
    # A fixed seed, so that an attack that is repeated finds the same queries.
    generator = np.random.default_rng(0)
    # A single record, or equal ones, have no spread.
    unit = float(records.inputs.std())
    if not unit > 0:
        unit = 1.0
    # The offset starts at zero: without any step, the query is the record.
    offset = torch.zeros_like(records.inputs, requires_grad=True)
    adam = torch.optim.Adam([offset], lr=optimiser.rate * unit)
    models_per_step = min(optimiser.models, len(shadows))
    for iteration in range(optimiser.iterations):
        adam.zero_grad()
        # Only some models for each step: the ensemble would otherwise fit these shadows and no
        # other.
        for number in generator.choice(len(shadows), models_per_step, replace=False):
            flat.load(torch.from_numpy(shadows.models[number].astype(np.float32)))
            inside = torch.from_numpy(shadows.inside[number])
            membership_loss(net(records.inputs + offset), records.labels, inside).backward()
        adam.step()
        with torch.no_grad():
            # The query stays near the record, or it would fit the shadows alone; a diverged
            # gradient leaves it where the record is.
            reach = optimiser.reach * unit
            offset.clamp_(-reach, reach).nan_to_num_(0.0)
        tick((iteration + 1) / optimiser.iterations)
    return (records.inputs + offset).detach()


def membership_loss(answers: Tensor, labels: Tensor, inside: Tensor) -> Tensor:
    """Returns minus the log-probability of guessing membership from the confidence in the class.

    Args:
        answers: Logits of one model.
        labels: The classes of the records.
        inside: Whether the model was trained on each record.

    Returns:
        The sum over the records.
    """
    margins = class_margins(answers, labels)
    return functional.binary_cross_entropy_with_logits(margins, inside.float(), reduction="sum")
