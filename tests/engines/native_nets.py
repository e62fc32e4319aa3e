"""Oracles for the native kernel: gradients by torch in float64, kinks of a network, and random stacks of layers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sordino import Dataset
from sordino.federation.assignment import draw_mask_words
from sordino.models.dropout import key_dropouts, place_dropouts
from sordino.native.kernel import Kernel, KernelRecords, StepRule
from sordino.native.program import Loss
from sordino.native.translate import translate

LOSSES: dict[Loss, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Loss.CROSS_ENTROPY: functional.cross_entropy,
    Loss.BINARY_CROSS_ENTROPY: functional.binary_cross_entropy_with_logits,
    Loss.SQUARED_ERROR: functional.mse_loss,
}


# The key of what dropouts drop.
MASKS = bytes(range(32))


def with_masks(net: nn.Module, x: torch.Tensor, first: int = 0) -> nn.Module:
    """The network, dropping what the kernel drops of the records of a batch from `first` on."""
    masks = key_dropouts(net)
    if masks is not None:
        length = place_dropouts(net, x[:1])
        words = draw_mask_words(MASKS, 0, examples=first + len(x), length=length)
        masks.give_words(words[first:], x.device)
    return net


class Residual(nn.Module):
    """x + f(x), which only a trace can see."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + x


