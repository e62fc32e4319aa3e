"""The scattering transform of an image: fixed wavelets, moduli and averages, nothing learnt.

Two scales, eight directions, orders 0 to 2 (Bruna and Mallat 2013; with these constants Oyallon and
Mallat 2015). An image U is averaged by a Gaussian (order 0); |U * psi| is averaged (order 1); and
||U * psi_1| * psi_2|, of the finer scale first, is averaged (order 2). Each image is transformed by
itself, so the features of a record depend on this record alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sordino.data.feature_shapes import STRIDE, Shape, find_feature_shape

SCALES = 2
DIRECTIONS = 8
# Groups of channels that are normalised together. 27 divides 81, the channels of one colour.
GROUPS = 27
# Width of the finest wavelet, its frequency and how much longer than wide it is.
WIDTH = 0.8
FREQUENCY = 3 / 4 * math.pi
SLANT = 4 / DIRECTIONS
# How many copies to either side of a periodic filter are summed; further ones are below float32.
COPIES = 2


class Scattering:
    """Transforms images of one size.

    Example:
        >>> Scattering((1, 8, 8))(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 81, 2, 2])
    """

    def __init__(self, input_shape: Shape) -> None:
        """Makes the filters.

        Args:
            input_shape: Channels, height and width of an image.

        Raises:
            UserError: Records that are not images, or too small ones.
        """
        self.output_shape = find_feature_shape("scattering", input_shape)
        _, height, width = input_shape
        rows = pad_length(height)
        columns = pad_length(width)
        self._margins = (*split_padding(width), *split_padding(height))
        self._wavelets = torch.from_numpy(make_wavelets(rows, columns))
        # Maps of order 2, and those of the coarser wavelets, have every other sample.
        self._averages = {
            step: (make_average(rows, step), make_average(columns, step)) for step in (1, 2)
        }

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the features of each image, normalised in groups of channels.

        Args:
            images: (n, channels, height, width).

        Returns:
            (n, 81 * channels, height // 4, width // 4).
        """
        return functional.group_norm(self.scatter(images), GROUPS)

    def scatter(self, images: Tensor) -> Tensor:
        """Returns the features before they are normalised.

        Args:
            images: (n, channels, height, width).
        """
        padded = functional.pad(images, self._margins, mode="reflect")
        spectrum = torch.fft.fft2(padded).unsqueeze(2)
        fine = torch.fft.ifft2(spectrum * self._wavelets[0]).abs()
        coarse = torch.fft.ifft2(keep_every_other(spectrum * self._wavelets[1])).abs()
        # Rows in multiples of eight have the same bits at every place of a batch, so the one map of
        # order 0 is averaged eight times.
        repeated = padded.unsqueeze(2).expand(-1, -1, DIRECTIONS, -1, -1)
        maps = [
            self._average(repeated, 1)[:, :, :1],
            self._average(fine, 1),
            self._average(coarse, 2),
        ]
        # One first direction at a time keeps the temporaries small.
        for direction in range(DIRECTIONS):
            spectrum = torch.fft.fft2(fine[:, :, direction]).unsqueeze(2)
            second = torch.fft.ifft2(keep_every_other(spectrum * self._wavelets[1])).abs()
            maps.append(self._average(second, 2))
        return torch.cat(maps, dim=2).flatten(1, 2)

    def _average(self, maps: Tensor, step: int) -> Tensor:
        """Returns maps smoothed by the Gaussian, a value for every fourth pixel."""
        rows, columns = self._averages[step]
        across = multiply_rows(maps, columns)
        return multiply_rows(across.transpose(-1, -2), rows).transpose(-1, -2)


def multiply_rows(maps: Tensor, matrix: Tensor) -> Tensor:
    """Returns every row of every map, multiplied by a matrix.

    Args:
        maps: Any number of maps.
        matrix: As many rows as a map has columns.
    """
    # One plain product: products of stacks have other bits for other sizes of a batch.
    flat = maps.reshape(-1, maps.shape[-1])
    return (flat @ matrix).reshape(*maps.shape[:-1], matrix.shape[1])


