"""A model as one vector, which is clipped, gets noise and is uploaded.

Clipping, noise and averaging act on all trained parameters at once. So the parameters are laid
side by side in one vector of which each is a view, and their gradients in another: a local step is
then a few vector operations, whatever the model.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sordino.models.dropout import key_dropouts, restore_dropouts
from sordino.models.task_losses import Loss
from sordino.protocol import UserError


class FlatModel:
    """A module's copy that computes with the vector `weights`.

    It holds state: change `weights` in place (or `load` a vector) and the next pass uses it. The
    module given is copied, never changed, and must have passed `check_model`. A parameter under
    several names is one block of the vector, a frozen parameter is none.

    Args:
        module: The network, whose parameters become one vector.
        device: The device on which the copy computes.

    Attributes:
        weights: The trained parameters as one vector.
        gradients: Their gradient, as `loss_gradient` left it.
        masks: The words that decide what its dropouts drop; None where it has no dropouts.
        layout: The name and shape of every trained parameter, in the order of the vector.

    Example:
        >>> flat = FlatModel(nn.Linear(2, 1))
        >>> flat.layout
        (('weight', torch.Size([1, 2])), ('bias', torch.Size([1])))
        >>> flat.load(torch.tensor([3.0, 0.0, 1.0]))
        >>> flat.predict(torch.tensor([[2.0, 5.0]]))
        tensor([[7.]])
    """

    def __init__(self, module: nn.Module, *, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._net = copy.deepcopy(module).to(self.device).train()
        self.masks = key_dropouts(self._net)
        self._trained: list[nn.Parameter] = []
        layout = []
        for name, parameter in self._net.named_parameters():
            if parameter.requires_grad:
                layout.append((name, parameter.shape))
                self._trained.append(parameter)
        self.layout = tuple(layout)
        self.weights = torch.cat([parameter.detach().reshape(-1) for parameter in self._trained])
        self.gradients = torch.zeros_like(self.weights)
        weight_blocks = self.blocks(self.weights)
        gradient_blocks = self.blocks(self.gradients)
        for place, parameter in enumerate(self._trained):
            parameter.data = weight_blocks[place]
            parameter.grad = gradient_blocks[place]

    def __len__(self) -> int:
        return self.weights.numel()

    @property
    def net(self) -> nn.Module:
        """The module that computes with the vector."""
        return self._net

    @property
    def trained(self) -> list[nn.Parameter]:
        """Its trained parameters, in the order of `layout`."""
        return self._trained

    def __reduce__(self) -> tuple[object, ...]:
        # Copied or pickled field by field, parameters would no longer be views of the vector.
        return functools.partial(FlatModel, device=self.device), (self.module(),)

    def blocks(self, vector: Tensor) -> list[Tensor]:
        """Returns the parts of a vector in the order and shapes of `layout`, as views.

        Args:
            vector: As long as `weights`.
        """
        pieces = vector.split([shape.numel() for _, shape in self.layout])
        return [piece.view(shape) for piece, (_, shape) in zip(pieces, self.layout, strict=True)]

    def load(self, vector: Tensor) -> None:
        """Copies the values of a vector into `weights`.

        Args:
            vector: As long as `weights`.

        Raises:
            UserError: It has another shape.
        """
        if vector.shape != self.weights.shape:
            raise UserError(
                f"a vector of shape {tuple(vector.shape)} was given for a model of {len(self)} "
                "parameters"
            )
        self.weights.copy_(vector)

    def loss_gradient(self, inputs: Tensor, targets: Tensor, loss: Loss) -> float:
        """Returns the loss of one batch in training mode, and leaves its gradient in `gradients`.

        Args:
            inputs: The records.
            targets: Their classes or quantities.
            loss: The mean loss of a batch.
        """
        self._set_training(True)
        self.gradients.zero_()
        value = loss(self._net(inputs), targets)
        # Adds in place to each parameter's existing gradient, which is a view of `gradients`.
        value.backward()
        return value.item()

    def predict(self, inputs: Tensor) -> Tensor:
        """Returns the outputs for a batch in evaluation mode, without a gradient.

        Args:
            inputs: The records.
        """
        self._set_training(False)
        with torch.no_grad():
            answers: Tensor = self._net(inputs)
            return answers

    def _set_training(self, training: bool) -> None:
        if self._net.training != training:
            self._net.train(training)

    def module(self) -> nn.Module:
        """Returns a copy of the module with the present weights, in evaluation mode."""
        return restore_dropouts(copy.deepcopy(self._net).eval())

    def to_state(self, vector: Tensor) -> dict[str, Tensor]:
        """Returns what a file stores of the model with some weights.

        Args:
            vector: The weights.

        Returns:
            Every entry of the module's state, frozen ones too, each a copy.

        Example:
            >>> flat = FlatModel(nn.Linear(2, 1))
            >>> flat.to_state(torch.tensor([3.0, 0.0, 1.0]))
            {'weight': tensor([[3., 0.]]), 'bias': tensor([1.])}
        """
        values = {}
        for parameter, block in zip(self._trained, self.blocks(vector), strict=True):
            values[id(parameter)] = block
        state = {}
        for name, entry in self._net.state_dict(keep_vars=True).items():
            value = values.get(id(entry), entry.detach())
            state[name] = value.clone(memory_format=torch.contiguous_format)
        return state

    def from_state(self, state: Mapping[str, Tensor]) -> Tensor:
        """Takes over all of a stored state, frozen parameters and buffers too.

        Args:
            state: As `to_state` gives it.

        Returns:
            A copy of its weights as a vector.

        Raises:
            UserError: It is the state of another model.
        """
        own = self._net.state_dict()
        if own.keys() != state.keys():
            missing = sorted(own.keys() - state.keys())
            unknown = sorted(state.keys() - own.keys())
            raise UserError(
                f"the stored model is not this model: it lacks {missing}, has {unknown}"
            )
        for name, entry in own.items():
            if entry.shape != state[name].shape:
                raise UserError(
                    f"the stored model has {name} of shape {tuple(state[name].shape)}, this model "
                    f"{tuple(entry.shape)}"
                )
        for name, entry in own.items():
            entry.copy_(state[name])
        return self.weights.clone()
