"""Trains twins: two federations that differ in one record and share every draw.

Twins are a federation and its neighbour: one record of one client is replaced, or all of that
client's records. Minibatches, noise and participants are the same, so the noise cancels in the
difference of the two models, and what remains is due to the data. The distance is compared with the
largest one that the sensitivity of uploads allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from sordino.engines.choice import choose_engine
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
        record: The place of the record among the client's; ignored if all are replaced.
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
    """Holds two federations that differ in their data and share the keys of all draws.

    Attributes:
        one: The federation with its own records.
        other: Its neighbour.
        replaced: The records that differ.
    """

    one: Setup
    other: Setup
    replaced: Replaced


@dataclass(frozen=True, kw_only=True, eq=False)
class TwinRun:
    """The outcome of training twins.

    Attributes:
        distances: The distance of the two models after every round.
        accuracy: The accuracy of the first twin's last model; None if it was not scored.
    """

    distances: np.ndarray
    accuracy: float | None


def make_twins(setup: Setup, replaced: Replaced | None = None) -> Twins:
    """Returns a federation and its neighbour.

    A replaced record is the negative image under the next label; in a regression its target is
    moved to the far end of the range.

    Args:
        setup: The federation.
        replaced: The records that differ; by default the first record of the first client.

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
    # The keys stay the same: the noise cancels because both twins draw the same.
    return Twins(one=setup, other=replace(setup, train=train), replaced=replaced)


def refuse_unbounded(protocol: Protocol) -> None:
    """Refuses protocols for which no bound on the distance of twins is known.

    A bound is known for clipped steps and a mean or a median of uploads.

    Args:
        protocol: The federation that is audited.

    Raises:
        UserError: No bound is known; the message says what can be measured.
    """
    release = protocol.release
    rule = protocol.aggregation
    # Control variates, personal models and penalties carry a difference of the twins from round to
    # round, in addition to the model; a bend is trained by steps that are not clipped.
    carried = protocol.penalty or protocol.local.corrected or protocol.keeps_models
    bent = rule.public is not None
    # `twin_distances` is about clipped steps: a clipped update, and noise within the steps, move
    # two uploads apart by other amounts.
    other_steps = release.clips_update or release.in_steps
    other_noise = release.at_server
    if other_steps or rule.fixed_denominator or carried or bent or other_noise:
        raise UserError(
            "--sensitivity measures clipped steps under noise at the client, joined by a median, "
            "or by a mean over those who took part."
        )
    # No bound is known on how far rounding drives two models apart.
    if release.integers:
        raise UserError(
            "--sensitivity has no bound for uploads that are rounded to integers, the default of "
            'noise.secure = true: set noise.arithmetic = "floats".'
        )


def negate_images(train: Tensors, rows: torch.Tensor, classes: int) -> Tensors:
    """Returns the records with some of them as negative images, under the next label.

    Args:
        train: The records.
        rows: The row numbers of the records.
        classes: The number of labels.

    Returns:
        New records; the given ones stay as they are.
    """
    x = train.x.clone()
    y = train.y.clone()
    # In this order no intermediate value leaves the range of bytes.
    x[rows] = (x.max() - x[rows]) + x.min()
    y[rows] = (y[rows] + 1) % classes
    return replace(train, x=x, y=y)


def move_targets(train: Tensors, rows: torch.Tensor) -> Tensors:
    """Returns the records with the targets of some of them at the far end of all targets.

    If all targets are equal, they are moved by one.

    Args:
        train: The records.
        rows: The row numbers of the records.

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

    The budget of the whole run is ignored, since nothing is released here.

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
        engine: The engine that trains its clients.

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

    Only two models are in memory. Both twins have the same engine and take turns, so each may use
    all cores. From the first round with a model that is not finite, the distance is infinite.

    Args:
        pair: The twins.
        engine: "auto", "native" or "torch".
        workers: How many processes or threads train each twin; None for one per core.
        score: Whether the last model of the first twin is scored on the test records
            (`Setup.tested_on`).
        on_round: Called after every round.

    Returns:
        The distances, and the accuracy if the model was scored.

    Example:
        >>> train_twins(make_twins(setup)).distances  # doctest: +SKIP
        array([0.00125, 0.00246, ...])
    """
    distances = np.full(pair.one.protocol.rounds, math.inf)
    chosen = choose_engine(pair.one, engine)
    with (
        chosen.start(pair.one, workers=workers, device="cpu") as first,
        chosen.start(pair.other, workers=workers, device="cpu") as second,
    ):
        one = None
        for t, (one, other) in enumerate(
            zip(play_models(pair.one, first), play_models(pair.other, second), strict=True)
        ):
            distance = float(np.linalg.norm(one.astype(np.float64) - other.astype(np.float64)))
            # A diverged model stays diverged; the distances to come are already set to infinity.
            if not math.isfinite(distance):
                break
            distances[t] = distance
            on_round()
        accuracy = None
        if score and pair.one.classification and one is not None and np.isfinite(one).all():
            final = first.score(one)
            accuracy = final.correct / final.count
    return TwinRun(distances=distances, accuracy=accuracy)
