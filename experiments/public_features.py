"""Public features that were learned on public records: scattering, projected.

The projection is made of scikit-learn's 1,797 handwritten digits, which no federation here trains
on, so it is public and costs nothing (docs/theory.md#a20). It is named in a file as

    features = "experiments.public_features:project_scattering"
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sordino.data import load_dataset
from sordino.models.scattering import Scattering

# Directions that are kept. They hold nine tenths of what MNIST's features vary.
DIRECTIONS = 400
# Of every picture's features: a bias coordinate of 1 beside them takes little of the ball.
NORM = 10.0
# Digits are drawn into the middle of a picture, as MNIST's are.
DRAWN = 20


def project_scattering(input_shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Returns a function of pictures of 28 by 28 pixels, whose results all have the same norm.

    Args:
        input_shape: of one picture.
    """
    scattering = Scattering(input_shape)
    public = scattering(enlarge_digits(input_shape)).flatten(1).double()
    centre = public.mean(dim=0)
    _, spreads, directions = torch.linalg.svd(public - centre, full_matrices=False)
    # Half of the way to equal spreads in all directions: steps then learn at the same pace in most.
    scales = (spreads[:DIRECTIONS] / spreads[0] + 1e-3) ** -0.5
    projection = (directions[:DIRECTIONS] * scales[:, None]).t().float()
    middle = centre.float()

    def project_pictures(pictures: Tensor) -> Tensor:
        """Returns the features of some pictures, each made of that picture alone.

        Args:
            pictures: a batch.
        """
        features = (scattering(pictures).flatten(1) - middle) @ projection
        return NORM * features / features.norm(dim=1, keepdim=True).clamp(min=1e-12)

    return project_pictures


def enlarge_digits(input_shape: tuple[int, ...]) -> Tensor:
    """Returns the public digits in the size and the range of MNIST's inputs.

    Args:
        input_shape: of one picture.
    """
    digits = load_dataset("digits")
    small = torch.from_numpy(digits.x_train.astype(np.float32)).reshape(-1, 1, 8, 8)
    dark = small.min()
    light = small.max()
    large = torch.nn.functional.interpolate((small - dark) / (light - dark), size=(DRAWN, DRAWN))
    margin = (input_shape[-1] - DRAWN) // 2
    framed = torch.nn.functional.pad(large, (margin,) * 4)
    # MNIST's inputs have mean 0 and deviation 1: black and white are these.
    return framed * (2.8215 + 0.4242) - 0.4242
