"""Reads a model as an attacker does: its last layer, its embeddings, and its answers.

It also trains the classifier by which attackers judge what they read.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.models.flat import FlatModel
from sordino.protocol import UserError

# Large models on all candidates at once would need more memory than the run itself did.
RECORDS_PER_CALL = 500
# The square of this value is still a float32.
LARGEST_VALUE = 1e15


@dataclass(frozen=True, kw_only=True)
class LastLayer:
    """Where the last layer's parameters are in the vector of all parameters.

    Attributes:
        weight: The place of the weight.
        bias: The place of the bias, where there is one.
        classes: How many outputs the layer has.
        width: How many inputs it has.
    """

    weight: slice
    bias: slice | None
    classes: int
    width: int

    def split_vector(self, vector: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns the layer's part of a vector such as a gradient.

        Args:
            vector: One value for each parameter of the model.

        Returns:
            The weight, of shape (classes, width), and the bias, of shape (classes,), if any.
        """
        weight = vector[self.weight].reshape(self.classes, self.width)
        if self.bias is None:
            return weight, None
        return weight, vector[self.bias]


class ModelReader:
    """Reads a model at given weights. It holds a copy, so the module is not changed.

    Example:
        >>> module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> reader = ModelReader(module, np.zeros(17, dtype=np.float32), torch.zeros(1, 2))
        >>> reader.last.weight, reader.last.bias
        (slice(9, 15, None), slice(15, 17, None))
        >>> reader.read(torch.zeros(4, 2))[0].shape
        torch.Size([4, 3])
    """

    def __init__(self, module: nn.Module, weights: np.ndarray, example: Tensor) -> None:
        """Loads the weights and finds the last layer.

        Args:
            module: The structure of the model.
            weights: Its parameters.
            example: At least one input, to find the last layer by.

        Raises:
            UserError: The model does not end in a linear layer that is trained.
        """
        self._flat = FlatModel(module)
        self._flat.load(torch.from_numpy(weights.astype(np.float32)))
        layer = find_last_linear(self._flat, example)
        self.last = locate_layer(self._flat, layer)
        self._layer_inputs: list[Tensor] = []

        # torch passes the module to every hook; only the inputs of the last layer are wanted.
        def note_inputs(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            """Remembers the inputs of a layer.

            Args:
                module: The layer.
                inputs: Its inputs.
            """
            self._layer_inputs.append(inputs[0].detach())

        layer.register_forward_pre_hook(note_inputs)

    def read(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the model makes of some records.

        Args:
            inputs: The records.

        Returns:
            Embeddings, which go into the last layer, and logits. Those of a model that diverged are
            large, but finite.
        """
        embeddings = []
        answers = []
        for start in range(0, len(inputs), RECORDS_PER_CALL):
            # The hook appends at every call, and only the inputs of this batch belong to it.
            self._layer_inputs.clear()
            answers.append(self._flat.predict(inputs[start : start + RECORDS_PER_CALL]))
            embeddings.append(self._layer_inputs[-1].flatten(1))
        return make_finite(torch.cat(embeddings)), make_finite(torch.cat(answers))


def predict_answers(flat: FlatModel, inputs: Tensor) -> Tensor:
    """Returns the logits of a model at its present weights, whatever its last layer is.

    Args:
        flat: The model.
        inputs: The records.
    """
    answers = []
    for start in range(0, len(inputs), RECORDS_PER_CALL):
        answers.append(flat.predict(inputs[start : start + RECORDS_PER_CALL]))
    return make_finite(torch.cat(answers))


def train_classifier(features: np.ndarray, labels: np.ndarray, *, width: int, passes: int) -> Any:
    """Returns a classifier with one hidden layer, trained on standardised features.

    The seed is fixed, so that the same run and setting give the same result.

    Args:
        features: One row for each example.
        labels: The label of each example.
        width: The width of the hidden layer.
        passes: The passes over the examples.

    Returns:
        A fitted pipeline of scikit-learn.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPClassifier((width,), max_iter=passes, random_state=0)
    classifier = make_pipeline(StandardScaler(), network)
    with warnings.catch_warnings():
        # The number of passes is fixed: whether they were enough does not matter.
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(features, labels)
    return classifier


def make_finite(values: Tensor) -> Tensor:
    """Returns the values with 0 for nan, and large numbers for infinities.

    Args:
        values: Any numbers.
    """
    # Models without clipping may diverge, and attackers square what they read.
    return torch.nan_to_num(values, nan=0.0).clamp(-LARGEST_VALUE, LARGEST_VALUE)


def find_last_linear(flat: FlatModel, example: Tensor) -> nn.Linear:
    """Returns the linear layer whose outputs are the model's.

    Args:
        flat: The model.
        example: At least one input.

    Raises:
        UserError: The model does not end in one.
    """
    calls: list[tuple[nn.Linear, Tensor]] = []

    # The last layer is the one that is called last; modules may define their layers in any order.
    def note_call(module: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Remembers the output of a layer.

        Args:
            module: The layer.
            inputs: Its inputs.
            output: Its output.
        """
        calls.append((module, output))

    hooks = []
    for module in flat.net.modules():
        if isinstance(module, nn.Linear):
            hooks.append(module.register_forward_hook(note_call))
    answer = flat.predict(example[:1])
    # The attacker keeps the model for long, and forgotten hooks would keep every output alive.
    for hook in hooks:
        hook.remove()
    if calls:
        layer, output = calls[-1]
        # The same memory: nothing was computed after the layer.
        if output.shape == answer.shape and output.data_ptr() == answer.data_ptr():
            return layer
    raise UserError(
        f"{type(flat.net).__name__} does not end in a linear layer, which this attack reads. "
        "Attack a run of another model."
    )


def locate_layer(flat: FlatModel, layer: nn.Linear) -> LastLayer:
    """Returns where the parameters of a layer are in the vector of all parameters.

    Args:
        flat: The model.
        layer: One of its layers.

    Raises:
        UserError: The layer is frozen.
    """
    places = {}
    start = 0
    for parameter, (_, shape) in zip(flat.trained, flat.layout, strict=True):
        end = start + shape.numel()
        # Parameters compare by value, so they are looked up by identity.
        places[id(parameter)] = slice(start, end)
        start = end
    if id(layer.weight) not in places:
        raise UserError(
            "the last layer is frozen: uploads say nothing about it. Attack another run."
        )
    return LastLayer(
        weight=places[id(layer.weight)],
        bias=places.get(id(layer.bias)),
        classes=layer.out_features,
        width=layer.in_features,
    )
