"""Defines dp-sgd on lots of all clients, for every contender: network, records, constants.

The lots and the network are those of the example secure-mnist; records are random, and fewer.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from sordino.models import build_model

CLIENTS, RECORDS = 100, 120
# Of every client, on average.
BATCH = 20
RATE, CLIP, MULTIPLIER = 40.0, 0.1, 1.13
# Scattering features of an image of MNIST.
SHAPE, CLASSES = (3969,), 10


def records() -> tuple[np.ndarray, np.ndarray]:
    """Returns random records of all clients, and their labels."""
    generator = np.random.default_rng(0)
    count = CLIENTS * RECORDS
    values = generator.standard_normal((count, *SHAPE), dtype=np.float32)
    return values, generator.integers(0, CLASSES, count)


def network() -> nn.Module:
    """Returns the model of all contenders."""
    return build_model("logistic", SHAPE, CLASSES, seed=0)
