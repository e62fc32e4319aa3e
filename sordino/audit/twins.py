"""Twins: two trainings that differ in one record and share every draw, and how far apart their models can come at most.

Twins are a federation and its neighbour: one record of one client is replaced, or all of that client's records. Minibatches, noise
and who takes part are the same, so in the difference of the two models the noise cancels, and what is left is the data's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sordino.engines.torch_engine import TorchEngine
from sordino.federation.aggregation import upload_weights
from sordino.federation.exchange import next_model
from sordino.federation.participation import Attendance, participants
from sordino.federation.setup import Setup, Tensors
from sordino.privacy.caps import all_caps
from sordino.privacy.uploads import Dynamics, upload_prices
from sordino.protocol import (
    UNITS,
    Aggregation,
    FedAvg,
    InvalidValue,
    Mean,
    Median,
    ModeConnectivity,
    NoisySgd,
    Protocol,
    Scaffold,
    UserError,
)
from sordino.protocol.entries import one_of


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """What differs between twins: one record of a client, or all of them.

    Example:
        >>> Replaced(client=3).unit
        'record'
    """

    client: int = 0
    record: int = 0  # its place among the client's records; of no meaning where all are replaced
    unit: str = "record"


@dataclass(frozen=True, kw_only=True, eq=False)
class Twins:
    """Two federations that differ in what was replaced and in nothing else: the keys of all draws are the same."""

    one: Setup
    other: Setup
    replaced: Replaced


@dataclass(frozen=True, kw_only=True, eq=False)
class TwinRun:
    """What became of twins: the distance of their models after every round, and the first one's accuracy if it was scored."""

    distances: np.ndarray
    accuracy: float | None


def twins(setup: Setup, replaced: Replaced | None = None) -> Twins:
    """A federation and its neighbour.

    A replaced record is the negative image under the next label; in a regression its target is moved to the far end of the range.

    Raises:
        UserError: there is no such client, record or unit.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol
        >>> from sordino.federation.setup import prepare
        >>> local = FedAvg(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(seed=1, clients=5, rounds=3, local=local, noise=Gaussian(sigma=0.01))
        >>> pair = twins(prepare(protocol, data="digits", model="logistic"))
        >>> int((pair.one.train.y != pair.other.train.y).sum())
        1
    """
    refuse_unmeasured(setup.protocol)
    replaced = replaced if replaced is not None else Replaced()
    if replaced.unit not in UNITS:
        raise InvalidValue("unit", replaced.unit, one_of(UNITS))
    if not 0 <= replaced.client < len(setup.parts):
        raise InvalidValue("client", replaced.client, f"a number from 0 to {len(setup.parts) - 1}")
    rows = setup.parts[replaced.client]
    if not 0 <= replaced.record < len(rows):
        raise InvalidValue(
            "record",
            replaced.record,
            f"a number from 0 to {len(rows) - 1}, the records of client {replaced.client}",
        )
    chosen = torch.from_numpy(
        rows if replaced.unit == "client" else rows[replaced.record : replaced.record + 1]
    )
    train = (
        negated(setup.train, chosen, setup.outputs)
        if setup.classification
        else moved(setup.train, chosen)
    )
    return Twins(one=setup, other=replace(setup, train=train), replaced=replaced)


def refuse_unmeasured(protocol: Protocol) -> None:
    """Twins are held against bounds on the distance of models, which are known for clipped steps and a mean or a median of uploads."""
    local, rule = protocol.local, protocol.aggregation
    whole = isinstance(local, FedAvg) and local.clip_target == "update"
    fixed = isinstance(rule, Mean) and rule.denominator == "fixed"
    carried = (
        protocol.penalty
        or isinstance(local, (Scaffold, NoisySgd))
        or isinstance(rule, ModeConnectivity)
        or protocol.keeps_models
    )
    if whole or fixed or carried or protocol.noise.where != "client":
        raise UserError(
            "--sensitivity measures clipped steps under noise at the client, joined by a mean of who took part or a median."
        )


