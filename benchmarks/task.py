"""Defines the task of every contender: network, records, constants.

Peers import it too, in environments that lack a part of what Sordino needs.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from sordino.models import build_model

CLIENTS, RECORDS, BATCH = 20, 256, 32
RATE, CLIP, SIGMA = 0.1, 1.0, 0.01
# Of noisy-sgd.
MULTIPLIER = 1.0
SHAPE, CLASSES = (1, 28, 28), 10
WORKERS = 2
# The records that every model is trained on.
SHAPES: dict[str, tuple[int, ...]] = {
    "lenet5": SHAPE,
    "prifedsync-mnist": SHAPE,
    "mlp": (64,),
    "logistic": (784,),
}


def records(model: str = "lenet5", clients: int = CLIENTS) -> tuple[np.ndarray, np.ndarray]:
    """Returns random records and labels of every client, each of shape (clients, records, ...)."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((clients, RECORDS, *SHAPES[model]), dtype=np.float32)
    return values, generator.integers(0, CLASSES, (clients, RECORDS))


def network(model: str) -> nn.Module:
    """Returns the model of all contenders."""
    return build_model(model, SHAPES[model], CLASSES, seed=0)
