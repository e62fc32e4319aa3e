"""What the server makes of the joined update of a round: plain, momentum, Adam, AdaGrad, Yogi.

It is post-processing of what clients' noise protects already, so neither steps nor moments cost
privacy. An update is the joined model minus the present one; its negative is the gradient of these
formulas. Everything is in float64 and coordinate by coordinate, so that a row of a table of
trainings has the bits of the training alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.protocol import (
    PlainServer,
    Registry,
    ServerAdaGrad,
    ServerAdam,
    ServerMomentum,
    ServerOptimizer,
    ServerYogi,
)

Moments = Mapping[str, np.ndarray]
# Names of the state among all that a server keeps.
PREFIX = "server-"


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerStep:
    """What a step of the server leads to.

    Attributes:
        move: Subtracted from the model.
        moments: What the server keeps for its next step.
    """

    move: np.ndarray
    moments: Moments


# How each kind steps: (rule, moments, gradient, number of the step for each row) to a step. Moments
# that are not there yet are zero.
SERVER_STEPS: Registry[Callable[[Any, Moments, np.ndarray, np.ndarray], ServerStep]] = Registry(
    "server's step", "server optimizer", ServerOptimizer
)


def move_model(
    rule: ServerOptimizer,
    before: np.ndarray,
    joined: np.ndarray,
    kept: Moments,
    rate: float | np.ndarray = 1.0,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the next global model, and what the server keeps for the round after.

    A round without an update leaves the model and the moments as they are.

    Args:
        rule: The protocol's server optimizer.
        before: The present global model; or a table, with one training a row.
        joined: What the uploads were joined to.
        kept: All that the server kept after the last round.
        rate: What the step is multiplied by, for all rows or one a row.

    Raises:
        UnknownKind: No step is registered for this kind.
    """
    step_server = SERVER_STEPS.of(rule)
    if rule.plain and np.ndim(rate) == 0 and rate == 1.0:
        return joined, {}
    gradient = before.astype(np.float64) - joined
    moved = (gradient != 0).any(axis=-1, keepdims=True)
    held = {}
    for name in ("first", "second"):
        held[name] = kept.get(PREFIX + name, np.zeros_like(gradient))
    steps = kept.get(PREFIX + "steps", np.zeros(moved.shape)) + moved
    # A row without a step yet is not kept; the number of its first step is 1.
    with np.errstate(invalid="ignore", over="ignore"):
        made = step_server(rule, held, gradient, np.maximum(steps, 1))
        after = np.where(moved, before - rate * made.move, before).astype(before.dtype)
    state = {}
    if made.moments:
        state[PREFIX + "steps"] = steps
    for name, moment in made.moments.items():
        state[PREFIX + name] = np.where(moved, moment, held[name])
    return after, state


@SERVER_STEPS.register(PlainServer)
def step_plainly(
    rule: PlainServer, moments: Moments, gradient: np.ndarray, steps: np.ndarray
) -> ServerStep:
    """Moves to the joined model.

    Args:
        rule: The rule, with its settings.
        moments: None.
        gradient: The update's negative.
        steps: The number of the step, for every row.
    """
    return ServerStep(move=gradient, moments={})


@SERVER_STEPS.register(ServerMomentum)
def step_with_momentum(
    rule: ServerMomentum, moments: Moments, gradient: np.ndarray, steps: np.ndarray
) -> ServerStep:
    """Moves by a sum of gradients in which older ones have faded.

    Args:
        rule: The rule, with its settings.
        moments: The sum so far.
        gradient: The update's negative.
        steps: The number of the step, for every row.
    """
    first = rule.momentum * moments["first"] + gradient
    return ServerStep(move=rule.rate * first, moments={"first": first})


@SERVER_STEPS.register(ServerAdam)
def step_by_adam(
    rule: ServerAdam, moments: Moments, gradient: np.ndarray, steps: np.ndarray
) -> ServerStep:
    """Moves by the mean gradient over the root of the mean square.

    Args:
        rule: The rule, with its settings.
        moments: Both means.
        gradient: The update's negative.
        steps: The number of the step, for every row.
    """
    second = rule.beta2 * moments["second"] + (1 - rule.beta2) * np.square(gradient)
    return _step_by_means(rule, moments, gradient, second, steps)


@SERVER_STEPS.register(ServerYogi)
def step_by_yogi(
    rule: ServerYogi, moments: Moments, gradient: np.ndarray, steps: np.ndarray
) -> ServerStep:
    """Moves as Adam does, with squares that change by steps of one size.

    Args:
        rule: The rule, with its settings.
        moments: The mean gradient and the squares.
        gradient: The update's negative.
        steps: The number of the step, for every row.
    """
    square = np.square(gradient)
    before = moments["second"]
    second = before - (1 - rule.beta2) * np.sign(before - square) * square
    return _step_by_means(rule, moments, gradient, second, steps)


def _step_by_means(
    rule: ServerAdam | ServerYogi,
    moments: Moments,
    gradient: np.ndarray,
    second: np.ndarray,
    steps: np.ndarray,
) -> ServerStep:
    first = rule.beta1 * moments["first"] + (1 - rule.beta1) * gradient
    # Moments begin at zero, and early means are too small by a known factor.
    mean = first / (1 - rule.beta1**steps)
    square = second / (1 - rule.beta2**steps)
    move = rule.rate * mean / (np.sqrt(square) + rule.tau)
    return ServerStep(move=move, moments={"first": first, "second": second})


@SERVER_STEPS.register(ServerAdaGrad)
def step_by_adagrad(
    rule: ServerAdaGrad, moments: Moments, gradient: np.ndarray, steps: np.ndarray
) -> ServerStep:
    """Moves by the gradient over the root of the sum of squares.

    Args:
        rule: The rule, with its settings.
        moments: The sum of squares so far.
        gradient: The update's negative.
        steps: The number of the step, for every row.
    """
    second = moments["second"] + np.square(gradient)
    move = rule.rate * gradient / (np.sqrt(second) + rule.tau)
    return ServerStep(move=move, moments={"second": second})
