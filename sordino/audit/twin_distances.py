"""Bounds the distance of twins: how far one clipped record can move any global model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.audit.twins import Twins, draw_cohorts
from sordino.federation.aggregation.joining import weigh_clients
from sordino.privacy.upload_sensitivity import Dynamics, price_uploads
from sordino.protocol import (
    Aggregation,
    Mean,
    Median,
    UserError,
)
from sordino.protocol.aggregation_kinds import find_mixing
from sordino.protocol.registry import Registry


def distance_bounds(pair: Twins) -> np.ndarray:
    """Returns how far apart the twins' models can be at most, after every round.

    The bound holds for every loss, every pair of records and every minibatch. Two local trainings
    from models at distance d end no further apart than (`upload_sensitivity.Dynamics`)

        attacked client:    stretch d + shift, for the smallest stretch that is known
        any other client:   0 if d = 0, since equal models trained on equal records stay equal;
                            stretch d if the loss is vouched to be smooth, or the rule is
                            clipped-glm;
                            d + shift without that: clipped steps of two models differ by up to 2V,
                            whatever the loss.

    The mean over those who take part weighs the attacked client by its share p, the other clients
    by 1 - p, and a mixing b moves by (1 - b) d + b mean. Twins start equal, so the first round in
    which the attacked client takes part costs b p shift. Without a vouched smoothness every client
    may then cost a shift in every later round: a loss as steep as the sign of a weight attains
    that. A median moves by no more than the root of the sum of squares of the uploads' moves, after
    the move that all uploads have in common. Projection onto a ball brings two models no further
    apart, and never beyond its diameter. This is exact arithmetic: models are kept in float32,
    whose rounding moves them by about 1e-7 of their norm in every round.

    Args:
        pair: The twins.

    Returns:
        One bound per round.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol
        >>> from sordino.audit.twins import make_twins
        >>> from sordino.federation.setup import prepare
        >>> local = FedAvg(steps=5, batch=8, clip=1.0, schedule=Constant(rate=0.1))
        >>> noise = Gaussian(sigma=0.01)
        >>> protocol = Protocol(seed=1, clients=10, rounds=3, local=local, noise=noise)
        >>> pair = make_twins(prepare(protocol, data="digits", model="logistic"))
        >>> distance_bounds(pair).round(9).tolist()
        [0.1, 1.1, 2.1]
    """
    setup = pair.one
    replaced = pair.replaced
    protocol = setup.protocol
    if not protocol.plain_server:
        raise UserError(
            "no bound on the distance of twins is known where the server takes its own steps: "
            f'federation.server = "{protocol.server.tag}", local.rule = "{protocol.local.tag}". '
            'Expected "none", and a rule other than dp-sgd.'
        )
    prices = price_uploads(
        protocol, np.arange(protocol.rounds), replaced.unit, len(setup.parts[replaced.client])
    )
    diameter = protocol.assumptions.diameter
    if diameter is None:
        diameter = math.inf
    bounds = np.zeros(protocol.rounds)
    distance = 0.0
    for t, chosen in enumerate(draw_cohorts(setup)):
        if len(chosen) > 0:
            weights = weigh_clients(setup)[chosen]
            share = float(weights[chosen == replaced.client].sum() / weights.sum())
            moves = [Move.of(dynamics, t) for dynamics in prices.dynamics]
            joined = next_distance(protocol.aggregation, distance, moves, share, len(chosen))
            mixing = find_mixing(protocol.aggregation, t)
            # Of an infinite distance nothing is left out: infinity times zero is not a number.
            after = joined if mixing == 1 else (1 - mixing) * distance + mixing * joined
            distance = min(after, diameter)
        # A round in which nobody takes part leaves both models, and their distance, as they were.
        bounds[t] = distance
    return bounds


@dataclass(frozen=True, kw_only=True)
class Move:
    """Describes one way to bound how a round moves two uploads apart: by stretch d + shift.

    Attributes:
        stretch: What the distance of the models is multiplied by.
        shift: The distance added to it.
        shared: Whether the shift is the attacked client's alone.
    """

    stretch: float
    shift: float
    shared: bool

    @classmethod
    def of(cls, dynamics: Dynamics, round_index: int) -> Move:
        """Returns the round's entry of the dynamics.

        Args:
            dynamics: The bounds of all rounds.
            round_index: Number of the round, from 0.
        """
        return cls(
            stretch=float(dynamics.stretch[round_index]),
            shift=float(dynamics.shift[round_index]),
            shared=dynamics.shared,
        )

    def stretch_distance(self, distance: float) -> float:
        """Returns what a round leaves of the distance of the models.

        Args:
            distance: The distance before.
        """
        # Nothing of none, even if the stretch overflowed: infinity times zero is not a number.
        if distance > 0:
            return self.stretch * distance
        return 0.0

    def move_others(self, distance: float) -> float:
        """Returns how far apart the uploads of a client with equal records come.

        Args:
            distance: The distance of the models before.
        """
        stretched = self.stretch_distance(distance)
        # Equal models trained in the same way on equal records stay equal.
        if self.shared or distance == 0:
            return stretched
        return stretched + self.shift


# The bound after one round: (rule, bound before, moves, attacked share, participants) to it.
NEXT_DISTANCES: Registry[Callable[[Any, float, Sequence[Move], float, int], float]] = Registry(
    "distance of twins", "aggregation", Aggregation
)


def next_distance(
    rule: Aggregation, distance: float, moves: Sequence[Move], share: float, participants: int
) -> float:
    """Returns the bound on what one round joins, from the bound before; the mixing comes after it.

    Args:
        rule: How uploads are joined.
        distance: The bound before.
        moves: All ways to bound the round that are known; each holds, so the smallest does.
        share: The attacked client's weight, 0 if it does not take part.
        participants: How many clients take part.

    Returns:
        The bound after the round.

    Raises:
        UserError: Nothing is known about the rule.

    Example:
        >>> from sordino.protocol import Mean
        >>> steep = Move(stretch=1.0, shift=0.5, shared=False)
        >>> next_distance(Mean(), 0.0, [steep], 0.1, 10)
        0.05
        >>> next_distance(Mean(), 1.0, [steep], 0.1, 10)
        1.5
    """
    return NEXT_DISTANCES.of(rule)(rule, distance, moves, share, participants)


@NEXT_DISTANCES.register(Mean)
def _mean_distance(
    rule: Mean, distance: float, moves: Sequence[Move], share: float, participants: int
) -> float:
    attacked = min(move.stretch_distance(distance) + move.shift for move in moves)
    others = min(move.move_others(distance) for move in moves)
    # A weight of 0 is left out: a bound that overflowed would make it NaN.
    mean = 0.0
    if share > 0:
        mean += share * attacked
    if share < 1:
        mean += (1 - share) * others
    return mean


@NEXT_DISTANCES.register(Median)
def _median_distance(
    rule: Median, distance: float, moves: Sequence[Move], share: float, participants: int
) -> float:
    return min(_follow_median(distance, move, share > 0, participants) for move in moves)


@NEXT_DISTANCES.register_others
def _refuse_distance(
    rule: Aggregation, distance: float, moves: Sequence[Move], share: float, participants: int
) -> float:
    raise UserError(f"no bound on the distance of twins is known under {rule.tag}.")


def _follow_median(distance: float, move: Move, attacked: bool, participants: int) -> float:
    # Uploads of clipped steps are the model plus something bounded: the model's move is common to
    # all, and a median follows it.
    common = 0.0
    if not move.shared:
        common = move.stretch_distance(distance)
    attacked_rest = 0.0
    if attacked:
        attacked_rest = move.stretch_distance(distance) - common + move.shift
    other_rest = move.move_others(distance) - common
    # The medians of two tables differ by no more than the tables do, as one vector in the l2 norm.
    others = participants - attacked
    return common + math.hypot(attacked_rest, math.sqrt(others) * other_rest)
