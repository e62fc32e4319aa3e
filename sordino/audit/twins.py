"""Trains twins: two federations that differ in one record and share every draw.

Twins are a federation and its neighbour: one record of one client is replaced, or all of that
client's records. Minibatches, noise and cohorts are the same, so in the difference of the two
models the noise cancels, and the rest is due to the data. The distance is held against the largest
one that the sensitivity of uploads allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from sordino.engines.choice import choose
from sordino.federation.attendance import Attendance, draw_attendance
from sordino.federation.record_tensors import Tensors
from sordino.federation.round import Engine, play_training
from sordino.federation.setup import Setup
from sordino.privacy.participation_caps import all_caps
from sordino.protocol import (
    UNITS,
    InvalidValue,
    Protocol,
    UserError,
)
from sordino.protocol.spelling import one_of


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """Describes what differs between twins: one record of a client, or all of them.

    Attributes:
        client: The attacked client.
        record: The record's place among the client's; of no meaning where all are replaced.
        unit: "record" or "client".

    Example:
        >>> Replaced(client=3).unit
        'record'
    """

    client: int = 0
    record: int = 0
    unit: str = "record"


@dataclass(frozen=True, kw_only=True, eq=False)
class Twins:
    """Holds two federations that differ in what was replaced; the keys of all draws are the same.

    Attributes:
        one: The federation as it is.
        other: Its neighbour.
        replaced: What differs.
    """

    one: Setup
    other: Setup
    replaced: Replaced


@dataclass(frozen=True, kw_only=True, eq=False)
class TwinRun:
    """Holds what became of twins.

    Attributes:
        distances: The distance of the two models after every round.
        accuracy: The first twin's, if it was scored.
    """

    distances: np.ndarray
    accuracy: float | None


def make_twins(setup: Setup, replaced: Replaced | None = None) -> Twins:
    """Returns a federation and its neighbour.

    A replaced record is the negative image under the next label; in a regression its target is
    moved to the far end of the range.

    Args:
        setup: The federation.
        replaced: What differs; by default the first record of the first client.

    Returns:
        Both federations.

    Raises:
        UserError: There is no such client, record or unit.

    Example:
        >>> from sordino import Constant, FedAvg, Gaussian, Protocol
        >>> from sordino.federation.setup import prepare
        >>> local = FedAvg(steps=2, batch=8, clip=1.0, schedule=Constant(rate=0.1))
        >>> noise = Gaussian(sigma=0.01)
        >>> protocol = Protocol(seed=1, clients=5, rounds=3, local=local, noise=noise)
        >>> pair = make_twins(prepare(protocol, data="digits", model="logistic"))
        >>> int((pair.one.train.y != pair.other.train.y).sum())
        1
    """
    refuse_unbounded(setup.protocol)
    if replaced is None:
        replaced = Replaced()
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
    if replaced.unit == "record":
        rows = rows[replaced.record : replaced.record + 1]
    chosen = torch.from_numpy(rows)
    if setup.classification:
        train = negate_images(setup.train, chosen, setup.outputs)
    else:
        train = move_targets(setup.train, chosen)
    # The keys are copied with the rest: equal draws are what makes the noise cancel.
    return Twins(one=setup, other=replace(setup, train=train), replaced=replaced)


def refuse_unbounded(protocol: Protocol) -> None:
    """Refuses protocols for which no bound on the distance of twins is known.

    It is known for clipped steps and a mean or a median of uploads.

    Args:
        protocol: The federation that is audited.

    Raises:
        UserError: It says what can be measured.
    """
    release = protocol.release
    rule = protocol.aggregation
    # Control variates, personal models and penalties carry a difference of the twins from round to
    # round with the model, and a bend is trained by steps that nobody clips.
    carried = protocol.penalty or protocol.local.corrected or protocol.keeps_models
    bent = rule.public is not None
    # The recursion below counts clipped steps: a whole clipped update and noise within the steps
    # move two uploads apart by other amounts.
    other_steps = release.clips_update or release.in_steps
    other_noise = release.at_server
    if other_steps or rule.fixed_denominator or carried or bent or other_noise:
        raise UserError(
            "--sensitivity measures clipped steps under noise at the client, joined by a mean of "
            "who took part or a median."
        )
    # What rounding does to the distance of two models from round to round is not known.
    if release.integers:
        raise UserError(
            "--sensitivity has no bound for uploads that are rounded to integers, as fresh noise "
            'has them (noise.secure = true): set noise.arithmetic = "floats".'
        )


def negate_images(train: Tensors, rows: torch.Tensor, classes: int) -> Tensors:
    """Returns the records with some rows as negative images, light for dark, under the next label.

    Args:
        train: The records.
        rows: The numbers of the rows.
        classes: How many labels there are.

    Returns:
        New records; the given ones stay as they are.
    """
    x = train.x.clone()
    y = train.y.clone()
    # In this order bytes stay bytes: no intermediate value leaves their range.
    x[rows] = (x.max() - x[rows]) + x.min()
    y[rows] = (y[rows] + 1) % classes
    return replace(train, x=x, y=y)


def move_targets(train: Tensors, rows: torch.Tensor) -> Tensors:
    """Returns the records with the targets of some rows at the far end of all targets.

    Where all targets are equal, they are moved by one.

    Args:
        train: The records.
        rows: The numbers of the rows.

    Returns:
        New records; the given ones stay as they are.
    """
    y = train.y.clone()
    low = y.amin(dim=0)
    high = y.amax(dim=0)
    present = y[rows]
    far = torch.where(present - low > high - present, low, high)
    y[rows] = torch.where(low == high, present + 1, far)
    return replace(train, y=y)


def draw_cohorts(setup: Setup) -> Iterator[np.ndarray]:
    """Yields the participants of every round, as in training.

    A budget of the run as a whole does not end it: nothing is released here.

    Args:
        setup: The federation.

    Yields:
        The clients of a round, in ascending order.
    """
    protocol = setup.protocol
    attendance = Attendance(all_caps(protocol, setup.sizes.tolist()), (), next_round=0)
    one = range(setup.training, setup.training + 1)
    for t in range(protocol.rounds):
        drawn = draw_attendance(protocol, round_index=t, key=setup.draw_key, trainings=one)
        yield np.flatnonzero(attendance.admit(drawn, round_index=t))


def play_models(setup: Setup, engine: Engine) -> Iterator[np.ndarray]:
    """Yields the global model after every round.

    Args:
        setup: The federation.
        engine: What trains its clients.

    Yields:
        The weights after a round.
    """
    caps = all_caps(setup.protocol, setup.sizes.tolist())
    for record in play_training(setup, engine, setup.protocol.rounds, caps=caps):
        yield record.after.weights


def train_twins(
    pair: Twins,
    *,
    engine: str = "auto",
    workers: int | None = None,
    score: bool = False,
    on_round: Callable[[], None] = lambda: None,
) -> TwinRun:
    """Trains both twins in lock step and measures their distance after every round.

    No more than two models are held. The two take turns with as many workers as there are cores, so
    every core is busy, and one twin's wait while the other works. Both have the same engine. From
    the round on in which a model is no longer finite, the distance is infinite.

    Args:
        pair: The twins.
        engine: "auto", "native" or "torch".
        workers: How many processes or threads each has; None for one per core.
        score: Whether the accuracy of the first twin's last model is taken, on the test records
            (`Setup.tested_on`).
        on_round: Called after every round.

    Returns:
        The distances, and the accuracy if it was wanted.

    Example:
        >>> train_twins(make_twins(setup)).distances  # doctest: +SKIP
        array([0.00125, 0.00246, ...])
    """
    distances = np.full(pair.one.protocol.rounds, math.inf)
    chosen = choose(pair.one, engine)
    with (
        chosen.start(pair.one, workers=workers, device="cpu") as first,
        chosen.start(pair.other, workers=workers, device="cpu") as second,
    ):
        one = None
        for t, (one, other) in enumerate(
            zip(play_models(pair.one, first), play_models(pair.other, second), strict=True)
        ):
            distance = float(np.linalg.norm(one.astype(np.float64) - other.astype(np.float64)))
            # A diverged model stays diverged; the distances to come are infinite already.
            if not math.isfinite(distance):
                break
            distances[t] = distance
            on_round()
        accuracy = None
        if score and pair.one.classification and one is not None and np.isfinite(one).all():
            final = first.score(one)
            accuracy = final.correct / final.count
    return TwinRun(distances=distances, accuracy=accuracy)