def pad_length(size: int) -> int:
    """Returns the length of a side with its margins, a multiple of the stride.

    Args:
        size: Pixels of the side.
    """
    return ((size + STRIDE) // STRIDE + 1) * STRIDE


def split_padding(size: int) -> tuple[int, int]:
    """Returns the margins before and after a side.

    Args:
        size: Pixels of the side.
    """
    added = pad_length(size) - size
    return added // 2, added - added // 2


def keep_every_other(spectrum: Tensor) -> Tensor:
    """Returns the spectrum of every other sample in both directions.

    Args:
        spectrum: The transform of maps of even sides.
    """
    rows = spectrum.shape[-2] // 2
    columns = spectrum.shape[-1] // 2
    upper = spectrum[..., :rows, :columns] + spectrum[..., :rows, columns:]
    lower = spectrum[..., rows:, :columns] + spectrum[..., rows:, columns:]
    return (upper + lower) / 4


def make_wavelets(rows: int, columns: int) -> np.ndarray:
    """Returns the Fourier transforms of the wavelets, float32 (scales, directions, rows, columns).

    They are real, since each wavelet at -x is its own conjugate.

    Args:
        rows: Height of a padded image.
        columns: Its width.
    """
    made = np.empty((SCALES, DIRECTIONS, rows, columns), dtype=np.float32)
    for scale in range(SCALES):
        for direction in range(DIRECTIONS):
            angle = (DIRECTIONS // 2 - 1 - direction) * math.pi / DIRECTIONS
            wavelet = make_wavelet(rows, columns, scale, angle)
            made[scale, direction] = np.fft.fft2(wavelet).real
    return made


def make_wavelet(
    rows: int,
    columns: int,
    scale: int,
    angle: float,
) -> np.ndarray:
    """Returns one Morlet wavelet, periodic, with the sum 0.

    Args:
        rows: Height of a padded image.
        columns: Its width.
        scale: 0 or 1.
        angle: Angle of its direction.
    """
    spread = WIDTH * 2**scale
    wave = np.zeros((rows, columns), dtype=complex)
    envelope = np.zeros((rows, columns))
    for above in range(-COPIES, COPIES + 1):
        for left in range(-COPIES, COPIES + 1):
            y, x = np.mgrid[:rows, :columns]
            y = y + above * rows
            x = x + left * columns
            along = y * math.cos(angle) + x * math.sin(angle)
            across = x * math.cos(angle) - y * math.sin(angle)
            bell = np.exp(-(along**2 + (SLANT * across) ** 2) / (2 * spread**2))
            envelope += bell
            wave += bell * np.exp(1j * along * FREQUENCY / 2**scale)
    # A wavelet does not see a constant.
    wave -= envelope * (wave.sum() / envelope.sum())
    wavelet: np.ndarray = wave * SLANT / (2 * math.pi * spread**2)
    return wavelet


def make_average(length: int, step: int) -> Tensor:
    """Returns the matrix that smooths one side and keeps a value for every fourth pixel.

    The Gaussian is a product of one along each side, so two small matrices do its work.

    Args:
        length: Length of the padded side.
        step: Distance of the samples, in pixels.

    Returns:
        (samples, kept); the margins are left out.
    """
    spread = WIDTH * 2 ** (SCALES - 1)
    samples = np.arange(0, length, step)
    kept = np.arange(STRIDE, length - STRIDE, STRIDE)
    weights = np.zeros((len(samples), len(kept)))
    for copy in range(-COPIES, COPIES + 1):
        distances = samples[:, None] - kept[None, :] + copy * length
        weights += np.exp(-(distances**2) / (2 * spread**2))
    weights *= step / (math.sqrt(2 * math.pi) * spread)
    return torch.from_numpy(weights.astype(np.float32))
