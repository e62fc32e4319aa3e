"""Plans a sweep before anything is trained: checks it, calibrates its noise, draws its trials."""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np

from sordino.engines.training_cache import TrainingCache
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.setup import prepare
from sordino.privacy.calibrate import calibrate
from sordino.protocol import Protocol, UserError
from sordino.sweeps.sweep_folder import SweepPlan, Trial
from sordino.sweeps.sweep_request import EPSILON, SweepRequest, SweepSetting


def refuse_given_keys(
    request: SweepRequest, data: DataSource | None, model: ModelSource | None
) -> None:
    """Refuses to vary data or a model passed in Python, which would be the same in all trainings.

    Args:
        request: The sweep.
        data: Data in place of the protocol's; None for none.
        model: A model in place of the protocol's; None for none.

    Raises:
        UserError: Such a key varies; the message names it.
    """
    given = {"model.name": model, "data.name": data}
    for key, _ in request.over:
        if given.get(key) is not None:
            raise UserError(
                f"{key} cannot vary while it is passed in Python: leave out one of them."
            )


def plan_sweep(
    request: SweepRequest,
    settings: tuple[SweepSetting, ...],
    data: DataSource | None = None,
    model: ModelSource | None = None,
) -> SweepPlan:
    """Returns a sweep with its noise calibrated and its trials drawn.

    Args:
        request: The request.
        settings: All combinations of its values.
        data: Data in place of the protocol's; None for none.
        model: A model in place of the protocol's; None for none.

    Raises:
        UserError: A setting that cannot be trained, or a target that no noise meets.
    """
    # Settings that use the same data load them once.
    shared = TrainingCache(model)
    ready = []
    for setting in settings:
        prepared = prepare(
            seed_protocol(setting.protocol, request.first_seed),
            data=data,
            model=model,
            load=shared.load,
        )
        # Some prices depend on the number of parameters, which is known now.
        if setting.protocol.model is not None and model is None:
            counted = replace(setting.protocol, model=prepared.protocol.model)
            setting = replace(setting, protocol=counted)
        ready.append(calibrate_setting(setting, request, prepared.sizes.tolist()))
        refuse_private_scores(request, prepared.tested_on)
    return SweepPlan(
        request=request, settings=tuple(ready), trials=draw_trials(request, len(ready))
    )


def refuse_private_scores(request: SweepRequest, source: str) -> None:
    """Refuses to price a choice by exact scores on private records.

    Args:
        request: The request, with its price.
        source: Whose records the scores are on.

    Raises:
        UserError: The price would cover the models, but not the scores that choose among them.
    """
    # The score must be a function of the model and of public records (docs/theory.md#a25).
    if request.price != "none" and source == "held-out":
        raise UserError(
            f"--price {request.price}: the scores are on records of the clients themselves, so a "
            "choice by them reveals more than the models do. Bring public test records, or leave "
            "out --price."
        )


def calibrate_setting(
    setting: SweepSetting, request: SweepRequest, sizes: list[int]
) -> SweepSetting:
    """Returns a setting with the noise that meets its epsilon, if it has one.

    Args:
        setting: The values and the protocol.
        request: The request, with view and delta.
        sizes: The number of records of every client.

    Raises:
        UserError: No noise meets the target, or the protocol has none to calibrate.
    """
    if EPSILON not in setting.values:
        return setting
    epsilon = setting.values[EPSILON]
    try:
        found = calibrate(
            setting.protocol, request.view, epsilon=epsilon, delta=request.delta, sizes=sizes
        )
    except UserError as error:
        raise UserError(f"--epsilons {epsilon:g} in the view {request.view}: {error}") from None
    return replace(setting, protocol=found.protocol)


def draw_trials(request: SweepRequest, settings: int) -> tuple[Trial, ...]:
    """Returns the trainings of a sweep in their order.

    Args:
        request: The request.
        settings: The number of settings.

    Raises:
        UserError: Private selection drew no training at all.
    """
    first = request.first_seed
    if request.trials is not None:
        # Private selection needs draws that nobody can repeat.
        generator = np.random.default_rng(secrets.randbits(128))
        drawn = generator.integers(settings, size=generator.poisson(request.trials))
        if len(drawn) == 0:
            raise UserError(
                f"private selection with --trials {request.trials:g} drew no training, as it does "
                "with a known probability: there is no model. Another try costs as much again."
            )
        return tuple(Trial(setting=int(setting), seed=first + n) for n, setting in enumerate(drawn))
    pairs = [(setting, seed) for setting in range(settings) for seed in range(request.seeds)]
    # Settings share seeds, so that they are compared on the same draws. Runs that are priced
    # together have different seeds: runs that share draws do not compose.
    return tuple(
        Trial(setting=setting, seed=first + (number if request.price == "sum" else seed))
        for number, (setting, seed) in enumerate(pairs)
    )


def seed_protocol(protocol: Protocol, seed: int) -> Protocol:
    """Returns the protocol with a seed.

    Args:
        protocol: The federation whose settings are swept.
        seed: Seed of the training.
    """
    return replace(protocol, seed=seed)
