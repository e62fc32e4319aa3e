"""Sums of per-example gradients, each clipped by its norm, within bounded memory.

Examples never mix. There are four ways, all of which clip exactly what they add up:

- A plain stack of known layers is passed once forwards and backwards, down to the layers' outputs
  only (`layer_gradients.py`).
- A module whose gradients are known as a formula is asked for them (`GIVEN_GRADIENTS`).
- Any other module, or a loss that the module brings along, is called on one example at a time, as
  torch.func does it for many at once.
- A module that torch.func cannot vectorise gets its examples one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sordino.models.clipping import (
    MOST_EXAMPLES,
    NORM_ORDERS,
    CompensatedSum,
    check_example_count,
    clip_factors,
    find_clippable,
)
from sordino.models.dropout import DropoutMasks
from sordino.models.flat import FlatModel
from sordino.models.layer_gradients import (
    LayerGradients,
    count_held_floats,
    find_stacked_layers,
    pass_layers,
)
from sordino.models.task_losses import SUMMED_LOSSES, Loss

# Numbers of per-example gradients that are held at once.
MOST_FLOATS = 1 << 24

# Examples whose clipped gradients are added up plainly before a compensated addition: their number
# decides how large a batch docs/theory.md#c7 covers.
MOST_AT_ONCE = 1024

# The gradients of all examples, one a row, of modules of exactly these types with their own losses.
GIVEN_GRADIENTS: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {}


class ClippedSum(NamedTuple):
    """The sum of the clipped gradients of a batch.

    Attributes:
        total: The sum, a float64 vector.
        clipped: How many examples were clipped.
        nonfinite: How many gradients could not be clipped, and counted as zero.
        within: Half the examples within the clip less half of the others; in a table, one a row.
    """

    total: Tensor
    clipped: int
    nonfinite: int
    within: Tensor | float = 0.0


class ExampleGradients:
    """Computes clipped sums for a flat model, at its present weights, in the way that suits it.

    Args:
        model: The model.
        loss: The mean loss of a batch.
    """

    def __init__(self, model: FlatModel, loss: Loss) -> None:
        self._model = model
        self._loss = loss
        self._layers: list[nn.Module] | None = None
        if loss in SUMMED_LOSSES:
            self._layers = find_stacked_layers(model.net)
        self._given = GIVEN_GRADIENTS.get(type(model.net))
        self._vectorised = True
        self._chunk = 0
        # Without dropouts nobody reads them.
        self._masks = model.masks or DropoutMasks()

    def clipped_sum(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        clip: float,
        norm: str = "l2",
    ) -> ClippedSum:
        """Returns the sum over a batch of every example's gradient, clipped.

        Args:
            inputs: The examples, possibly none.
            targets: Their classes or quantities.
            clip: Gradients that are longer are scaled down to this norm.
            norm: "l2" or "l1".

        Raises:
            UserError: There are more examples than their sum is precise for.
        """
        check_example_count(len(targets), MOST_EXAMPLES)
        order = NORM_ORDERS[norm]
        # In float32 a sum of a million gradients moves by more than one of them is long when one
        # is replaced, and in float64 a plain sum of millions does.
        total = CompensatedSum(self._model.weights)
        clipped = 0
        nonfinite = 0
        if len(targets) > 0 and self._chunk == 0:
            self._chunk = self._choose_chunk(inputs)
        for start in range(0, len(targets), max(1, self._chunk)):
            rows = slice(start, start + self._chunk)
            for piece in self._compute_pieces(inputs[rows], targets[rows], rows):
                norms = piece.find_norms(order)
                clippable = find_clippable(norms, clip)
                if not bool(clippable.all()):
                    nonfinite += len(norms) - int(clippable.sum())
                    piece = piece.select(clippable)
                    norms = norms[clippable]
                clipped += int((norms > clip).sum())
                part = torch.zeros_like(self._model.weights, dtype=torch.float64)
                piece.add_to(part, self._model, clip_factors(norms, clip))
                total.add(part)
        within = len(targets) / 2 - clipped - nonfinite
        return ClippedSum(total.value(), clipped, nonfinite, within)

    def _compute_pieces(self, inputs: Tensor, targets: Tensor, rows: slice) -> Iterator[Piece]:
        """Yields the gradients of some examples, all at once or one by one.

        Args:
            inputs: The examples.
            targets: Their classes or quantities.
            rows: Their places in the batch.
        """
        if self._layers is not None:
            summed_loss = SUMMED_LOSSES[self._loss]
            with self._masks.of_records(rows):
                piece = pass_layers(self._model.net, self._layers, inputs, targets, summed_loss)
            yield piece
            return
        if self._given is not None:
            yield GradientRows(self._given(self._model.net, inputs))
            return
        if self._vectorised:
            try:
                with self._masks.of_records(rows):
                    table = vectorise_gradients(self._model, inputs, targets, self._loss)
            except RuntimeError:
                # torch.func cannot vectorise this module.
                self._vectorised = False
            else:
                yield GradientRows(table)
                return
        for example in range(len(targets)):
            row = slice(example, example + 1)
            place = rows.start + example
            with self._masks.of_records(slice(place, place + 1)):
                self._model.loss_gradient(inputs[row], targets[row], self._loss)
            yield GradientRows(self._model.gradients.clone()[None])

    def _choose_chunk(self, inputs: Tensor) -> int:
        """Returns how many examples are worked on at once."""
        if self._layers is None:
            floats = len(self._model)
        else:
            with self._masks.of_records(slice(1)):
                floats = count_held_floats(self._layers, inputs[:1])
        return min(MOST_AT_ONCE, max(1, MOST_FLOATS // floats))


@dataclass(frozen=True)
class GradientRows:
    """Gradients written out.

    Attributes:
        rows: The gradients, one example a row.
    """

    rows: Tensor

    def find_norms(self, order: int) -> Tensor:
        """Returns the norm of every example's gradient.

        Args:
            order: Order of the norm, 1 or 2.
        """
        norms: Tensor = torch.linalg.vector_norm(self.rows, ord=order, dim=1, dtype=torch.float64)
        return norms

    def select(self, kept: Tensor) -> GradientRows:
        """Returns the gradients of some of the examples.

        Args:
            kept: A boolean for every example.
        """
        return GradientRows(self.rows[kept])

    def add_to(self, total: Tensor, model: FlatModel, factors: Tensor) -> None:
        """Adds the gradients, each times its factor, to a vector.

        Args:
            total: The vector.
            model: The model that the gradients are of.
            factors: One for every example.
        """
        total += factors @ self.rows.double()


Piece = GradientRows | LayerGradients


def vectorise_gradients(
    model: FlatModel,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
) -> Tensor:
    """Returns the gradients of all examples, one a row, each computed as if it were alone.

    Args:
        model: The model.
        inputs: The examples.
        targets: Their classes or quantities.
        loss: The mean loss of a batch.

    Raises:
        RuntimeError: torch.func cannot vectorise the module.
    """
    net = model.net.train()
    names = [name for name, _ in model.layout]

    def find_loss(
        weights: tuple[Tensor, ...], example: Tensor, target: Tensor, words: Tensor
    ) -> Tensor:
        """Returns the loss of one example.

        Args:
            weights: The model's parameters.
            example: The example's input.
            target: Its label.
            words: What its dropouts drop.
        """
        parameters = dict(zip(names, weights, strict=True))
        if rows is not None:
            masks.rows = words[None]
        return loss(functional_call(net, parameters, (example[None],)), target[None])

    masks = model.masks or DropoutMasks()
    rows = masks.rows
    weights = tuple(parameter.detach() for parameter in model.trained)
    differentiate = vmap(grad(find_loss), in_dims=(None, 0, 0, 0), randomness="different")
    words = inputs.new_empty((len(targets), 0)) if rows is None else rows
    try:
        tables = differentiate(weights, inputs, targets, words)
    finally:
        masks.rows = rows
    return torch.cat([table.flatten(1) for table in tables], dim=1)