def negated(train: Tensors, rows: torch.Tensor, classes: int) -> Tensors:
    """The records with some rows as negative images, light for dark, under the next label."""
    x, y = train.x.clone(), train.y.clone()
    x[rows] = (x.max() - x[rows]) + x.min()  # in this order bytes stay bytes
    y[rows] = (y[rows] + 1) % classes
    return replace(train, x=x, y=y)


def moved(train: Tensors, rows: torch.Tensor) -> Tensors:
    """The records with the targets of some rows at the far end of all targets; by one where all targets are equal."""
    y = train.y.clone()
    low, high, present = y.amin(dim=0), y.amax(dim=0), y[rows]
    far = torch.where(present - low > high - present, low, high)
    y[rows] = torch.where(low == high, present + 1, far)
    return replace(train, y=y)


def attending(setup: Setup) -> Iterator[np.ndarray]:
    """Who takes part, round by round, as in training. A budget of the run as a whole does not end it: nothing is released here."""
    protocol = setup.protocol
    attendance = Attendance(all_caps(protocol, setup.sizes.tolist()), (), next_round=0)
    for t in range(protocol.rounds):
        yield attendance.admit(
            participants(protocol, round=t, key=setup.draw_key, training=setup.training), round=t
        )


def models(setup: Setup, engine: TorchEngine) -> Iterator[np.ndarray]:
    """The global model after every round, as `loop.Training` makes it."""
    weights = setup.initial_weights()
    for t, chosen in enumerate(attending(setup)):
        uploads = (
            upload.vector
            for upload in engine.uploads(round=t, weights=weights, participants=chosen)
        )
        weights = next_model(setup, weights, uploads, chosen, round=t)
        yield weights


def train_twins(
    pair: Twins,
    *,
    workers: int | None = None,
    score: bool = False,
    on_round: Callable[[], None] = lambda: None,
) -> TwinRun:
    """Train both in lock step, so that no more than two models are held, and take their distance after every round.

    The two take turns with as many worker processes as there are cores, so every core is busy and one twin's wait while the other works.
    From the round on in which a model is no longer finite, the distance is infinite. With `score`, the accuracy of the first twin's last
    model on the test records (`Setup.tested_on`) is taken as well.

    Example:
        >>> train_twins(twins(setup)).distances  # doctest: +SKIP
        array([0.00125, 0.00246, ...])
    """
    distances = np.full(pair.one.protocol.rounds, math.inf)
    with (
        TorchEngine(pair.one, workers=workers) as first,
        TorchEngine(pair.other, workers=workers) as second,
    ):
        one = None
        for t, (one, other) in enumerate(
            zip(models(pair.one, first), models(pair.other, second), strict=True)
        ):
            distance = float(np.linalg.norm(one.astype(np.float64) - other.astype(np.float64)))
            if not math.isfinite(distance):
                break
            distances[t] = distance
            on_round()
        scored = (
            score and pair.one.classification and one is not None and bool(np.isfinite(one).all())
        )
        final = first.score(one) if scored and one is not None else None
    return TwinRun(
        distances=distances, accuracy=final.correct / final.count if final is not None else None
    )


