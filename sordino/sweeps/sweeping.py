"""Trains a protocol with several settings and seeds, and keeps the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data import find_tested_on
from sordino.engines.many_trainings import train_many
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.round_metrics import OWN_SCORES, RoundMetrics
from sordino.federation.store.files import hold_lock, writing
from sordino.federation.store.run import Trained
from sordino.federation.store.run_folder import claimed_path
from sordino.privacy.certify import certify
from sordino.privacy.published import find_withheld, publish_metrics
from sordino.protocol import Protocol, SordinoError
from sordino.sweeps.sweep_folder import PLAN, SweepFolder, SweepPlan
from sordino.sweeps.sweep_planning import (
    plan_sweep,
    refuse_given_keys,
    refuse_private_scores,
    seed_protocol,
)
from sordino.sweeps.sweep_request import SweepRequest, make_settings, read_axes
from sordino.sweeps.sweep_results import Sweep, SweepRow
from sordino.sweeps.tuning_price import TuningPrice, price_all_runs, price_selection


def ignore_plan(protocols: tuple[Protocol, ...], folder: Path) -> None:
    """Does nothing when a sweep begins.

    Args:
        protocols: The protocols of all trainings.
        folder: The folder of the sweep.
    """


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Says how the trainings of a sweep are run and watched, which does not change their results.

    Attributes:
        data: Data in place of the protocol's.
        model: A model in place of the protocol's.
        engine: As in `train_many`.
        workers: As in `train_many`.
        device: As in `train_many`.
        on_plan: Called before the first training, with all protocols and the folder.
        on_round: Called after every round, with the number of its training and its metrics.
        on_row: Called for every training that has ended, now or earlier, with its number and row.
    """

    data: DataSource | None = None
    model: ModelSource | None = None
    engine: str = "auto"
    workers: int | None = None
    device: str = "cpu"
    on_plan: Callable[[tuple[Protocol, ...], Path], None] = ignore_plan
    on_round: Callable[[int, RoundMetrics], None] = lambda number, metrics: None
    on_row: Callable[[int, SweepRow], None] = lambda number, row: None


def sweep(  # noqa: PLR0913  (every option has a name and a default)
    protocol: Protocol,
    over: Mapping[str, Iterable[Any]] | None = None,
    *,
    epsilons: Iterable[float] = (),
    view: str = "server",
    delta: float = 1e-5,
    seeds: int = 1,
    price: str = "none",
    trials: float | None = None,
    folder: str | Path | None = None,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    engine: str = "auto",
    workers: int | None = None,
) -> Sweep:
    """Trains a protocol with every combination of some settings, and several seeds of each.

    Args:
        protocol: The federation whose keys are varied.
        over: Values by key of the protocol's file, such as {"local.clip": [0.5, 1.0]}.
        epsilons: Targets, for each of which the noise is calibrated.
        view: The adversary whose epsilon is calibrated and shown.
        delta: The delta of every epsilon.
        seeds: Trainings of every setting, from the protocol's seed on.
        price: "sum" prices all runs together, "selection" the best of a random number of runs.
        trials: For "selection", how many runs are expected.
        folder: Where the sweep is kept; by default `runs/sweep-<n>`. Called again with the same
            arguments, a sweep that was interrupted continues where it stopped.
        data: A name, a path or a `Dataset`, in place of `protocol.data.name`.
        model: A name, a module or a factory, in place of `protocol.model.name`.
        engine: "native", "torch" or "auto".
        workers: As in `train`.

    Returns:
        The results.

    Raises:
        UserError: Something does not fit, or the folder holds another sweep.

    Example:
        >>> swept = sweep(protocol, {"local.clip": [0.5, 1.0]}, epsilons=[1, 4])  # doctest: +SKIP
        >>> swept.best.settings  # doctest: +SKIP
        {'local.clip': 1.0, 'epsilon': 4.0}
    """
    request = SweepRequest(
        protocol=protocol,
        over=read_axes(over or {}),
        epsilons=tuple(float(epsilon) for epsilon in epsilons),
        view=view,
        delta=delta,
        seeds=seeds,
        price=price,
        trials=trials,
    )
    options = SweepOptions(data=data, model=model, engine=engine, workers=workers)
    return run_sweep(request, folder, options)


def run_sweep(request: SweepRequest, folder: str | Path | None, options: SweepOptions) -> Sweep:
    """Trains a sweep, or continues it.

    Args:
        request: The request.
        folder: The folder of the sweep; None for a new one below runs/.
        options: How the trainings are run.

    Returns:
        The results.

    Raises:
        UserError: Something does not fit, or the folder holds another sweep.
    """
    settings = make_settings(request)
    refuse_given_keys(request, options.data, options.model)
    if folder is not None and (Path(folder) / PLAN).exists():
        return continue_plan(request, SweepFolder(Path(folder)), options)
    # Mistakes show before a folder is made.
    plan = plan_sweep(request, settings, options.data, options.model)
    place = SweepFolder(make_sweep_folder(folder))
    with hold_lock(place.path):
        place.refuse_another(request)
        place.write_plan(plan)
        try:
            return train_plan(plan, place, options)
        except SordinoError:
            place.discard_unstarted()
            raise


