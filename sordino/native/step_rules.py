"""A protocol's local rule in the kernel's terms: its steps, its noise and the keys of its draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from sordino.federation.rules.optimizers import BETAS, MOMENTUM, TINY
from sordino.federation.setup import Setup
from sordino.mechanisms.discrete_gaussian import DrawPlan
from sordino.models.clipping import MOST_EXAMPLES, NORM_ORDERS, check_example_count
from sordino.native.kernel import StepRule
from sordino.native.layout import NoiseLaw, OptimizerKind
from sordino.native.network_builder import KernelRefusal
from sordino.protocol import (
    Bezier,
    ClippedGlm,
    DpSgd,
    FedAvg,
    FedProx,
    Gaussian,
    Laplace,
    LocalRule,
    Noise,
    NoisySgd,
    Protocol,
    Scaffold,
    Staircase,
)
from sordino.protocol.registry import Registry
from sordino.randomness import KEYSTREAM_BYTES, Purpose, Stream


@dataclass(frozen=True, kw_only=True)
class StepRequest:
    """The steps that some clients make in a round.

    Attributes:
        protocol: The federation that is trained.
        round_index: The round, which decides the rates.
        pull: The strength of the pull to another model.
        upload_noise: The deviation of the noise on uploads, where the kernel adds it.
        noise: The clients' mechanism, for noise in steps; None: the protocol's.
        clip: The present clip, where it follows the gradients.
        grid_noise: How noise of integers is drawn, where the kernel rounds updates to a grid.
    """

    protocol: Protocol
    round_index: int
    pull: float = 0.0
    upload_noise: float = 0.0
    noise: Noise | None = None
    clip: float | None = None
    grid_noise: DrawPlan | None = None


STEP_RULES: Registry[Callable[[Any, StepRequest], StepRule]] = Registry(
    "form in the native kernel", "local rule", LocalRule
)


@dataclass(frozen=True, kw_only=True)
class StepNoise:
    """The noise of steps in the kernel's terms.

    Attributes:
        law: Its law.
        scale: Scale of the noise on a sum: a deviation, the scale of Laplace noise, a staircase's
            width.
        words: Words of the keystream that a value reads.
        fall: By how much the logarithm of a staircase falls once in every width.
        place: Where in a width it falls.
    """

    law: NoiseLaw
    scale: float
    words: int = 1
    fall: float = 0.0
    place: float = 0.0


STEP_NOISES: Registry[Callable[[Any], StepNoise | None]] = Registry(
    "form in the native kernel", "mechanism", Noise
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
        request: The steps.

    Raises:
        TypeError: The kernel does not have the protocol's rule.
    """
    rule = request.protocol.local
    steps = STEP_RULES.of(rule)(rule, request)
    grid = request.protocol.grid
    if grid is None:
        return steps
    return replace(
        steps,
        grid_scale=grid.scale,
        grid_limit=float(grid.largest_coordinate),
        grid_noise=request.grid_noise,
    )


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


@STEP_NOISES.register(Gaussian)
def _normal_noise(noise: Gaussian) -> StepNoise:
    return StepNoise(law=NoiseLaw.NORMAL, scale=noise.sigma)


@STEP_NOISES.register(Laplace)
def _laplace_noise(noise: Laplace) -> StepNoise:
    return StepNoise(law=NoiseLaw.LAPLACE, scale=noise.scale)


@STEP_NOISES.register(Staircase)
def _staircase_noise(noise: Staircase) -> StepNoise:
    return StepNoise(
        law=NoiseLaw.STAIRCASE,
        scale=noise.width,
        words=2,
        fall=noise.step,
        place=noise.falls_at,
    )


@STEP_NOISES.register_others
def _leave_to_python(noise: Noise) -> None:
    # What draws it is Python code, of which the kernel knows nothing.
    return None


def find_step_noise(rule: NoisySgd, noise: Noise) -> StepNoise:
    """Returns the noise on a sum as the kernel draws it.

    Args:
        rule: The rule.
        noise: A client's mechanism.

    Raises:
        KernelRefusal: The kernel does not draw it.
    """
    found = STEP_NOISES.of(noise)(noise.fit_unit(rule.noise_unit))
    if found is None:
        raise KernelRefusal(f"{noise.tag} noise in steps is not in the kernel")
    return found


