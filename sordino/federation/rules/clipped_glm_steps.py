"""Local steps of the rule clipped-glm: linear models of bounded features (docs/theory.md#a9, #a31).

The gradient of one example is (sigmoid(<w, x>) - y) x, so clipping it to norm V clips the number in
front to V / |x|. With many classes there is such a number for each: one-against-rest clips each to
V / (sqrt(C) |x|), softmax clips none. Weight decay is outside the clip and acts on every
coordinate. Batches are all records, or fixed ones in turn: nothing is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sordino.federation.rules.local_training import (
    LOCAL_RULES,
    Assignment,
    LocalResult,
    LocalSteps,
    Worker,
    rates_of,
)
from sordino.models.clipping import CLIP_FRACTION, MOST_IN_ONE_PRODUCT, check_example_count
from sordino.protocol import ClippedGlm


@LOCAL_RULES.register(ClippedGlm)
def train_clipped_linear(rule: ClippedGlm, worker: Worker, task: Assignment) -> LocalResult:
    """Runs the steps of one client on all its records.

    Args:
        rule: The rule, with its settings.
        worker: Computes for the client.
        task: The round's work.
    """
    features, labels = worker.bounded_records(task, rule.feature_norm)
    weights = worker.as_tensor(task.start).double()
    steps = train_clipped_glm(weights, features, labels, rule, rates_of(worker, task))
    return LocalResult(model=weights, steps=steps)


def train_clipped_glm(
    weights: Tensor,
    features: Tensor,
    labels: Tensor,
    rule: ClippedGlm,
    rates: tuple[float, ...],
) -> LocalSteps:
    """Runs the steps, changing `weights` in place.

    Args:
        weights: For every class, one after the other, one per feature; or a table of such, with one
            training a row. Two classes have one set of weights.
        features: One record a row, of norm at most `rule.feature_norm`, its last coordinate
            belonging to the bias.
        labels: The class of each record.
        rule: The rule.
        rates: The learning rate of every step.

    Returns:
        How often residuals were clipped.

    Raises:
        UserError: A batch is so large that its sum is not proved to be precise.
    """
    features = features.double()
    scores = weights
    classes = 1
    if rule.loss != "logistic":
        # A view: the weights of each class are a row, and change in place.
        scores = weights.unflatten(-1, (-1, features.shape[1]))
        classes = scores.shape[-2]
    targets = encode_labels(labels, classes)
    limits = find_coefficient_limits(rule, features, classes)
    size = rule.batch if rule.batch is not None else len(features)
    check_example_count(size, most=MOST_IN_ONE_PRODUCT)
    # Records that fill no batch are left out: the price counts one in B for every batch
    # (docs/theory.md#a9).
    turns = len(features) // size
    find_residuals = RESIDUALS[rule.loss]
    clipped = 0
    for step, rate in enumerate(rates):
        turn = slice((step % turns) * size, (step % turns + 1) * size)
        residuals = find_residuals(scores @ features[turn].t(), targets[..., turn])
        if limits is not None:
            clipped += int((residuals.abs() > limits[turn]).sum())
            # Each example by itself: clipped, it is the gradient of another convex loss, and a step
            # still contracts (docs/theory.md#a9). Clipping the mean of a batch would lose that.
            residuals = torch.minimum(torch.maximum(residuals, -limits[turn]), limits[turn])
        gradient = (residuals / size) @ features[turn]
        scores.mul_(1.0 - rate * rule.weight_decay).sub_(gradient, alpha=rate)
    clips = 0
    if limits is not None:
        clips = len(rates) * size * classes * math.prod(weights.shape[:-1])
    return LocalSteps(clipped=clipped, clips=clips, nonfinite=0)


def encode_labels(labels: Tensor, classes: int) -> Tensor:
    """Returns what the probabilities of every class should be.

    Args:
        labels: The class of each record.
        classes: Number of classes with weights; 1 for two classes, told apart by one score.
    """
    if classes == 1:
        return labels.to(torch.float64)
    return torch.nn.functional.one_hot(labels, classes).t().to(torch.float64)


def find_coefficient_limits(rule: ClippedGlm, features: Tensor, classes: int) -> Tensor | None:
    """Returns the largest coefficient of every record's gradient, or None without a clip.

    Args:
        rule: The rule.
        features: One record a row.
        classes: Number of classes, each of which gets an equal part of the squared norm.
    """
    if rule.clip is None:
        return None
    # A record of zeros has no gradient at all; the floor only keeps the division finite.
    lengths = torch.linalg.vector_norm(features, dim=1, dtype=torch.float64).clamp(min=1e-30)
    limits: Tensor = rule.clip * CLIP_FRACTION / lengths / math.sqrt(classes)
    return limits


def compare_sigmoids(scores: Tensor, targets: Tensor) -> Tensor:
    """Returns sigmoid(score) - target: every class against the rest.

    Args:
        scores: Scores of every record.
        targets: 0 or 1 for each.
    """
    return torch.sigmoid(scores) - targets


def compare_softmax(scores: Tensor, targets: Tensor) -> Tensor:
    """Returns softmax(scores) - targets: all classes at once.

    Args:
        scores: A class a row, a record a column.
        targets: Targets of the same form.
    """
    return torch.softmax(scores, dim=-2) - targets


# The coefficients of records in the gradient, by the loss.
RESIDUALS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logistic": compare_sigmoids,
    "one-against-rest": compare_sigmoids,
    "softmax": compare_softmax,
}