def continue_plan(request: SweepRequest, place: SweepFolder, options: SweepOptions) -> Sweep:
    """Continues a sweep that was begun, with the noise and the trials that it has.

    Args:
        request: The present request.
        place: The folder of the sweep.
        options: How the trainings are run.

    Raises:
        UserError: The folder holds another sweep.
    """
    with hold_lock(place.path):
        place.refuse_another(request)
        return train_plan(place.read_plan(), place, options)


def resume_sweep(folder: str | Path, options: SweepOptions) -> Sweep:
    """Continues a sweep that was interrupted.

    Args:
        folder: The folder of the sweep.
        options: How the trainings are run.

    Returns:
        The results.

    Raises:
        UserError: There is no sweep.
    """
    return run_sweep(SweepFolder(Path(folder)).read_plan().request, folder, options)


def make_sweep_folder(folder: str | Path | None) -> Path:
    """Makes the folder of a sweep, unless it exists.

    Args:
        folder: The folder; None for the first free number below runs/.
    """
    if folder is None:
        return claimed_path("sweep", Path("runs"))
    path = Path(folder)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def train_plan(plan: SweepPlan, place: SweepFolder, options: SweepOptions) -> Sweep:
    """Trains all trials that have not ended, and gathers the rows of all.

    Args:
        plan: The sweep.
        place: The folder of the sweep.
        options: How the trainings are run.

    Returns:
        The results.
    """
    plans = [
        seed_protocol(plan.settings[trial.setting].protocol, trial.seed) for trial in plan.trials
    ]
    rows = place.read_rows()
    options.on_plan(tuple(plans), place.path)

    def note_end(number: int, trained: Trained) -> None:
        if number not in rows:
            rows[number] = make_row(plan, place, number, trained)
            # After each training, so that an interruption loses no row.
            place.write_rows(rows)
        options.on_row(number, rows[number])

    trained = train_many(
        plans,
        data=options.data,
        model=options.model,
        folder=place.runs,
        engine=options.engine,
        workers=options.workers,
        device=options.device,
        # A sweep compares only final models.
        evaluate_every=max(one.rounds for one in plans),
        on_round=options.on_round,
        on_end=note_end,
    )
    ordered = tuple(rows[number] for number in range(len(plans)))
    classified = any(row.accuracy is not None for row in ordered)
    return Sweep(
        folder=place.path,
        rows=ordered,
        score="accuracy" if classified else "loss",
        view=plan.request.view,
        delta=plan.request.delta,
        tuning=price_tuning(plan, trained),
    )


def make_row(plan: SweepPlan, place: SweepFolder, number: int, trained: Trained) -> SweepRow:
    """Returns the row of a training.

    Args:
        plan: The sweep.
        place: The folder of the sweep.
        number: The number of the training.
        trained: The training.
    """
    trial = plan.trials[number]
    request = plan.request
    epsilon: float | None = None
    # When a training diverged depends on the data, so no bound holds for its last model alone.
    if trained.status != "diverged" or request.view != "final":
        epsilon = trained.guarantee(request.view, delta=request.delta).epsilon(request.delta)
    own: dict[str, float | None] = dict.fromkeys(OWN_SCORES)
    # A price is shown with nothing that it does not cover.
    if request.price == "none":
        shown = publish_metrics(trained.metrics, find_withheld(trained.protocol))
        own = {name: last_known(shown[name]) for name in OWN_SCORES}
    return SweepRow(
        settings=plan.settings[trial.setting].values,
        seed=trial.seed,
        accuracy=read_last(trained, "accuracy"),
        loss=read_last(trained, "loss"),
        epsilon=epsilon,
        view=request.view,
        run=str(place.runs / f"{number:05d}"),
        status=trained.status,
        tested_on=find_tested_on(trained.protocol, trained.facts),
        **own,
    )


def read_last(trained: Trained, name: str) -> float | None:
    """Returns a score after the last round; None where it is not known.

    Args:
        trained: The training.
        name: The name of the score.
    """
    return last_known(trained.metrics[name])


def last_known(values: np.ndarray) -> float | None:
    """Returns the last value of a metric; None where there is none, or it is not known.

    Args:
        values: The values of the metric, one per round.
    """
    if len(values) == 0 or not math.isfinite(values[-1]):
        return None
    return float(values[-1])


def price_tuning(plan: SweepPlan, trained: list[Trained]) -> TuningPrice | None:
    """Returns what choosing among the runs costs, where that was asked for.

    Args:
        plan: The sweep.
        trained: All of its trainings.

    Raises:
        UserError: The scores are on private records, which no price covers.
    """
    request = plan.request
    if request.price == "none":
        return None
    # A sweep that an earlier version began may have scored private records.
    for one in trained:
        refuse_private_scores(request, find_tested_on(one.protocol, one.facts))
    # Runs are priced by their ledgers, which may differ from what was planned.
    spent = [one.guarantee(request.view, delta=request.delta) for one in trained]
    if request.trials is None:
        return price_all_runs(spent, request.delta)
    sizes = trained[0].sizes
    # Settings that were never drawn count as well, since nobody may know which were drawn
    # (docs/theory.md#a25).
    planned = [
        certify(one.protocol, request.view, delta=request.delta, sizes=sizes)
        for one in plan.settings
    ]
    return price_selection([*planned, *spent], len(trained), request.trials, request.delta)