@STEP_RULES.register(NoisySgd)
def _clip_examples(rule: NoisySgd, request: StepRequest) -> StepRule:
    # Beyond, the sum would be rounded by more than is priced.
    check_example_count(rule.batch, MOST_EXAMPLES)
    momentum = BETAS[0]
    if rule.optimizer == "momentum":
        momentum = MOMENTUM
    noise = find_step_noise(rule, request.noise or request.protocol.noise)
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
        step_noise=noise.scale / rule.batch,
        step_law=noise.law,
        stair_fall=noise.fall,
        stair_place=noise.place,
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
    """Refuses noise in steps that the kernel does not draw.

    Args:
        setup: The federation.

    Raises:
        KernelRefusal: The kernel cannot run it; the message says why.
    """
    rule: Any = setup.protocol.local
    if not setup.protocol.release.in_steps:
        return
    for noise in set(setup.noises):
        find_step_noise(rule, noise)


@STEP_RULES.register_others
def _refuse_rule(rule: LocalRule, request: StepRequest) -> StepRule:
    raise TypeError(f"the kernel does not have the rule {rule.tag}")


def derive_keys(setup: Setup) -> tuple[bytes, bytes]:
    """Returns the keys of a training's draws that all clients share.

    The key depends on how much a draw reads: a client's batches of a round are one row of words,
    and normals come in pairs.

    Args:
        setup: The federation.

    Returns:
        The keys of the batches and of the noise on uploads.

    Raises:
        KernelRefusal: No keystream is long enough for the noise.
    """
    steps = make_step_rule(StepRequest(protocol=setup.protocol, round_index=0))
    normals = setup.initial_weights().size
    # In bytes: a word for each normal, and always a whole pair.
    noise_width = 8 * (normals + normals % 2)
    draws = setup.draw_key.stream(Purpose.MINIBATCH, training=setup.training)
    upload_noise = setup.noise_key.stream(Purpose.UPLOAD_NOISE, training=setup.training)
    plan = plan_draws(setup)
    if plan is not None:
        noise_width = 8 * plan.words
    _refuse_short_keystream(upload_noise, noise_width)
    return (
        draws.key_of(8 * steps.steps * steps.batch),
        upload_noise.key_of(noise_width),
    )


def derive_step_key(setup: Setup, noise: Noise) -> bytes:
    """Returns the key of a client's noise in steps, which depends on the words that a value reads.

    Args:
        setup: The federation.
        noise: The client's mechanism.

    Raises:
        KernelRefusal: The kernel does not draw the noise, or no keystream is that long.
    """
    rule: Any = setup.protocol.local
    found = find_step_noise(rule, noise)
    values = setup.initial_weights().size
    if found.law is NoiseLaw.NORMAL:
        # Normals come in pairs.
        values += values % 2
    width = 8 * found.words * values
    stream = setup.noise_key.stream(Purpose.STEP_NOISE, training=setup.training)
    _refuse_short_keystream(stream, width)
    return stream.key_of(width)


def _refuse_short_keystream(stream: Stream, width: int) -> None:
    """Refuses rows that reach beyond the end of a keystream."""
    # The kernel counts blocks in 32 bits, and would start over beyond them.
    if (stream.lane + 1) * width > KEYSTREAM_BYTES:
        raise KernelRefusal("a keystream is too short for the noise of that many trainings")


class Output(Enum):
    """What leaves the kernel: the field of a job that it goes to, and the kind of its numbers."""

    UPLOAD = ("result", np.float32)
    # Without noise, which is added in Python.
    MODEL = ("exact", np.float64)
    # The update on a grid, with its noise.
    INTEGERS = ("integers", np.int64)


def choose_output(setup: Setup) -> Output:
    """Returns what leaves the kernel.

    It adds normal noise and noise of integers by itself, where nothing is clipped, moved or kept
    before it.

    Args:
        setup: The federation.
    """
    release = setup.protocol.release
    # Noise in the steps is all that there is, and nothing follows it.
    if release.in_steps:
        return Output.UPLOAD
    if setup.protocol.keeps_models or release.clips_update or release.on_curve:
        return Output.MODEL
    # The server's noise needs uploads in float64.
    if release.at_server:
        return Output.MODEL
    if release.integers:
        return Output.INTEGERS
    if all(noise.normal for noise in setup.noises):
        return Output.UPLOAD
    return Output.MODEL


def plan_draws(setup: Setup) -> DrawPlan | None:
    """Returns how noise of integers is drawn; None where there is none.

    Args:
        setup: The federation.
    """
    grid = setup.protocol.grid
    if grid is None or grid.digits == 0:
        return None
    return DrawPlan(count=setup.initial_weights().size, digits=grid.digits)
