"""How near reconstructed images come to the originals: which belongs to which, and the papers' measures of it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from sordino.attacks.game import Measure, Scored
from sordino.attacks.observed import ObservedRecords
from sordino.attacks.referee import Referee
from sordino.protocol import UserError

BETTER = {"L2": "lower", "MSE": "lower", "MAE": "lower", "PSNR": "higher", "SSIM": "higher"}
SMALLEST = 3  # pixels of a side: below, an image has no neighbourhoods to compare
WINDOW = 7  # of SSIM: as in Wang et al. 2004, or the largest odd one that fits
SAME = 100.0  # PSNR of images that are the same, in place of infinity


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction:
    """Images that an attacker made up, and what it could have said without any attack: the mean of its own.

    Attributes:
        images: one or more per original, in no order, as a model sees them.
        mean: the mean of the attacker's own images.
        low: the least value of a pixel, per channel.
        high: the greatest.
    """

    images: Tensor
    mean: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, images: Tensor, own: ObservedRecords) -> Reconstruction:
        """Images, beside what the attacker's own records say about pixels."""
        low, high = pixel_range(own.inputs)
        return cls(images=images, mean=own.inputs.mean(dim=0, keepdim=True), low=low, high=high)

    def as_pixels(self, images: Tensor) -> np.ndarray:
        """Images with values in [0, 1], (images, channels, height, width)."""
        return ((images - self.low) / (self.high - self.low)).clamp(0, 1).numpy()


def pixel_range(images: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest value of a pixel, per channel, as (1, channels, 1, 1); never the same."""
    low, high = images.amin(dim=(0, 2, 3), keepdim=True), images.amax(dim=(0, 2, 3), keepdim=True)
    return low, torch.maximum(high, low + 1e-6)


def refuse_other_than_images(referee: Referee) -> None:
    """Reconstruction is of images, and is measured by scikit-image."""
    if find_spec("skimage") is None:
        raise UserError(
            "this attack is measured by scikit-image, which is not installed. Use `pip install 'sordino[attacks]'`."
        )
    shape = referee.dataset.input_shape
    if len(shape) != 3:
        raise UserError(
            f"{referee.dataset.name} has records of shape {shape}; this attack reconstructs images. Attack a run on images."
        )
    if min(shape[1:]) < SMALLEST:
        raise UserError(
            f"{referee.dataset.name} has images of {shape[1]} by {shape[2]} pixels; structure is measured from {SMALLEST} by {SMALLEST} "
            "on. Attack a run on larger images."
        )


def score_images(
    guess: Reconstruction, originals: Tensor, *, ordered: bool, method: str = ""
) -> Scored:
    """All measures of reconstructions beside those of the mean image, and the pictures.

    Args:
        guess: what the attacker made up.
        originals: what is true.
        ordered: whether the attacker says which reconstruction is of which original; else they are matched as favours it most.
        method: a name for the row.
    """
    true, made = guess.as_pixels(originals), guess.as_pixels(guess.images)
    made = made if ordered else matched(made, true)
    trivial = np.broadcast_to(guess.as_pixels(guess.mean), true.shape)
    values, baselines = measured(made, true), measured(trivial, true)
    measures = tuple(
        Measure(
            metric=metric,
            method=method,
            value=values[metric],
            baseline=baselines[metric],
            better=better,
            samples=len(true),
        )
        for metric, better in BETTER.items()
    )
    pictures = {"originals": true, (method or "reconstructed"): made}
    return Scored(
        measures=measures,
        pictures={name: images.astype(np.float32) for name, images in pictures.items()},
    )


def matched(made: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The reconstructions in the order of the originals that makes the sum of squared errors least (linear assignment).

    Example:
        >>> images = np.arange(3.0).reshape(3, 1, 1, 1)
        >>> matched(images[[2, 0, 1]], images).flatten().tolist()
        [0.0, 1.0, 2.0]
    """
    errors = np.square(made[:, None] - true[None]).mean(axis=(2, 3, 4))
    mine, theirs = linear_sum_assignment(errors)
    return np.asarray(made[mine[np.argsort(theirs)]])


def measured(made: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Means over the images of every measure, pixels in [0, 1]: L2 is of an image as a vector, the others are per pixel."""
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    squares = np.square(made - true).mean(axis=(1, 2, 3))
    window = min(WINDOW, *(side - 1 + side % 2 for side in true.shape[2:]))
    pairs = list(zip(true.astype(np.float64), made.astype(np.float64), strict=True))
    with np.errstate(divide="ignore"):
        signals = [peak_signal_noise_ratio(a, b, data_range=1) for a, b in pairs]
    return {
        "L2": float(np.sqrt(squares * true[0].size).mean()),
        "MSE": float(squares.mean()),
        "MAE": float(np.abs(made - true).mean()),
        "PSNR": float(np.mean([min(SAME, signal) for signal in signals])),
        "SSIM": float(
            np.mean(
                [
                    structural_similarity(a, b, data_range=1, channel_axis=0, win_size=window)
                    for a, b in pairs
                ]
            )
        ),
    }
