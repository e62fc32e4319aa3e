"""The local rule bezier: a random point on the way back from clipped steps (udp-fl Eq. 6)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sordino.federation.rules.clipped_steps import take_clipped_steps
from sordino.federation.rules.local_training import LOCAL_RULES, Assignment, LocalResult, Worker
from sordino.federation.setup import Setup
from sordino.protocol import Bezier
from sordino.randomness import Purpose
from sordino.uniform_words import unit_interval


@LOCAL_RULES.register(Bezier)
def train_bezier(rule: Bezier, worker: Worker, task: Assignment) -> LocalResult:
    """Runs the clipped steps of one client; `draw_sent_point` says what it sends of them.

    Args:
        rule: The rule, with its settings.
        worker: Computes for the client.
        task: The round's work.
    """
    return take_clipped_steps(rule, worker, task)


def bezier_update(start: Tensor, trained: Tensor, place: Tensor | float) -> Tensor:
    """Returns a point of the quadratic Bezier curve from the trained model back to the start.

    Eq. 6 at r = `place` leads from the trained model v (r = 0) to the start w (r = 1). Theorem 5
    puts the control point at theta = 1.1 w - 0.1 v + 1.2/L, a number added to a vector. It means a
    step of size 1/L, which has a direction where the step from w to v is of that size itself: then
    theta = 1.1 w - 0.1 v + 1.2 (v - w) = 1.1 v - 0.1 w, and
    (1 - r)^2 v + 2 r (1 - r) theta + r^2 w = w + (1 - r)(1 + 1.2 r)(v - w). All in all the
    client's update gets a random size.

    Args:
        start: w, where the client began.
        trained: v, where its steps led.
        place: r, one number or one a row.

    Returns:
        The point, in the shape of the models.

    Example:
        >>> bezier_update(torch.zeros(2), torch.ones(2), 0.5).tolist()
        [0.800000011920929, 0.800000011920929]
    """
    return start + (1 - place) * (1 + 1.2 * place) * (trained - start)


def draw_sent_point(
    setup: Setup,
    start: Tensor,
    trained: Tensor,
    *,
    training: int,
    round_index: int,
) -> Tensor:
    """Returns the round's point on the way from where a client began to where its steps led.

    r is uniform on (0, 1), public, and the same for all clients of a round, as the mean that Eq. 6
    is joined to has it.

    Args:
        setup: The federation.
        start: Where the client began.
        trained: Where its steps led; a table has one training a row, and a point for each.
        training: The number of the training, or of the first row.
        round_index: Number of the round, from 0.

    Returns:
        What the client sends, before its noise.
    """
    trainings = math.prod(start.shape[:-1])
    stream = setup.draw_key.stream(Purpose.CURVE, training=training, round_index=round_index)
    places = torch.from_numpy(unit_interval(stream.words(1, trainings))).to(trained.device)
    return bezier_update(start.double(), trained, places.reshape(*start.shape[:-1], 1))
