"""What an attacker reads out of a model: its last layer, the embeddings that go into it, its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.federation.models.flat import FlatModel
from sordino.protocol import UserError

CHUNK = 500  # records at once
LARGEST = 1e15  # its square is still a float32


@dataclass(frozen=True, kw_only=True)
class LastLayer:
    """Where the last layer's weight and bias stand in the vector of all parameters, and its shape."""

    weight: slice
    bias: slice | None
    classes: int
    width: int

    def parts(self, vector: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weight (classes, width) and the bias (classes,) within a vector such as a gradient."""
        weight = vector[self.weight].reshape(self.classes, self.width)
        return weight, None if self.bias is None else vector[self.bias]


class Reader:
    """A model at given weights. It holds a copy; the module given is not changed.

    Example:
        >>> module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> reader = Reader(module, np.zeros(17, dtype=np.float32), torch.zeros(1, 2))
        >>> reader.last.weight, reader.last.bias, reader.read(torch.zeros(4, 2))[0].shape
        (slice(9, 15, None), slice(15, 17, None), torch.Size([4, 3]))
    """

    def __init__(self, module: nn.Module, weights: np.ndarray, example: Tensor) -> None:
        self._flat = FlatModel(module)
        self._flat.load(torch.from_numpy(weights.astype(np.float32)))
        layer = last_linear(self._flat, example)
        self.last = located(self._flat, layer)
        self._seen: list[Tensor] = []
        layer.register_forward_pre_hook(
            lambda module, inputs: self._seen.append(inputs[0].detach())
        )

    def read(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings (what goes into the last layer) and answers (logits); of a model that diverged, large numbers and no infinite ones."""
        embeddings, answers = [], []
        for start in range(0, len(inputs), CHUNK):
            self._seen.clear()
            answers.append(self._flat.predict(inputs[start : start + CHUNK]))
            embeddings.append(self._seen[-1].flatten(1))
        return finite(torch.cat(embeddings)), finite(torch.cat(answers))


def answers_of(flat: FlatModel, inputs: Tensor) -> Tensor:
    """What a model answers at its present weights, whatever its last layer is."""
    return finite(
        torch.cat(
            [flat.predict(inputs[start : start + CHUNK]) for start in range(0, len(inputs), CHUNK)]
        )
    )


def finite(values: Tensor) -> Tensor:
    """The values with what is not finite made so."""
    return torch.nan_to_num(values, nan=0.0).clamp(-LARGEST, LARGEST)


def last_linear(flat: FlatModel, example: Tensor) -> nn.Linear:
    """The linear layer whose outputs are the model's.

    Raises:
        UserError: the model does not end in one.
    """
    called: list[tuple[nn.Linear, Tensor]] = []

    def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if isinstance(module, nn.Linear):
            called.append((module, output))

    hooks = [
        module.register_forward_hook(note)
        for module in flat.net.modules()
        if isinstance(module, nn.Linear)
    ]
    answer = flat.predict(example[:1])
    for hook in hooks:
        hook.remove()
    if (
        not called
        or called[-1][1].shape != answer.shape
        or called[-1][1].data_ptr() != answer.data_ptr()
    ):
        raise UserError(
            f"{type(flat.net).__name__} does not end in a linear layer, which this attack reads. Attack a run of another model."
        )
    return called[-1][0]


def located(flat: FlatModel, layer: nn.Linear) -> LastLayer:
    """Where the parameters of a layer stand in the vector."""
    starts = np.cumsum([0, *(shape.numel() for _, shape in flat.layout)]).tolist()
    places = {
        id(parameter): slice(start, end)
        for parameter, start, end in zip(flat.trained, starts, starts[1:], strict=False)
    }
    if id(layer.weight) not in places:
        raise UserError(
            "the last layer is frozen: uploads say nothing about it. Attack another run."
        )
    bias = None if layer.bias is None else places.get(id(layer.bias))
    return LastLayer(
        weight=places[id(layer.weight)],
        bias=bias,
        classes=layer.out_features,
        width=layer.in_features,
    )
