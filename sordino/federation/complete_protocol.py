"""Completes a protocol for a run: its seed, the names, the sizes and the model that it trains.

A run folder keeps the complete protocol, and prices are computed from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from sordino.data import (
    IN_PYTHON,
    Dataset,
)
from sordino.models import build_model
from sordino.models.bounded import build_bounded_model
from sordino.models.flat import FlatModel
from sordino.protocol import ClippedGlm, Data, LocalRule, Model, Protocol, Registry, UserError
from sordino.protocol.arithmetic import state_integers
from sordino.randomness import Key

DataSource = str | Dataset


ModelSource = str | nn.Module | Callable[..., nn.Module]


def resolve_protocol(
    protocol: Protocol, data: DataSource | None, model: ModelSource | None
) -> Protocol:
    """Returns the complete protocol of a run, with its seed and the names of its data and model.

    Args:
        protocol: The protocol as it was written.
        data: Data that were given in place of the protocol's.
        model: A model that was given in place of the protocol's.

    Returns:
        The protocol that the run folder keeps.
    """
    if data is not None:
        name = data if isinstance(data, str) else IN_PYTHON + data.name
        spec = replace(protocol.data, name=name) if protocol.data is not None else Data(name=name)
        if isinstance(data, Dataset) and data.test == "none":
            # There is nothing to score on, and a resumed run has to know that.
            spec = replace(spec, test="none")
        protocol = replace(protocol, data=spec)
    if model is not None:
        name = (
            model
            if isinstance(model, str)
            else IN_PYTHON + getattr(model, "__name__", type(model).__name__)
        )
        net = Model(name=name)
        if protocol.model is not None:
            net = replace(protocol.model, name=name)
        protocol = replace(protocol, model=net)
    if protocol.seed is None:
        # Six bytes: a number that every JSON reader keeps exactly, which 53 bits allow and 64 do
        # not.
        protocol = replace(protocol, seed=int.from_bytes(Key.from_system().secret[:6], "little"))
    return state_integers(protocol)


def with_public_size(protocol: Protocol, parts: tuple[np.ndarray, ...]) -> Protocol:
    """Returns the protocol with the records per client spelled out, where all clients have as many.

    Prices depend on this number, so a run folder has to say it.

    Args:
        protocol: The federation whose rounds are played.
        parts: The records of every client.

    Returns:
        The protocol; unchanged where sizes differ, or where the protocol lists them.
    """
    data = protocol.data
    sizes = {len(part) for part in parts}
    if data is None or data.distinct_sizes or len(sizes) > 1:
        return protocol
    return replace(protocol, data=replace(data, records=sizes.pop()))


def with_public_dimension(protocol: Protocol, module: nn.Module) -> Protocol:
    """Returns the protocol with the number of parameters spelled out, where prices depend on it.

    Args:
        protocol: The federation whose rounds are played.
        module: Its model.

    Returns:
        The protocol; unchanged where all noise is normal, whose price knows no dimension.
    """
    kinds = {protocol.noise.tag, *(budget.mechanism or "gaussian" for budget in protocol.client)}
    without = kinds == {"gaussian"} and not protocol.release.integers
    if without or protocol.model is None or protocol.model.parameters is not None:
        return protocol
    return replace(
        protocol, model=replace(protocol.model, parameters=FlatModel(module).weights.numel())
    )


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """Says which module is needed.

    Attributes:
        source: A name, a module or a factory.
        shape: The shape of one record.
        outputs: How many outputs the data need.
        seed: What initial weights are drawn from.
        classes: The names of the classes; None for a regression.
    """

    source: ModelSource
    shape: tuple[int, ...]
    outputs: int
    seed: int
    classes: tuple[str, ...] | None


# What builds the module that a rule trains; nearly all rules train any.
RULE_MODELS: Registry[Callable[[Any, ModelRequest], nn.Module]] = Registry(
    "model", "local rule", LocalRule
)


def protocol_model(
    protocol: Protocol,
    source: ModelSource,
    shape: tuple[int, ...],
    outputs: int,
    *,
    seed: int,
    classes: tuple[str, ...] | None,
) -> nn.Module:
    """Returns the module that a protocol trains.

    The rule clipped-glm trains only linear models of bounded records, since its sensitivity is
    known for nothing else.

    Args:
        protocol: The federation whose rounds are played.
        source: A name, a module or a factory.
        shape: The shape of one record.
        outputs: How many outputs the data need.
        seed: What initial weights are drawn from.
        classes: The names of the classes; None for a regression.

    Returns:
        A new module.

    Raises:
        UserError: Clipped-glm with another model, or with data whose classes do not fit its loss.
    """
    request = ModelRequest(source=source, shape=shape, outputs=outputs, seed=seed, classes=classes)
    return RULE_MODELS.of(protocol.local)(protocol.local, request)


@RULE_MODELS.register_others
def _build_source(rule: LocalRule, request: ModelRequest) -> nn.Module:
    return build_model(request.source, request.shape, request.outputs, seed=request.seed)


@RULE_MODELS.register(ClippedGlm)
def _build_bounded(rule: ClippedGlm, request: ModelRequest) -> nn.Module:
    if request.classes is None:
        raise UserError("local.rule = 'clipped-glm' needs data with classes. Use fedavg.")
    if rule.loss == "logistic" and request.outputs != 2:
        raise UserError(
            "local.rule = 'clipped-glm' with local.loss = 'logistic' needs data of two classes; "
            f"these have {request.outputs} outputs. Use local.loss = 'softmax' without a clip, or "
            "'one-against-rest'."
        )
    if request.source != "logistic":
        raise UserError(
            f"model.name = {request.source!r}: "
            "the rule clipped-glm trains 'logistic' and nothing else."
        )
    inputs = math.prod(request.shape)
    return build_bounded_model(rule.loss, inputs, request.outputs, rule.feature_norm)


def require_name(name: str, what: str) -> str:
    """Returns a name by which data or a model can be found again.

    Args:
        name: As the protocol has it.
        what: "data" or "model", for the message of an error.

    Raises:
        UserError: It was passed in Python, so there is nothing to find.
    """
    if name.startswith(IN_PYTHON):
        given = name.removeprefix(IN_PYTHON)
        raise UserError(
            f"the {what} {given!r} was handed over in Python, not by name: hand it over again, as "
            f"{what}=..."
        )
    return name
