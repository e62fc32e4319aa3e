"""The large networks: a residual network and a vision transformer, which never mix records."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sordino.models.nets import Shape, image_channels
from sordino.protocol import UserError

# Wu and He (2018), "Group Normalization": 32 groups. Statistics are of one record, so nothing
# passes between records.
GROUPS = 32

# "ViT-Small" as Touvron et al. (2021, DeiT-S) and Steiner et al. (2022, ViT-S) use the name:
# 384 wide, 12 deep, 6 heads of 64, 4 x 384 inside the blocks. Patches of 4 instead of 16 give a
# 32 x 32 image 64 of them, about what 16 gives at full size.
PATCH = 4
WIDTH = 384
DEPTH = 12
HEADS = 6


def resnet18(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns ResNet-18 for small images: no pooling in the stem, and GroupNorm.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: The records are not images, or too small ones.

    Example:
        >>> sum(p.numel() for p in resnet18((3, 32, 32), 10).parameters())
        11173962
    """
    channels = image_channels("resnet18", input_shape, smallest=8)
    layers = [*make_convolution_block(channels, 64), nn.ReLU()]
    before = 64
    for after in (64, 128, 256, 512):
        layers += [Residual(before, after, stride=after // before), Residual(after, after)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs))


class Residual(nn.Module):
    """Two convolutions with a shortcut, which is a 1 x 1 convolution where the shape changes.

    Args:
        before: Channels of its input.
        after: Channels of its output.
        stride: The distance of the first convolution's windows.
    """

    def __init__(self, before: int, after: int, *, stride: int = 1) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *make_convolution_block(before, after, stride=stride),
            nn.ReLU(),
            *make_convolution_block(after, after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            layers = make_convolution_block(before, after, kernel=1, stride=stride)
            self.shortcut = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the outputs for some records.

        Args:
            images: The inputs.
        """
        return torch.relu(self.branch(images) + self.shortcut(images))


def make_convolution_block(
    before: int,
    after: int,
    *,
    kernel: int = 3,
    stride: int = 1,
) -> list[nn.Module]:
    """Returns a convolution that keeps the image's size up to its stride, and its normalisation.

    The shift of the normalisation replaces the bias.

    Args:
        before: Channels of its input.
        after: Channels of its output.
        kernel: Height and width of its windows.
        stride: Their distance.
    """
    return [
        nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.GroupNorm(GROUPS, after),
    ]


def vit_small(input_shape: Shape, outputs: int) -> nn.Sequential:
    """Returns ViT-Small for small images: patches of 4 x 4, pre-norm, GELU, no dropout.

    Args:
        input_shape: The shape of a record.
        outputs: Classes, or predicted quantities.

    Raises:
        UserError: The records are not images that patches fill.

    Example:
        >>> sum(p.numel() for p in vit_small((3, 32, 32), 10).parameters())
        21342346
    """
    channels = image_channels("vit-small", input_shape, smallest=PATCH)
    _, height, width = input_shape
    if height % PATCH or width % PATCH:
        raise UserError(
            f"model vit-small cuts images into {PATCH} x {PATCH} patches; {height} x {width} is "
            f"not a multiple of {PATCH}"
        )
    # Blocks are built one by one: nn.TransformerEncoder would copy one block, and all would start
    # from the same weights.
    blocks = [
        nn.TransformerEncoderLayer(
            WIDTH,
            HEADS,
            4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        for _ in range(DEPTH)
    ]
    patches = (height // PATCH) * (width // PATCH)
    return nn.Sequential(
        Tokens(channels, patches),
        *blocks,
        nn.LayerNorm(WIDTH),
        FirstToken(),
        nn.Linear(WIDTH, outputs),
    )


class Tokens(nn.Module):
    """An image as a sequence: the class token, then its patches, each with a learned position.

    Args:
        channels: Channels of the image.
        patches: How many an image has.
    """

    def __init__(self, channels: int, patches: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, WIDTH, PATCH, stride=PATCH)
        self.label = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + patches, WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        """Returns the outputs for some records.

        Args:
            images: The inputs.
        """
        patches = self.embed(images).flatten(2).transpose(1, 2)
        labels = self.label.expand(len(images), -1, -1)
        return torch.cat([labels, patches], dim=1) + self.positions


class FirstToken(nn.Module):
    """The class token, from which the answer is read."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the outputs for some records.

        Args:
            tokens: The inputs.
        """
        return tokens[:, 0]