def distance_bounds(pair: Twins) -> np.ndarray:
    """How far apart the twins' models can be after every round, at most: for every loss, every pair of records and every minibatch.

    Two local trainings from models at distance d end no further apart than (`uploads.Dynamics`)

        attacked client:    stretch d + shift, for the smallest stretch that is known
        any other client:   0 if d = 0, since equal models trained alike on equal records stay equal;
                            stretch d if the loss is vouched to be smooth, or the rule is clipped-glm;
                            d + shift without that: clipped steps of two models differ by up to 2V, whatever the loss.

    The mean over those who take part weighs the attacked client by its share p, the other clients by 1 - p, and a mixing b moves by
    (1 - b) d + b mean. Twins start equal, so the first round in which the attacked client takes part costs b p shift. Without a
    vouched smoothness every client may then cost a shift in every later round: a loss as steep as the sign of a weight attains that. A
    median moves by no more than the root of the sum of squares of the uploads' moves, after what all uploads move by alike.
    Projection onto a ball brings two models no further apart, and never beyond its diameter. This is exact arithmetic: models are kept
    in float32, whose rounding moves them by about 1e-7 of their norm in every round.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol
        >>> from sordino.federation.setup import prepare
        >>> local = FedAvg(steps=5, batch=8, clip=1.0, schedule=Constant(rate=0.1))
        >>> protocol = Protocol(seed=1, clients=10, rounds=3, local=local, noise=Gaussian(sigma=0.01))
        >>> distance_bounds(twins(prepare(protocol, data="digits", model="logistic"))).round(9).tolist()
        [0.1, 1.1, 2.1]
    """
    setup, replaced, protocol = pair.one, pair.replaced, pair.one.protocol
    prices = upload_prices(
        protocol, np.arange(protocol.rounds), replaced.unit, len(setup.parts[replaced.client])
    )
    diameter = (
        protocol.assumptions.diameter if protocol.assumptions.diameter is not None else math.inf
    )
    bounds, distance = np.zeros(protocol.rounds), 0.0
    for t, chosen in enumerate(attending(setup)):
        if len(chosen) > 0:
            weights = upload_weights(protocol.aggregation, setup.sizes[chosen])
            share = float(weights[chosen == replaced.client].sum() / weights.sum())
            moves = [Move.of(dynamics, t) for dynamics in prices.dynamics]
            distance = min(
                next_distance(protocol.aggregation, distance, moves, share, len(chosen)), diameter
            )
        bounds[t] = distance
    return bounds


@dataclass(frozen=True, kw_only=True)
class Move:
    """One way to bound how a round moves two uploads apart: stretch d + shift, the shift for the attacked client alone if `shared`."""

    stretch: float
    shift: float
    shared: bool

    @classmethod
    def of(cls, dynamics: Dynamics, round: int) -> Move:
        """The round's entry of the dynamics."""
        return cls(
            stretch=float(dynamics.stretch[round]),
            shift=float(dynamics.shift[round]),
            shared=dynamics.shared,
        )

    def stretched(self, distance: float) -> float:
        """What is left of the distance of the models; nothing of none, even if the stretch overflowed."""
        return self.stretch * distance if distance > 0 else 0.0

    def others(self, distance: float) -> float:
        """How far apart the uploads of a client with equal records come."""
        return self.stretched(distance) + (0.0 if self.shared or distance == 0 else self.shift)


def next_distance(
    rule: Aggregation, distance: float, moves: Sequence[Move], share: float, participants: int
) -> float:
    """The bound after one round, from the bound before; `share` is the attacked client's, 0 if it does not take part.

    Example:
        >>> from sordino.protocol import Mean
        >>> steep = Move(stretch=1.0, shift=0.5, shared=False)
        >>> next_distance(Mean(), 0.0, [steep], 0.1, 10), next_distance(Mean(), 1.0, [steep], 0.1, 10)
        (0.05, 1.5)
    """
    attacked = min(move.stretched(distance) + move.shift for move in moves)
    if isinstance(rule, Median):
        return min(_median_distance(distance, move, share > 0, participants) for move in moves)
    others = min(move.others(distance) for move in moves)
    mean = sum(
        weight * apart for weight, apart in ((share, attacked), (1 - share, others)) if weight > 0
    )
    mixing = rule.mixing if isinstance(rule, Mean) else 1.0
    return (1 - mixing) * distance + mixing * mean if mixing < 1 else mean


def _median_distance(distance: float, move: Move, attacked: bool, participants: int) -> float:
    # Uploads of clipped steps are the model plus something bounded: the model's move is common to all, and a median follows it.
    common = 0.0 if move.shared else move.stretched(distance)
    attacked_rest = move.stretched(distance) - common + move.shift
    other_rest = move.others(distance) - common
    others = participants - attacked
    return common + math.hypot(attacked_rest if attacked else 0.0, math.sqrt(others) * other_rest)
