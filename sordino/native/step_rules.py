"""A protocol's local rule in the kernel's terms: its steps, its noise and the keys of its draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sordino.federation.rules.optimizers import BETAS, MOMENTUM, TINY
from sordino.federation.setup import Setup
from sordino.mechanisms import mechanism_of
from sordino.models.clipping import MOST_EXAMPLES, NORM_ORDERS, check_example_count
from sordino.native.kernel import StepRule
from sordino.native.layout import OptimizerKind
from sordino.native.network_builder import KernelRefusal
from sordino.protocol import (
    Bezier,
    ClippedGlm,
    DpSgd,
    FedAvg,
    FedProx,
    Gaussian,
    LocalRule,
    NoisySgd,
    Protocol,
    Scaffold,
)
from sordino.protocol.registry import Registry
from sordino.protocol.release import noisy_steps_of
from sordino.randomness import Purpose


@dataclass(frozen=True, kw_only=True)
class StepRequest:
    """The steps that some clients make in a round.

    Attributes:
        protocol: the protocol.
        round_index: the round, which decides the rates.
        pull: the strength of the pull to another model.
        upload_noise: the deviation of the noise on uploads, where the kernel adds it.
        clip: the present clip, where it follows the gradients.
    """

    protocol: Protocol
    round_index: int
    pull: float = 0.0
    upload_noise: float = 0.0
    clip: float | None = None


STEP_RULES: Registry[Callable[[Any, StepRequest], StepRule]] = Registry(
    "form in the native kernel", "local rule", LocalRule
)

# Why the kernel does not run a rule; None where it does.
RULE_REFUSALS: Registry[str | None] = Registry(
    "place in the native engine", "local rule", LocalRule
)
RULE_REFUSALS.register(FedAvg, FedProx, Scaffold, Bezier, NoisySgd, DpSgd)(None)
RULE_REFUSALS.register_others("is not in the kernel")
RULE_REFUSALS.register(ClippedGlm)("is matrix products in float64, which torch does as fast")


def make_step_rule(request: StepRequest) -> StepRule:
    """Returns the steps of a round as the kernel takes them.

    Args:
        request: the steps.

    Raises:
        TypeError: the kernel does not have the protocol's rule.
    """
    rule = request.protocol.local
    return STEP_RULES.of(rule)(rule, request)


@STEP_RULES.register(FedAvg, FedProx, Scaffold, Bezier)
def _clip_batches(rule: FedAvg, request: StepRequest) -> StepRule:
    # Where the whole update is clipped, that happens after the kernel's steps.
    clip = math.inf
    if not request.protocol.release.clips_update:
        clip = rule.clip
    return StepRule(
        rates=rule.schedule.rates(round=request.round_index, steps=rule.steps),
        batch=rule.batch,
        clip=clip,
        norm=NORM_ORDERS[rule.clip_norm],
        proximal=request.pull,
        upload_noise=request.upload_noise,
    )


@STEP_RULES.register(NoisySgd)
def _clip_examples(rule: NoisySgd, request: StepRequest) -> StepRule:
    # Beyond, the sum would be rounded by more than is priced.
    check_example_count(rule.batch, MOST_EXAMPLES)
    momentum = BETAS[0]
    if rule.optimizer == "momentum":
        momentum = MOMENTUM
    return StepRule(
        rates=rule.schedule.rates(round=request.round_index, steps=rule.steps),
        batch=rule.batch,
        clip=rule.clip,
        per_example=True,
        norm=NORM_ORDERS[rule.clip_norm],
        # The public B, also where a Poisson batch has another size, which a record changes.
        divisor=float(rule.batch),
        proximal=request.pull,
        weight_decay=rule.weight_decay,
        optimizer=OptimizerKind[rule.optimizer.upper()],
        momentum=momentum,
        second_momentum=BETAS[1],
        epsilon=TINY.get(rule.optimizer, 0.0),
        # The protocol's noise is on the sum, and the kernel adds it to the mean.
        step_noise=mechanism_of(noisy_steps_of(request.protocol).sum_noise).deviation / rule.batch,
    )


@STEP_RULES.register(DpSgd)
def _sum_clipped_examples(rule: DpSgd, request: StepRequest) -> StepRule:
    check_example_count(rule.batch, MOST_EXAMPLES)
    clip = rule.clip if request.clip is None else request.clip
    return StepRule(
        # The server's rate comes after the sum over all clients.
        rates=(1.0,),
        batch=rule.batch,
        clip=clip,
        per_example=True,
        norm=NORM_ORDERS[rule.clip_norm],
        # What is sent moves by the same distance whatever the clip is.
        divisor=rule.batch * clip / rule.clip,
        upload_noise=request.upload_noise,
    )


def refuse_step_noise(setup: Setup) -> None:
    """Refuses noise in steps that the kernel does not draw: it has one normal law for all clients.

    Args:
        setup: the federation.

    Raises:
        KernelRefusal: with the reason.
    """
    if not setup.protocol.release.in_steps:
        return
    others = {noise.tag for noise in setup.noises if not noise.normal}
    if others:
        raise KernelRefusal(f"{' and '.join(sorted(others))} noise in steps is not in the kernel")
    if len(set(setup.noises)) > 1:
        raise KernelRefusal("noise in steps that differs between clients is not in the kernel")


@STEP_RULES.register_others
def _refuse_rule(rule: LocalRule, request: StepRequest) -> StepRule:
    raise TypeError(f"the kernel does not have the rule {rule.tag}")


def derive_keys(setup: Setup) -> tuple[bytes, bytes, bytes]:
    """Returns the keys of a training's draws.

    The key depends on how much a draw reads: a client's batches of a round are one row of words,
    and normals come in pairs.

    Args:
        setup: the federation.

    Returns:
        The keys of the batches, of the noise in steps and of the noise on uploads.
    """
    steps = make_step_rule(StepRequest(protocol=setup.protocol, round_index=0))
    normals = setup.initial_weights().size
    # In bytes: a word for each normal, and always a whole pair.
    noise_width = 8 * (normals + normals % 2)
    draws = setup.draw_key.stream(Purpose.MINIBATCH, training=setup.training)
    step_noise = setup.noise_key.stream(Purpose.STEP_NOISE, training=setup.training)
    upload_noise = setup.noise_key.stream(Purpose.UPLOAD_NOISE, training=setup.training)
    return (
        draws.key_of(8 * steps.steps * steps.batch),
        step_noise.key_of(noise_width),
        upload_noise.key_of(noise_width),
    )


def kernel_finishes(setup: Setup) -> bool:
    """Returns whether a model leaves the kernel as it leaves the client.

    It does with normal noise, and nothing clipped, moved or kept before it.

    Args:
        setup: the federation.
    """
    release = setup.protocol.release
    # Noise in the steps is normal, and nothing follows it.
    if release.in_steps:
        return True
    if setup.protocol.keeps_models or release.clips_update or release.on_curve:
        return False
    # The server's noise needs uploads in float64, and discrete noise is added to integers.
    if release.at_server or release.integers:
        return False
    return all(type(noise) is Gaussian for noise in setup.noises)
