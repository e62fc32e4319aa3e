"""Says which local rules send gradients that an attacker can read out of an upload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sordino.protocol import Bezier, FedAvg, FedProx, NoisySgd, Protocol
from sordino.protocol.registry import Registry
from sordino.protocol.rule_kinds import LocalRule


@dataclass(frozen=True, kw_only=True)
class GradientSteps:
    """Steps that move the global model along gradients of batches whose size is public.

    Attributes:
        clip: The largest norm of a batch's gradient; None where examples are clipped one by one.
        proximal: The strength of the pull to the global model.
        weight_decay: The strength of the pull to zero.
    """

    clip: float | None
    proximal: float = 0.0
    weight_decay: float = 0.0


# The steps of each rule, or None where an upload is made of anything else.
GRADIENT_STEPS: Registry[Callable[[Any], GradientSteps | None]] = Registry(
    "reading of gradients", "local rule", LocalRule
)


# A curve in the space of models is trained by the same steps as FedAvg.
@GRADIENT_STEPS.register(FedAvg, Bezier)
def _plain_steps(rule: FedAvg) -> GradientSteps:
    return GradientSteps(clip=rule.clip, weight_decay=rule.weight_decay)


@GRADIENT_STEPS.register(FedProx)
def _proximal_steps(rule: FedProx) -> GradientSteps | None:
    # A pull to the first model is not among what an attacker's steps repeat.
    if rule.anchor_pull > 0:
        return None
    return GradientSteps(clip=rule.clip, proximal=rule.proximal, weight_decay=rule.weight_decay)


@GRADIENT_STEPS.register(NoisySgd)
def _noisy_steps(rule: NoisySgd) -> GradientSteps | None:
    # An optimizer with a state sends no gradients, and random batches have no public size.
    if rule.optimizer != "sgd" or rule.varying_batches:
        return None
    return GradientSteps(clip=None, weight_decay=rule.weight_decay)


# Scaffold corrects its steps by control variates, and a clipped linear model clips within the
# gradient: neither upload is a sum of plain gradients. Of another rule nobody has said that it is.
@GRADIENT_STEPS.register_others
def _no_gradients(rule: LocalRule) -> None:
    return None


def gradient_steps_of(protocol: Protocol) -> GradientSteps | None:
    """Returns the steps of a protocol's clients, where uploads are made only of gradients.

    Args:
        protocol: The federation.

    Returns:
        The steps; None where an upload does not begin at the global model, or holds anything else.
    """
    # Personal models and penalties enter an upload along with the gradients of batches.
    if protocol.keeps_models or protocol.penalty:
        return None
    return GRADIENT_STEPS.of(protocol.local)(protocol.local)
