"""Random filters of an image: fixed patches of noise, both signs, averages; nothing learnt.

As Coates, Lee and Ng (2011), with filters that no data were looked at for. They are drawn once and
for all from a public key, so all parties have the same.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor
from torch.nn import functional

from sordino.data.feature_shapes import RANDOM_CHANNELS, STRIDE, Shape, find_feature_shape
from sordino.randomness import Key, Purpose

# Public: the filters are part of the protocol, like its constants.
FILTER_KEY = Key(secret=hashlib.sha256(b"sordino random filters").digest())
SIDE = 5
FILTERS = RANDOM_CHANNELS // 2
GROUPS = 16


class RandomFilters:
    """Transforms images of one size.

    Example:
        >>> RandomFilters((1, 8, 8))(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 128, 2, 2])
    """

    def __init__(self, input_shape: Shape) -> None:
        """Draws the filters.

        Args:
            input_shape: Channels, height and width of an image.

        Raises:
            UserError: Records that are not images, or too small ones.
        """
        self.output_shape = find_feature_shape("random-filters", input_shape)
        shape = (FILTERS, input_shape[0], SIDE, SIDE)
        drawn = FILTER_KEY.stream(Purpose.INITIAL_MODEL).normals(FILTERS * input_shape[0] * SIDE**2)
        filters = torch.from_numpy(drawn).reshape(shape)
        # Without their mean they do not see how bright an image is.
        filters = filters - filters.mean(dim=(1, 2, 3), keepdim=True)
        norms = torch.linalg.vector_norm(filters, dim=(1, 2, 3), keepdim=True)
        self._filters = (filters / norms).to(torch.float32).flatten(1).T.contiguous()

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the features of each image, normalised in groups of channels.

        Args:
            images: (n, channels, height, width).

        Returns:
            (n, 128, height // 4, width // 4).
        """
        height, width = images.shape[-2:]
        patches = functional.unfold(images, SIDE, padding=SIDE // 2)
        seen = patches.transpose(1, 2) @ self._filters
        maps = seen.transpose(1, 2).unflatten(2, (height, width))
        both = torch.cat([maps.clamp(min=0), (-maps).clamp(min=0)], dim=1)
        return functional.group_norm(functional.avg_pool2d(both, STRIDE), GROUPS)
