"""A model as one vector: what a client uploads, what is clipped and what noise is added to.

Clipping, noise and averaging act on all trained parameters at once. So the parameters are laid side by side in one vector of
which each is a view, and their gradients in another: a local step is then a few vector operations, whatever the model.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sordino.federation.models.losses import Loss
from sordino.protocol import UserError


class FlatModel:
    """A module's copy that computes with the vector `weights` and leaves its gradient in the vector `gradients`.

    It holds state: change `weights` in place (or `load` a vector) and the next pass uses it. The module given is copied, never
    changed, and must have passed `check_model`. A parameter under several names is one block of the vector, a frozen parameter
    is none.

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
        trained = [
            (name, parameter)
            for name, parameter in self._net.named_parameters()
            if parameter.requires_grad
        ]
        self.layout = tuple((name, parameter.shape) for name, parameter in trained)
        self.weights = torch.cat([parameter.detach().reshape(-1) for _, parameter in trained])
        self.gradients = torch.zeros_like(self.weights)
        self._trained = [parameter for _, parameter in trained]
        for parameter, weight, gradient in zip(
            self._trained, self.blocks(self.weights), self.blocks(self.gradients), strict=True
        ):
            parameter.data = weight
            parameter.grad = gradient

    def __len__(self) -> int:
        return self.weights.numel()

    @property
    def net(self) -> nn.Module:
        """The module that computes with the vector, for whoever needs its layers."""
        return self._net

    @property
    def trained(self) -> list[nn.Parameter]:
        """Its trained parameters, in the order of `layout`."""
        return self._trained

    def __reduce__(self) -> tuple[object, ...]:
        # Copied or pickled field by field, the parameters would no longer be views of the vector.
        return functools.partial(FlatModel, device=self.device), (self.module(),)

    def blocks(self, vector: Tensor) -> list[Tensor]:
        """The parts of a vector in the order and shapes of `layout`, as views."""
        pieces = vector.split([shape.numel() for _, shape in self.layout])
        return [piece.view(shape) for piece, (_, shape) in zip(pieces, self.layout, strict=True)]

    def load(self, vector: Tensor) -> None:
        """Take over the values of `vector`, which is copied."""
        if vector.shape != self.weights.shape:
            raise UserError(
                f"a vector of shape {tuple(vector.shape)} was given for a model of {len(self)} parameters"
            )
        self.weights.copy_(vector)

    def loss_gradient(self, inputs: Tensor, targets: Tensor, loss: Loss) -> float:
        """The loss of one batch in training mode; its gradient is then in `gradients`, zero where the loss does not depend."""
        self._set_training(True)
        self.gradients.zero_()
        value = loss(self._net(inputs), targets)
        value.backward()  # adds in place to each parameter's existing .grad, which is a view of `gradients`
        return value.item()

    def predict(self, inputs: Tensor) -> Tensor:
        """The outputs for a batch in evaluation mode, without a gradient."""
        self._set_training(False)
        with torch.no_grad():
            return self._net(inputs)

    def _set_training(self, training: bool) -> None:
        if self._net.training != training:
            self._net.train(training)

    def module(self) -> nn.Module:
        """A module of its own with the present weights, in evaluation mode; it shares no memory with this object."""
        return copy.deepcopy(self._net).eval()

    def to_state(self, vector: Tensor) -> dict[str, Tensor]:
        """What a file stores of the model with these weights: every entry of the module's state, frozen ones too, each a copy.

        Example:
            >>> flat = FlatModel(nn.Linear(2, 1))
            >>> flat.to_state(torch.tensor([3.0, 0.0, 1.0]))
            {'weight': tensor([[3., 0.]]), 'bias': tensor([1.])}
        """
        values = {
            id(parameter): block
            for parameter, block in zip(self._trained, self.blocks(vector), strict=True)
        }
        entries = self._net.state_dict(keep_vars=True).items()
        return {
            name: values.get(id(entry), entry.detach()).clone(memory_format=torch.contiguous_format)
            for name, entry in entries
        }

    def from_state(self, state: Mapping[str, Tensor]) -> Tensor:
        """Take over all of a stored state, frozen parameters and buffers too, and return a copy of its weights as a vector."""
        own = self._net.state_dict()
        if own.keys() != state.keys():
            missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
            raise UserError(
                f"the stored model is not this model: it lacks {missing} and has {unknown} besides"
            )
        for name, entry in own.items():
            if entry.shape != state[name].shape:
                raise UserError(
                    f"the stored model has {name} of shape {tuple(state[name].shape)}, this model {tuple(entry.shape)}"
                )
        for name, entry in own.items():
            entry.copy_(state[name])
        return self.weights.clone()
