"""Measures how near reconstructed images come to the originals, as the papers do."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from sordino.attacks.attack import CaseResult, Measure
from sordino.attacks.observed import ObservedRecords
from sordino.attacks.referee import Referee
from sordino.protocol import UserError

# Whether a metric is better for the attacker when it is higher or lower.
BETTER = {"L2": "lower", "MSE": "lower", "MAE": "lower", "PSNR": "higher", "SSIM": "higher"}
# An image with fewer pixels a side has no neighbourhoods to compare.
SMALLEST_SIDE = 3
# The window of SSIM, as in Wang et al. 2004; in small images the largest odd one that fits.
LARGEST_WINDOW = 7
# The PSNR of equal images, in place of infinity.
PSNR_OF_EQUALS = 100.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction:
    """Reconstructed images, and a guess that needs no attack: the mean of the attacker's images.

    Attributes:
        images: The reconstructed images, as a model sees them.
        mean: The mean of the attacker's own images.
        low: The least value of a pixel in each channel.
        high: The greatest value of a pixel in each channel.
    """

    images: Tensor
    mean: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, images: Tensor, own: ObservedRecords) -> Reconstruction:
        """Returns a reconstruction whose pixels are scaled by the attacker's own records.

        Args:
            images: The reconstructed images.
            own: The attacker's records.
        """
        low, high = pixel_range(own.inputs)
        mean = own.inputs.mean(dim=0, keepdim=True)
        return cls(images=images, mean=mean, low=low, high=high)

    def as_pixels(self, images: Tensor) -> np.ndarray:
        """Returns images with values in [0, 1].

        Args:
            images: As a model sees them, of shape (images, channels, height, width).
        """
        pixels = (images - self.low) / (self.high - self.low)
        return pixels.clamp(0, 1).numpy()


def pixel_range(images: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the least and the greatest value of a pixel in each channel, never equal.

    Args:
        images: Images of shape (images, channels, height, width).

    Returns:
        Two tensors of shape (1, channels, 1, 1).
    """
    low = images.amin(dim=(0, 2, 3), keepdim=True)
    high = images.amax(dim=(0, 2, 3), keepdim=True)
    # A channel with a single value would divide by zero when it is scaled.
    return low, torch.maximum(high, low + 1e-6)


def refuse_other_than_images(referee: Referee) -> None:
    """Refuses a run whose records are not images, or where scikit-image is missing.

    Args:
        referee: Knows the run.

    Raises:
        UserError: The attack cannot be tried or measured.
    """
    # Checked before any work: without scikit-image an attack of hours would fail at its end.
    if find_spec("skimage") is None:
        raise UserError(
            "this attack is measured by scikit-image, which is not installed. "
            "Use `pip install 'sordino[attacks]'`."
        )
    dataset = referee.dataset
    spec = referee.protocol.data
    if spec is not None and spec.features is not None:
        raise UserError(
            f"data.features = {spec.features!r}: the model saw features, and this attack "
            "reconstructs images. Attack a run without data.features."
        )
    shape = dataset.input_shape
    if len(shape) != 3:
        raise UserError(
            f"{dataset.name} has records of shape {shape}; this attack reconstructs images. "
            "Attack a run on images."
        )
    if min(shape[1:]) < SMALLEST_SIDE:
        raise UserError(
            f"{dataset.name} has images of {shape[1]} by {shape[2]} pixels; structure is measured "
            f"from {SMALLEST_SIDE} by {SMALLEST_SIDE} on. Attack a run on larger images."
        )


def score_images(
    guess: Reconstruction, originals: Tensor, *, ordered: bool, method: str = ""
) -> CaseResult:
    """Returns all measures of reconstructions next to those of the mean image, and the pictures.

    Args:
        guess: The reconstructions.
        originals: The true images.
        ordered: Whether the attacker says which reconstruction is of which original; otherwise they
            are matched as favours the attacker most.
        method: A name for the row.
    """
    true = guess.as_pixels(originals)
    made = guess.as_pixels(guess.images)
    if not ordered:
        # An upload does not say in which order its records were drawn, so the attacker is not asked
        # for it.
        made = match_images(made, true)
    mean_image = np.broadcast_to(guess.as_pixels(guess.mean), true.shape)
    values = measure_images(made, true)
    baselines = measure_images(mean_image, true)
    measures = []
    for metric, better in BETTER.items():
        measure = Measure(
            metric=metric,
            method=method,
            value=values[metric],
            baseline=baselines[metric],
            better=better,
            samples=len(true),
        )
        measures.append(measure)
    pictures = {
        "originals": true.astype(np.float32),
        (method or "reconstructed"): made.astype(np.float32),
    }
    return CaseResult(measures=tuple(measures), pictures=pictures)


def match_images(made: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Returns the reconstructions in the order of the originals that fits best.

    The sum of squared errors is least, by linear assignment.

    Args:
        made: The reconstructions.
        true: The originals.

    Example:
        >>> images = np.arange(3.0).reshape(3, 1, 1, 1)
        >>> match_images(images[[2, 0, 1]], images).flatten().tolist()
        [0.0, 1.0, 2.0]
    """
    errors = np.square(made[:, None] - true[None]).mean(axis=(2, 3, 4))
    made_rows, true_rows = linear_sum_assignment(errors)
    return np.asarray(made[made_rows[np.argsort(true_rows)]])


def measure_images(made: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Returns the mean of every measure over the images.

    L2 is of an image as a vector; the other measures are per pixel.

    Args:
        made: The reconstructions, with pixels in [0, 1].
        true: The originals, likewise.
    """
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    squares = np.square(made - true).mean(axis=(1, 2, 3))
    odd_sides = [side - 1 + side % 2 for side in true.shape[2:]]
    window = min(LARGEST_WINDOW, *odd_sides)
    signals = []
    structures = []
    for original, image in zip(true.astype(np.float64), made.astype(np.float64), strict=True):
        # Equal images have an infinite signal-to-noise ratio, which is replaced below.
        with np.errstate(divide="ignore"):
            signal = peak_signal_noise_ratio(original, image, data_range=1)
        signals.append(min(PSNR_OF_EQUALS, signal))
        structures.append(
            structural_similarity(original, image, data_range=1, channel_axis=0, win_size=window)
        )
    return {
        "L2": float(np.sqrt(squares * true[0].size).mean()),
        "MSE": float(squares.mean()),
        "MAE": float(np.abs(made - true).mean()),
        "PSNR": float(np.mean(signals)),
        "SSIM": float(np.mean(structures)),
    }