def images(records: int, size: int, channels: int = 1, classes: int = 10) -> Dataset:
    """Random pixels in bytes."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (records, channels, size, size)).astype(np.uint8)
    y = generator.integers(0, classes, records)
    names = tuple(str(label) for label in range(classes))
    scaling = {"scale": np.array(1 / 255, np.float32), "shift": np.array(-0.5, np.float32)}
    return Dataset(
        name="noise", x_train=x, y_train=y, x_test=x[:40], y_test=y[:40], classes=names, **scaling
    )


def vector_of(module: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).float().numpy().copy()


def made_up(
    shape: tuple[int, ...], outputs: int, loss: Loss, records: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Random records and answers that fit a loss."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((records, *shape), dtype=np.float32)
    if loss is Loss.CROSS_ENTROPY:
        return x, generator.integers(0, outputs, records)
    if loss is Loss.BINARY_CROSS_ENTROPY:
        return x, generator.integers(0, 2, (records, outputs)).astype(np.float32)
    return x, generator.standard_normal((records, outputs), dtype=np.float32)


def torch_gradient(
    module: nn.Module,
    x: np.ndarray,
    y: np.ndarray,
    loss: Loss,
    dtype: torch.dtype = torch.float64,
    first: int = 0,
) -> np.ndarray:
    """The gradient of the mean loss of the records of a batch from `first` on."""
    inputs = torch.from_numpy(x).to(dtype)
    net = with_masks(copy.deepcopy(module).to(dtype), inputs, first)
    targets = torch.from_numpy(y) if loss is Loss.CROSS_ENTROPY else torch.from_numpy(y).to(dtype)
    value = LOSSES[loss](net(inputs), targets)
    return torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(value, list(net.parameters()))]
    ).numpy()


def clipped_mean(
    module: nn.Module, x: np.ndarray, y: np.ndarray, loss: Loss, clip: float, norm: int
) -> np.ndarray:
    """The mean of the gradients of single examples, each clipped: one backward pass per example."""
    total = np.zeros(sum(p.numel() for p in module.parameters()))
    for i in range(len(x)):
        own = torch_gradient(module, x[i : i + 1], y[i : i + 1], loss, first=i)
        size = np.abs(own).sum() if norm == 1 else np.sqrt((own**2).sum())
        total += own * min(1.0, clip / size) if size > 0 else own
    return total / len(x)


def kernel_of(
    module: nn.Module, shape: tuple[int, ...], loss: Loss, batch: int, simd: str
) -> Kernel:
    return Kernel(translate(module, shape), loss, batch=batch, simd=simd)


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), 1e-12))


def kink_distances(module: nn.Module, x: np.ndarray) -> np.ndarray:
    """Per record, how close any ReLU or maximum comes to where its derivative jumps, against the size of the values there."""
    inputs = torch.from_numpy(x).double()
    net, nearest = with_masks(copy.deepcopy(module).double(), inputs), np.full(len(x), np.inf)

    def note(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        h = inputs[0].detach()
        if isinstance(layer, nn.ReLU):
            gaps = h.abs().flatten(1).min(1).values
        else:
            padded = functional.pad(
                h, [p for p in (layer.padding, layer.padding)[::-1] for _ in (0, 1)], value=-1e30
            )
            windows = (
                padded.unfold(2, layer.kernel_size, layer.stride)
                .unfold(3, layer.kernel_size, layer.stride)
                .flatten(4)
            )
            best = windows.topk(2, dim=-1).values
            # A gap between two values that a later ReLU sets to zero, or that an earlier one did, is no kink.
            gaps = (
                torch.where(best[..., 0] > 0, best[..., 0] - best[..., 1], torch.inf)
                .flatten(1)
                .min(1)
                .values
            )
        size = h.abs().flatten(1).max(1).values
        # Where nothing but rounding is left, as after the normalisation of equal values, a kink is
        # everywhere.
        distances = torch.where(size > 1e-9, gaps / size.clamp(min=1e-9), 0.0)
        np.minimum(nearest, distances.numpy(), out=nearest)

    for layer in net.modules():
        if isinstance(layer, nn.ReLU) or (
            isinstance(layer, nn.MaxPool2d) and layer.kernel_size > 1
        ):
            layer.register_forward_hook(note)
    with torch.no_grad():
        net(inputs)
    return nearest


def disagreement(
    kernel: Kernel, module: nn.Module, x: np.ndarray, y: np.ndarray, rows: np.ndarray
) -> float:
    """The relative error of a minibatch gradient, without records within float32 rounding of a kink if it is large with them."""

    def error(rows: np.ndarray) -> float:
        found, _ = kernel.compute_gradient(
            KernelRecords(x, y), StepRule(rates=()), vector_of(module), rows, mask_key=MASKS
        )
        return relative(found, torch_gradient(module, x[rows], y[rows], kernel.loss))

    first = error(rows)
    if first < 1e-5:
        return first
    # What a dropout drops depends on a record's place in the batch: those that are left may come
    # close to other kinks.
    while True:
        away = rows[kink_distances(module, x[rows]) > 1e-6]
        if len(away) == 0:
            return first
        if len(away) == len(rows):
            return error(rows)
        rows = away


def random_stack(generator: np.random.Generator) -> tuple[nn.Module, tuple[int, ...], int]:
    """A network of random layers, the shape of its records, and how many outputs it has."""
    pick, outputs = generator.integers, int(generator.integers(1, 7))
    layers: list[nn.Module] = []
    if generator.random() < 0.3:
        width = int(pick(1, 40))
        shape: tuple[int, ...] = (width,)
    else:
        shape = (int(pick(1, 5)), int(pick(4, 13)), int(pick(4, 13)))
        for _ in range(int(pick(1, 5))):
            here = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1:]
            layers.append(random_image_layer(generator, tuple(here)))
        layers.append(nn.Flatten())
        width = int(nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1])
    for _ in range(int(pick(0, 3))):
        after = int(pick(1, 30))
        layers.append(nn.Linear(width, after, bias=bool(pick(0, 2))))
        if after > 3 and pick(0, 3) == 0:
            layers.append(nn.LayerNorm(after))
        layers.append(random_activation(generator))
        if pick(0, 3) == 0:
            layers.append(random_dropout(generator))
        width = after
    layers.append(nn.Linear(width, outputs, bias=bool(pick(0, 2))))
    return nn.Sequential(*layers), shape, outputs


def random_activation(generator: np.random.Generator) -> nn.Module:
    return [nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.Identity()][
        int(generator.integers(0, 5))
    ]


def random_dropout(generator: np.random.Generator) -> nn.Module:
    return nn.Dropout(float(generator.choice([0.1, 0.25, 0.5])))


def random_image_layer(generator: np.random.Generator, here: tuple[int, int, int]) -> nn.Module:
    pick, (channels, height, width) = generator.integers, here
    smallest = min(height, width)
    kind = pick(0, 7)
    if kind <= 1:
        padding = int(pick(0, 3))
        kernel = min([1, 2, 3, 5][int(pick(0, 4))], smallest + 2 * padding)
        return nn.Conv2d(
            channels,
            int(pick(1, 11)),
            kernel,
            stride=int(pick(1, 4)),
            padding=padding,
            bias=bool(pick(0, 2)),
        )
    if kind == 2 and smallest > 1:
        kernel = int(pick(1, min(smallest, 3) + 1))
        padding = int(pick(0, kernel // 2 + 1))
        pool = [
            nn.MaxPool2d(kernel, int(pick(1, 4)), padding),
            nn.AvgPool2d(kernel, int(pick(1, 4))),
        ]
        return pool[int(pick(0, 2))]
    if kind == 3 and height * width >= 4:
        normalised = [here, here[1:]][int(pick(0, 2))]
        if pick(0, 2):
            affine = bool(pick(0, 2))
            return nn.LayerNorm(normalised, elementwise_affine=affine, bias=bool(pick(0, 2)))
        groups = [g for g in range(1, channels + 1) if channels % g == 0]
        return nn.GroupNorm(groups[int(pick(0, len(groups)))], channels, affine=bool(pick(0, 2)))
    if kind == 6:
        return random_dropout(generator)
    if kind == 4:
        return Residual(
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), random_activation(generator))
        )
    return random_activation(generator)
