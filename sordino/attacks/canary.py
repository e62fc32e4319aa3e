"""Canary: questions that tell members best (Wen et al. 2023, "Canary in a coalmine: better membership inference with ensembled
adversarial queries").

In place of a record, the attacker asks about a query near it. The query is optimised on shadow models so that those trained on the record
are confident and the others are not. It may not go far from the record, or it would fit the shadows alone. LiRA judges the answers about
the query and about the record, and the two scores are averaged, as in their ensembles of queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.attacks.game import Tick
from sordino.attacks.lira import margins, online
from sordino.attacks.observed import ObservedMembership, ObservedRecords
from sordino.attacks.shadows import Evidence, Shadows, evidence_on
from sordino.federation.models.flat import FlatModel


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """How queries are made.

    Attributes:
        iterations: of gradient descent.
        models: shadows that an iteration looks at, drawn anew each time.
        rate: of Adam, in standard deviations of the inputs.
        reach: how far a query may be from its record in any coordinate, in the same.
    """

    iterations: int = 20
    models: int = 4
    rate: float = 0.05
    reach: float = 0.2


def by_queries(
    seen: ObservedMembership,
    shadows: Shadows,
    known: Evidence,
    inputs: Tensor,
    how: Optimiser,
    tick: Tick,
) -> np.ndarray:
    """The score of each record, of whose inputs the evidence is."""
    records = ObservedRecords(inputs=inputs, labels=known.labels)
    made = queries(seen.federation.module, shadows, records, how, tick)
    return (online(known) + online(evidence_on(seen, shadows, replace(records, inputs=made)))) / 2


def queries(
    module: nn.Module, shadows: Shadows, records: ObservedRecords, how: Optimiser, tick: Tick
) -> Tensor:
    """One query for each record, optimised on these shadows."""
    flat, generator = FlatModel(module), np.random.default_rng(0)
    net = flat.net.eval().requires_grad_(False)
    spread = float(records.inputs.std())
    unit = spread if spread > 0 else 1.0  # of one record, or of equal ones, there is none
    moved = torch.zeros_like(records.inputs, requires_grad=True)
    optimizer = torch.optim.Adam([moved], lr=how.rate * unit)
    for iteration in range(how.iterations):
        optimizer.zero_grad()
        for number in generator.choice(len(shadows), min(how.models, len(shadows)), replace=False):
            flat.load(torch.from_numpy(shadows.models[number].astype(np.float32)))
            membership_loss(
                net(records.inputs + moved),
                records.labels,
                torch.from_numpy(shadows.inside[number]),
            ).backward()
        optimizer.step()
        with torch.no_grad():
            moved.clamp_(-how.reach * unit, how.reach * unit).nan_to_num_(0.0)
        tick((iteration + 1) / how.iterations)
    return (records.inputs + moved).detach()


def membership_loss(answers: Tensor, labels: Tensor, inside: Tensor) -> Tensor:
    """Minus the log-probability of guessing membership rightly, if a model says "member" as confidently as it names the class."""
    return functional.binary_cross_entropy_with_logits(
        margins(answers, labels), inside.float(), reduction="sum"
    )
