"""Public features that were learned on public records: scattering, whitened.

Directions and scales are made of scikit-learn's 1,797 handwritten digits, which no federation here
trains on, so they are public and cost nothing (docs/theory.md#a20). They are named in a file as

    features = "experiments.public_features:whiten_scattering"
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sordino.data import load_dataset
from sordino.models.scattering import Scattering

# Directions that are kept: those in which the public digits vary most.
DIRECTIONS = 400
# The norm of every picture's features, beside which a bias coordinate of 1 is small.
NORM = 10.0
# Digits are drawn into the middle of a picture, as MNIST's are.
DRAWN = 20
# How many turned, sheared, enlarged and moved copies there are of each digit.
DISTORTED = 5
# Added to the spreads within classes, as a share of the largest, before they are made equal.
FLOOR = 3e-3
# The factor by which directions between the classes' means become longer.
EMPHASIS = 1.5
# Pictures that are transformed at once.
CHUNK = 500


def whiten_scattering(input_shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Returns a function that maps pictures of 28 by 28 pixels to features of one norm.

    In its directions the public digits of a class spread evenly, so that steps learn at the same
    pace in all of them, and those between the classes' means are longer.

    Args:
        input_shape: Of one picture.
    """
    scattering = Scattering(input_shape)
    pictures, labels = draw_digits(input_shape)
    public = torch.cat([scattering(chunk).flatten(1) for chunk in pictures.split(CHUNK)])
    middle = public.mean(dim=0)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        _, _, directions = torch.svd_lowrank(public - middle, q=DIRECTIONS, niter=4)
    projection = directions @ spread_evenly((public - middle) @ directions, labels)

    def whiten_pictures(pictures: Tensor) -> Tensor:
        """Returns the features of some pictures, each made of that picture alone.

        Args:
            pictures: A batch.
        """
        features = (scattering(pictures).flatten(1) - middle) @ projection
        return NORM * features / features.norm(dim=1, keepdim=True).clamp(min=1e-12)

    return whiten_pictures


def spread_evenly(features: Tensor, labels: Tensor) -> Tensor:
    """Returns the matrix after which classes spread evenly and stand further apart.

    Args:
        features: Of public records.
        labels: Their classes.
    """
    means = torch.stack([features[labels == label].mean(dim=0) for label in labels.unique()])
    within = torch.cov((features - means[labels]).T.double())
    spreads, axes = torch.linalg.eigh(within)
    scales = (spreads / spreads[-1] + FLOOR) ** -0.5
    even = ((axes * scales) @ axes.T).float()
    apart = (means - means.mean(dim=0)) @ even
    # Means of C classes around their own mean span C - 1 directions.
    between = torch.linalg.svd(apart, full_matrices=False)[2][: len(means) - 1].T
    return even + EMPHASIS * even @ between @ between.T


def draw_digits(input_shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns the public digits in the size and the range of MNIST's inputs, and their classes.

    Args:
        input_shape: Of one picture.
    """
    digits = load_dataset("digits")
    records = np.concatenate([digits.x_train, digits.x_test]).astype(np.float32)
    labels = torch.from_numpy(np.concatenate([digits.y_train, digits.y_test])).long()
    small = torch.from_numpy(records).reshape(-1, 1, 8, 8)
    small = (small - small.min()) / (small.max() - small.min())
    large = functional.interpolate(small, size=(DRAWN, DRAWN), mode="bicubic", align_corners=False)
    margin = (input_shape[-1] - DRAWN) // 2
    drawn = functional.pad(large.clamp(0, 1), (margin,) * 4)
    generator = torch.Generator().manual_seed(0)
    distorted = [distort_pictures(drawn, generator) for _ in range(DISTORTED)]
    pictures = torch.cat([drawn, *distorted])
    # MNIST's inputs have mean 0 and deviation 1: black and white are these.
    return pictures * (2.8215 + 0.4242) - 0.4242, labels.repeat(1 + DISTORTED)


def distort_pictures(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Returns pictures that are turned, sheared, enlarged, moved and made bolder, each its own way.

    Args:
        pictures: With values from 0 to 1.
        generator: Of the distortions.
    """

    def draw(limit: float) -> Tensor:
        return limit * (2 * torch.rand(len(pictures), generator=generator) - 1)

    turned = draw(0.1 * math.pi)
    enlarged = 1 + draw(0.15)
    shape = torch.zeros(len(pictures), 2, 3)
    shape[:, 0, 0] = shape[:, 1, 1] = turned.cos() * enlarged
    shape[:, 1, 0] = turned.sin() * enlarged
    shape[:, 0, 1] = draw(0.3) - turned.sin() * enlarged
    shape[:, :, 2] = torch.stack([draw(0.14), draw(0.14)], dim=1)
    grid = functional.affine_grid(shape, list(pictures.shape), align_corners=False)
    bolder = 1.6 + draw(0.4)
    moved = functional.grid_sample(pictures, grid, align_corners=False)
    return (moved * bolder[:, None, None, None]).clamp(0, 1)
