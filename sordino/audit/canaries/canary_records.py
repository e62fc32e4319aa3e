"""Makes canary records, which are put into a real client's data and searched for afterwards.

"random"       an input drawn from the range of the data, with a random label
"mislabelled"  the record that is replaced, under another label
"crafted"      an input at the corners of the range and a label with a large gradient of the model
a path         a .npz file with the arrays x and y of one record
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino.federation.setup import Setup
from sordino.models.flat import FlatModel
from sordino.models.task_losses import module_loss
from sordino.protocol import UserError

KINDS = ("random", "mislabelled", "crafted")
EXPECTED = (
    f"expected {', '.join(KINDS)}, or the path of a .npz file with the arrays x and y "
    "of one record."
)
# Inputs from which the search for a large gradient starts, and the most steps of that search.
CORNERS = 48
CLIMBS = 12

Record = tuple[Tensor, Tensor]  # input and target, as the data set holds them


def make_canary(
    kind: str,
    setup: Setup,
    row: int,
    generator: np.random.Generator,
) -> Record:
    """Returns a canary that takes the place of a record.

    Args:
        kind: One of `KINDS`, or the path of a file.
        setup: The federation with its data.
        row: The record that is replaced.
        generator: The source of random choices.

    Raises:
        UserError: Neither a kind nor a file with a record that fits the data.

    Example:
        >>> make_canary("crafted", setup, 0, np.random.default_rng(1))  # doctest: +SKIP
    """
    if kind == "random":
        return make_random_record(setup, generator)
    if kind == "mislabelled":
        return setup.train.x[row].clone(), choose_other_target(setup, setup.train.y[row])
    if kind == "crafted":
        return craft_record(setup, generator)
    return read_record(Path(kind), setup)


def refuse_unknown_canary(kind: str) -> None:
    """Refuses a canary that is neither of a known kind nor an existing file.

    Args:
        kind: The kind that was asked for.

    Raises:
        UserError: It is unknown.
    """
    if kind not in KINDS and not Path(kind).is_file():
        raise UserError(f"canary = {kind!r}: {EXPECTED}")


def find_value_range(setup: Setup) -> tuple[float, float]:
    """Returns the smallest and the largest value of any input.

    Args:
        setup: The federation with its data.
    """
    return float(setup.train.x.min()), float(setup.train.x.max())


def make_random_record(setup: Setup, generator: np.random.Generator) -> Record:
    """Returns uniform noise with the target of a random record.

    Args:
        setup: The federation with its data.
        generator: The source of random choices.
    """
    low, high = find_value_range(setup)
    noise = torch.from_numpy(generator.uniform(low, high, size=setup.train.x.shape[1:]))
    target = setup.train.y[int(generator.integers(len(setup.train.y)))].clone()
    return noise.to(setup.train.x.dtype), target


def choose_other_target(setup: Setup, target: Tensor) -> Tensor:
    """Returns another class; or, for a quantity, the far end of its range.

    Args:
        setup: The federation with its data.
        target: The true target.
    """
    if setup.classification:
        return (target + 1) % setup.outputs
    low = setup.train.y.min()
    high = setup.train.y.max()
    if target > (low + high) / 2:
        return low
    return high


def craft_record(setup: Setup, generator: np.random.Generator) -> Record:
    """Returns the input and target with the largest gradient that a short search finds.

    The gradient is that of the initial model. The search starts from random corners of the range
    and climbs by the sign of the derivative of the gradient's norm.

    Args:
        setup: The federation with its data.
        generator: The source of random choices.

    Raises:
        UserError: The model's loss is not finite on the range of the data.
    """
    low, high = find_value_range(setup)
    size, x, target = _search_corners(setup, generator)
    for _ in range(CLIMBS):
        slope = measure_gradient(setup, x, target)[1]
        corner = torch.where(slope > 0, high, low)
        moved = torch.where(slope == 0, x.double(), corner).to(x.dtype)
        found = measure_gradient(setup, moved, target)[0]
        if not found > size * (1 + 1e-6):
            break
        size = found
        x = moved
    return x, target.to(setup.train.y.dtype)


def _search_corners(setup: Setup, generator: np.random.Generator) -> tuple[float, Tensor, Tensor]:
    """Returns the largest gradient's norm at random corners, with its input and target."""
    low, high = find_value_range(setup)
    shape = setup.train.x.shape[1:]
    if setup.classification:
        targets = torch.arange(setup.outputs)
    else:
        targets = torch.stack([setup.train.y.min(), setup.train.y.max()])
    best: tuple[float, Tensor, Tensor] | None = None
    for _ in range(CORNERS):
        share = generator.uniform(0.05, 0.95)
        corner = np.where(generator.random(shape) < share, low, high)
        x = torch.from_numpy(corner).to(setup.train.x.dtype)
        for target in targets:
            size = measure_gradient(setup, x, target)[0]
            if np.isfinite(size) and (best is None or size > best[0]):
                best = (size, x, target)
    if best is None:
        raise UserError(
            "no input with a finite gradient was found: the model's loss is not finite on the "
            "range of the data."
        )
    return best


