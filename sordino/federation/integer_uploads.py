"""Updates as integers: rounded on a grid, under discrete noise, and back from their sums.

What leaves a client is a function of public numbers and of integers whose law is the one that is
priced (docs/theory.md#a12). No bit of it comes from floating-point noise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sordino.mechanisms.discrete_gaussian import draw_integers
from sordino.protocol import Grid, SordinoError
from sordino.randomness import Stream

# Draws discrete noise: takes a stream, trainings, count and digits, as `draw_integers` does.
Draw = Callable[[Stream, int, int, int], np.ndarray]


class WrappedSum(SordinoError):
    """The sum of a round is larger than updates and their noise can be: it has wrapped around."""


def round_update(update: np.ndarray, grid: Grid) -> np.ndarray:
    """Returns the nearest point of a grid, in grid steps.

    Coordinates beyond the room that the modulus has for one client are moved to its end, which
    moves no two updates further apart.

    Args:
        update: Update in float64.
        grid: The public grid of integers that updates are rounded to.

    Returns:
        Integers of 64 bits.
    """
    limit = grid.largest_coordinate
    steps = np.nan_to_num(np.rint(update * grid.scale), nan=0.0)
    rounded: np.ndarray = np.clip(steps, -limit, limit).astype(np.int64)
    return rounded


def noisy_integers(
    update: np.ndarray,
    grid: Grid,
    stream: Stream,
    draw: Draw | None = None,
) -> np.ndarray:
    """Returns an update on a grid under discrete noise.

    Args:
        update: Update in float64; or a table, whose rows get the noise of as many trainings, from
            the stream's own on.
        grid: The public grid of integers that updates are rounded to.
        stream: The keystream of the noise.
        draw: Draws the noise; by default numpy does.

    Returns:
        Integers of 64 bits.
    """
    trainings, count = np.atleast_2d(update).shape
    steps = round_update(update, grid)
    if grid.digits == 0:
        return steps
    noise = (draw or draw_integers)(stream, trainings, count, grid.digits)
    noisy: np.ndarray = steps + noise.reshape(update.shape)
    return noisy


def place_on_grid(start: np.ndarray, steps: np.ndarray, grid: Grid) -> np.ndarray:
    """Returns the model that lies some grid steps from another one.

    Args:
        start: The public model that the update began with.
        steps: The update, in grid steps.
        grid: The public grid of integers that updates are rounded to.

    Returns:
        A model in float64.
    """
    return start.astype(np.float64) + steps / grid.scale


def residues_of(steps: np.ndarray, grid: Grid) -> np.ndarray:
    """Returns integers modulo the grid's modulus, as they are masked and summed.

    Args:
        steps: Integers of 64 bits.
        grid: The public grid of integers that updates are rounded to.

    Example:
        >>> residues_of(np.array([-1]), Grid(scale=1.0, digits=1, bits=32, contributions=2))
        array([4294967295], dtype=uint32)
    """
    # A conversion between integers of numpy keeps the lowest bits, which are the residue; between
    # those of 64 bits all bits stay, and nothing is copied.
    if grid.bits == 64:
        return steps.view(np.uint64)
    return steps.astype(np.uint32)


def signed_steps(residues: np.ndarray, grid: Grid) -> np.ndarray:
    """Returns the integers nearest to 0 that residues represent.

    Args:
        residues: Modulo the grid's modulus.
        grid: The public grid of integers that updates are rounded to.
    """
    return residues.astype(np.int32 if grid.bits == 32 else np.int64)


def open_residues(residues: np.ndarray, grid: Grid) -> np.ndarray:
    """Returns the sum of updates that residues represent.

    Args:
        residues: The sum of a round, modulo the grid's modulus.
        grid: The public grid of integers that updates are rounded to.

    Returns:
        The sum in real units, in float64.

    Raises:
        WrappedSum: It is larger than updates and noise can be.

    Example:
        >>> grid = Grid(scale=2.0, digits=1, bits=32, contributions=2)
        >>> open_residues(residues_of(np.array([-3, 4]), grid), grid)
        array([-1.5,  2. ])
    """
    signed = signed_steps(residues, grid)
    # As integers of Python: the most negative one has no magnitude of the same width.
    largest = max(int(signed.max(initial=0)), -int(signed.min(initial=0)))
    if largest > grid.largest_sum:
        raise WrappedSum(
            f"a coordinate of a round's sum has a magnitude of {largest:,} grid steps; "
            f"{grid.contributions} updates and their noise have at most {grid.largest_sum:,}. "
            "A client sent something other than an update, or shares did not fit: the sum is void."
        )
    opened: np.ndarray = signed / grid.scale
    return opened
