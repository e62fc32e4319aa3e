"""Optimizers of noisy gradients: plain steps, momentum, Adam, AdaGrad.

They act on all parameters as one vector, or on a table of such rows.

They are post-processing of what the noise already protects, so neither state nor steps cost any
privacy.
The formulas and their constants are torch's.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MOMENTUM = 0.9
BETAS = (0.9, 0.999)
# Added to the root of squares, so that coordinates that hardly moved make no long steps.
TINY = {"adam": 1e-8, "adagrad": 1e-10}
VECTORS = {"sgd": (), "momentum": ("first",), "adam": ("first", "second"), "adagrad": ("second",)}


class Optimizer:
    """Moves weights against gradients.

    It holds its moments, which a client keeps from round to round.

    Example:
        >>> optimizer, weights = Optimizer("momentum", torch.zeros(1)), torch.zeros(1)
        >>> for _ in range(2):
        ...     optimizer.step(weights, torch.ones(1), rate=1.0)
        >>> weights.round(decimals=4)
        tensor([-2.9000])
    """

    def __init__(self, name: str, like: Tensor, state: dict[str, np.ndarray] | None = None) -> None:
        self._name = name
        held = state or {}
        # One number of steps for each row: clients of several trainings have not taken part
        # equally often.
        self._count = torch.zeros(*like.shape[:-1], 1, dtype=torch.int64)
        if "steps" in held:
            self._count = torch.from_numpy(held["steps"].copy())
        self._moments: dict[str, Tensor] = {}
        for moment in VECTORS[name]:
            self._moments[moment] = torch.zeros_like(like)
            if moment in held:
                # A copy, since moments change in place and the client's kept state must not.
                self._moments[moment] = torch.from_numpy(held[moment].copy()).to(like.device)

    def step(self, weights: Tensor, gradient: Tensor, rate: float) -> None:
        """Changes `weights` in place; the gradient may be changed too.

        Args:
            weights: The parameters, changed in place.
            gradient: The gradient.
            rate: The learning rate.
        """
        self._count += 1
        STEPS[self._name](self, weights, gradient, rate)

    def _step_plainly(self, weights: Tensor, gradient: Tensor, rate: float) -> None:
        weights.add_(gradient, alpha=-rate)

    def _step_with_momentum(self, weights: Tensor, gradient: Tensor, rate: float) -> None:
        weights.add_(self._moments["first"].mul_(MOMENTUM).add_(gradient), alpha=-rate)

    def _step_by_adam(self, weights: Tensor, gradient: Tensor, rate: float) -> None:
        first = self._moments["first"].lerp_(gradient, 1 - BETAS[0])
        second = self._moments["second"].mul_(BETAS[1])
        second.addcmul_(gradient, gradient, value=1 - BETAS[1])
        # How much of a mean the first steps make.
        early = [(1 - beta ** self._count.double()).to(weights) for beta in BETAS]
        spread = second.sqrt().div_(early[1].sqrt()).add_(TINY["adam"])
        weights.addcdiv_(first / early[0], spread, value=-rate)

    def _step_by_adagrad(self, weights: Tensor, gradient: Tensor, rate: float) -> None:
        total = self._moments["second"].addcmul_(gradient, gradient)
        weights.addcdiv_(gradient, total.sqrt().add_(TINY["adagrad"]), value=-rate)

    def state(self) -> dict[str, np.ndarray]:
        """Returns what must be kept between rounds: nothing for plain steps."""
        if not self._moments:
            return {}
        moments = {
            name: moment.detach().cpu().numpy().copy() for name, moment in self._moments.items()
        }
        return {**moments, "steps": self._count.numpy().copy()}


STEPS = {
    "sgd": Optimizer._step_plainly,
    "momentum": Optimizer._step_with_momentum,
    "adam": Optimizer._step_by_adam,
    "adagrad": Optimizer._step_by_adagrad,
}