def measure_gradient(setup: Setup, x: Tensor, target: Tensor) -> tuple[float, Tensor]:
    """Returns the norm of the loss's gradient, and its derivative in the record's values.

    Args:
        setup: The federation with its model.
        x: The input.
        target: The target.
    """
    module = FlatModel(setup.module).module().train()
    loss = module_loss(setup.module, setup.train.y)
    value = x.to(torch.float32).clone().requires_grad_(True)
    inputs = (value * setup.train.scale + setup.train.shift)[None]
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(
        loss(module(inputs), target[None]), weights, create_graph=True, allow_unused=True
    )
    squares = [(gradient**2).sum() for gradient in gradients if gradient is not None]
    squared = torch.stack(squares).sum()
    norm = float(squared.detach().sqrt())
    slope = None
    if squared.requires_grad:
        slope = torch.autograd.grad(squared, value, allow_unused=True)[0]
    if slope is None:
        slope = torch.zeros_like(value)
    return norm, slope


def read_record(path: Path, setup: Setup) -> Record:
    """Returns a record from a file.

    Args:
        path: A .npz file.
        setup: The federation with its data.

    Raises:
        UserError: There is no such file, or what it holds does not fit the data.
    """
    if not path.exists():
        raise UserError(f"--canary {str(path)!r}: {EXPECTED}")
    try:
        with np.load(path) as arrays:
            x = np.asarray(arrays["x"])
            y = np.asarray(arrays["y"])
        values = x.astype(float)
        label = float(y.reshape(()))
    # numpy's error depends on the bytes: EOFError, BadZipFile and zlib.error were seen.
    except Exception as error:
        raise UserError(
            f"{path} is not a canary: expected a .npz file with the arrays x and y of one record, "
            f"both numbers ({error})."
        ) from None
    record = torch.from_numpy(values).to(setup.train.x.dtype)
    refuse_unfit_input(path, values, record, setup)
    if not np.isfinite(label):
        raise UserError(f"{path}: y = {label:g}: expected a finite number.")
    if setup.classification and label not in range(setup.outputs):
        raise UserError(
            f"{path}: y = {label:g}: expected a class, a whole number from 0 to "
            f"{setup.outputs - 1}."
        )
    return record, torch.tensor(label, dtype=setup.train.y.dtype)


def refuse_unfit_input(path: Path, values: np.ndarray, record: Tensor, setup: Setup) -> None:
    """Refuses an input that the data set could not hold.

    Args:
        path: The file that it was read from, for the message.
        values: The input as the file has it.
        record: The same as the data set stores its inputs.
        setup: The federation with its data.

    Raises:
        UserError: Its shape is another, or values are not finite or do not survive the type.
    """
    shape = tuple(setup.train.x.shape[1:])
    if values.shape != shape or not np.isfinite(values).all():
        raise UserError(
            f"{path}: x has the shape {values.shape}: expected finite numbers of shape {shape}."
        )
    # Pixels from 0 to 1 would all become 0 where the data set keeps bytes.
    if not record.is_floating_point() and not np.array_equal(record.numpy(), values):
        kept = str(record.dtype).removeprefix("torch.")
        raise UserError(
            f"{path}: x has values from {values.min():g} to {values.max():g}: expected whole "
            f"numbers that fit {kept}, in which the data set keeps its inputs, from "
            f"{setup.train.x.min().item()} to {setup.train.x.max().item()} in its records."
        )
