"""Defines pfl-research's own benchmark on CIFAR-10: 1,000 users of 50 images, a cohort of 50.

The settings are those of its `image_classification/configs/baseline.yaml` with a central Gaussian:
an epoch of batches of 10, the whole update clipped. Images are random, which costs what real ones
do.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

CLIENTS, RECORDS, COHORT = 1_000, 50, 50
STEPS, BATCH, RATE, CLIP = 5, 10, 0.1, 0.4
# On the sum of the cohort, in clips.
NOISE = 0.05
SHAPE, CLASSES = (3, 32, 32), 10


def records() -> tuple[np.ndarray, np.ndarray]:
    """Returns random images and labels, each of shape (clients, records, ...)."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((CLIENTS, RECORDS, *SHAPE), dtype=np.float32)
    return values, generator.integers(0, CLASSES, (CLIENTS, RECORDS))


def network() -> nn.Module:
    """Returns its network of 1.6 million parameters, with dropout."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(12_544, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, CLASSES),
    )
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return net
