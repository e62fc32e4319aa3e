"""Bounds the distance of twins: how far apart one record can move the global models.

The bound holds for every loss, every pair of records and every minibatch. Two local trainings
from models at distance d end no further apart than (`upload_sensitivity.Dynamics`)

    attacked client:    stretch d + shift, with the smallest stretch that is known
    any other client:   0 if d = 0, since equal models trained on equal records stay equal;
                        stretch d if the protocol vouches for a smooth loss, or the rule is
                        clipped-glm;
                        d + shift otherwise: clipped steps of two models differ by up to 2V,
                        whatever the loss.

The mean over the participants weighs the attacked client by its share p and the others by
1 - p, and a mixing b leads to the distance (1 - b) d + b mean. Twins start equal, so the first
round in which the attacked client takes part adds b p shift. If the loss need not be smooth,
every client may then add a shift in every later round: a loss whose gradient is the sign of a
weight attains that. A median moves with the move that all uploads have in common, and by no
more than the root of the sum of squares of the rest. Projection onto a ball moves two models no
further apart, and never beyond its diameter. The bound is exact for real numbers: models are
kept in float32, whose rounding moves them by about 1e-7 of their norm in every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.audit.twins import Twins, draw_cohorts
from sordino.federation.aggregation.joining import weigh_clients
from sordino.privacy.upload_sensitivity import Dynamics, price_uploads
from sordino.protocol import Aggregation, Mean, Median, UserError
from sordino.protocol.aggregation_kinds import find_mixing
from sordino.protocol.registry import Registry


def bound_distances(pair: Twins) -> np.ndarray:
    """Returns the largest possible distance of the twins' models after every round.

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
        >>> bound_distances(pair).round(9).tolist()
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
            joined = bound_next_distance(protocol.aggregation, distance, moves, share, len(chosen))
            mixing = find_mixing(protocol.aggregation, t)
            # Without mixing the distance before is not multiplied by 0, since it may be infinite.
            after = joined if mixing == 1 else (1 - mixing) * distance + mixing * joined
            distance = min(after, diameter)
        # A round without participants leaves both models, and their distance, unchanged.
        bounds[t] = distance
    return bounds


@dataclass(frozen=True, kw_only=True)
class Move:
    """Describes one way to bound how far a round moves two uploads apart: to stretch d + shift.

    Attributes:
        stretch: The factor by which the distance of the models is multiplied.
        shift: The distance that is added.
        shared: Whether only the attacked client's upload shifts.
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
        """Returns the stretched distance of the models.

        Args:
            distance: The distance before the round.
        """
        # A distance of 0 stays 0, even if the stretch overflowed: infinity times 0 is a NaN.
        if distance > 0:
            return self.stretch * distance
        return 0.0

    def move_others(self, distance: float) -> float:
        """Returns the bound on the distance of two uploads of a client with equal records.

        Args:
            distance: The distance of the models before the round.
        """
        stretched = self.stretch_distance(distance)
        # Equal models trained in the same way on equal records stay equal.
        if self.shared or distance == 0:
            return stretched
        return stretched + self.shift


# Functions from (rule, distance before, moves, attacked share, participants) to the distance after.
NEXT_DISTANCES: Registry[Callable[[Any, float, Sequence[Move], float, int], float]] = Registry(
    "distance of twins", "aggregation", Aggregation
)


def bound_next_distance(
    rule: Aggregation, distance: float, moves: Sequence[Move], share: float, participants: int
) -> float:
    """Returns the bound on the distance of the joined uploads of one round, before any mixing.

    Args:
        rule: The aggregation.
        distance: The bound on the distance before the round.
        moves: All known ways to bound the moves of the round; each holds, so the smallest does.
        share: The attacked client's weight in the mean; 0 if it does not take part.
        participants: The number of clients that take part.

    Returns:
        The bound after the round.

    Raises:
        UserError: Nothing is known about the rule.

    Example:
        >>> from sordino.protocol import Mean
        >>> steep = Move(stretch=1.0, shift=0.5, shared=False)
        >>> bound_next_distance(Mean(), 0.0, [steep], 0.1, 10)
        0.05
        >>> bound_next_distance(Mean(), 1.0, [steep], 0.1, 10)
        1.5
    """
    return NEXT_DISTANCES.of(rule)(rule, distance, moves, share, participants)


@NEXT_DISTANCES.register(Mean)
def _mean_distance(
    rule: Mean, distance: float, moves: Sequence[Move], share: float, participants: int
) -> float:
    attacked = min(move.stretch_distance(distance) + move.shift for move in moves)
    others = min(move.move_others(distance) for move in moves)
    # A weight of 0 is skipped: times a bound that overflowed it would be a NaN.
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
    # An upload of clipped steps is the model plus something bounded. All uploads share the model's
    # move, which a median follows.
    common = 0.0
    if not move.shared:
        common = move.stretch_distance(distance)
    attacked_rest = 0.0
    if attacked:
        attacked_rest = move.stretch_distance(distance) - common + move.shift
    other_rest = move.move_others(distance) - common
    # Medians of two tables differ by no more than the tables do, in the l2 norm of all entries.
    others = participants - attacked
    return common + math.hypot(attacked_rest, math.sqrt(others) * other_rest)
