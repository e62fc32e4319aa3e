"""Starts a run on disk, resumes it at its checkpoint, and plays it to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sordino.engines.choice import Chosen
from sordino.engines.run_folders import (
    collect_facts,
    create_folder,
    discard_unstarted,
    end_run,
    make_folder,
    recover_cut_line,
    refuse_changed,
)
from sordino.engines.run_options import RunOptions, Watch, ignore_message
from sordino.federation.complete_protocol import ModelSource
from sordino.federation.processors import worker_count
from sordino.federation.round import refuse_unplayable
from sordino.federation.round_metrics import finite
from sordino.federation.setup import Setup
from sordino.federation.state import State, first_state
from sordino.federation.store.files import hold_lock
from sordino.federation.store.run import Run
from sordino.federation.store.run_folder import RunFolder, refuse_filled
from sordino.federation.store.upload_archive import open_archive
from sordino.federation.training import ScoringEngine, Training, TrainingLimits, TrainingOptions
from sordino.privacy.ledger import Ledger, read_ledger
from sordino.privacy.ledger_lines import Event, RoundCharged
from sordino.privacy.participation_caps import find_capped_rounds
from sordino.privacy.spending import BudgetExceeded, find_affordable_rounds, find_repeated_rounds
from sordino.protocol import Protocol, UserError


def start_run(
    setup: Setup,
    choice: Chosen,
    folder: str | Path | None,
    options: RunOptions,
    watch: Watch,
    *,
    model: ModelSource | None = None,
) -> Run:
    """Makes the folder of a new run and trains it.

    Args:
        setup: The federation.
        choice: The engine.
        folder: The folder of the run; None for a new one.
        options: How the run is trained.
        watch: Functions that are called during the run.
        model: The model, if it was passed in Python.

    Returns:
        The run that has ended.

    Raises:
        BudgetExceeded: The budget does not afford one round; nothing was written.
    """
    # Parts without an implementation, and budgets that afford nothing, are refused before anything
    # is written.
    refuse_unplayable(setup.protocol)
    limits = find_limits(setup, ())
    workers = worker_count(options.workers, options.device)
    facts = collect_facts(
        setup, choice, workers, options.device, options.evaluate_every, options.keep_uploads
    )
    if options.signer:
        facts["signer"] = options.signer
    path = make_folder(folder, setup.protocol)
    with hold_lock(path):
        # Checked first, so that an interruption discards nothing but the run's own files.
        refuse_filled(path)
        try:
            run_folder = create_folder(path, setup, facts)
            state = first_state(setup)
            return train_to_end(
                setup, run_folder, state, limits, choice, options, watch, model=model
            )
        except KeyboardInterrupt:
            discard_unstarted(path)
            raise


def resume_run(
    run_folder: RunFolder,
    prepare_engine: Callable[[Protocol], tuple[Setup, Chosen]],
    options: RunOptions,
    watch: Watch,
    *,
    model: ModelSource | None = None,
    patience: float = 0.0,
) -> Run:
    """Resumes a run at its checkpoint.

    Args:
        run_folder: The folder of the run, which notes how often it is scored and what it keeps.
        prepare_engine: Returns the federation of a protocol and the engine that trains it.
        options: The workers, the device and the signer of the run.
        watch: Functions that are called during the run.
        model: The model, if it was passed in Python.
        patience: The seconds for which another process may still hold the run.

    Returns:
        The run that has ended.

    Raises:
        UserError: The run has ended, or something in it was changed.
    """
    with hold_lock(run_folder.path, patience=patience):
        protocol = run_folder.protocol()
        status = run_folder.facts()["status"]
        if status != "unfinished":
            raise UserError(f"{run_folder.path} is {status}: there is nothing left to run.")
        refuse_unplayable(protocol)
        setup, choice = prepare_engine(protocol)
        state, limits = take_up_run(setup, run_folder, choice, options.device, watch.on_message)
        if options.signer:
            run_folder.note(signer=options.signer)
        return train_to_end(setup, run_folder, state, limits, choice, options, watch, model=model)


def take_up_run(
    setup: Setup,
    run_folder: RunFolder,
    choice: Chosen,
    device: str,
    on_message: Callable[[str], None] = ignore_message,
) -> tuple[State, TrainingLimits]:
    """Returns the state from which an unfinished run continues, and how far it may go.

    Args:
        setup: The federation.
        run_folder: The folder of the run.
        choice: The engine.
        device: The device of the engine.
        on_message: Called if the newest checkpoint was damaged.

    Raises:
        UserError: Something has changed since the start.
        BudgetExceeded: There is no model yet, and the budget does not afford one round.
    """
    state, message = run_folder.load_checkpoint()
    if message:
        on_message(message)
    if state is None:
        state = first_state(setup)
    refuse_changed(run_folder, setup, state, choice, device)
    limits = find_limits(setup, read_ledger(run_folder.ledger_path).events, state.round)
    recover_cut_line(setup, run_folder, state, limits.rounds)
    # A line that was cut short may have been a charge, which leaves less.
    return state, find_limits(setup, read_ledger(run_folder.ledger_path).events, state.round)


def train_to_end(
    setup: Setup,
    run_folder: RunFolder,
    state: State,
    limits: TrainingLimits,
    choice: Chosen,
    options: RunOptions,
    watch: Watch,
    *,
    model: ModelSource | None,
) -> Run:
    """Plays the remaining rounds and writes the end of the run.

    Args:
        setup: The federation.
        run_folder: The folder of the run, which notes how often it is scored and what it keeps.
        state: The state from which the run continues.
        limits: How far the run may go.
        choice: The engine.
        options: The workers and the device of the run.
        watch: Functions that are called during the run.
        model: The model, if it was passed in Python.

    Returns:
        The run that has ended.
    """
    run_folder.cut_metrics(state.round)
    with (
        choice.start(setup, workers=options.workers, device=options.device) as engine,
        Ledger.resume(run_folder.ledger_path) as ledger,
    ):
        watch.on_start(setup, run_folder.path)
        facts = run_folder.facts()
        if facts["evaluate_every"] > 0 and "start_loss" not in facts:
            run_folder.note(**score_start(setup, engine))
        archive = open_archive(
            run_folder.path,
            rounds=limits.rounds,
            # Runs of the first versions kept no uploads and say nothing about it.
            every=facts.get("keep_uploads", 0),
            channel=setup.protocol.channel,
        )
        training = Training(
            setup,
            run_folder,
            ledger,
            state,
            limits=limits,
            options=TrainingOptions(
                evaluate_every=facts["evaluate_every"], on_round=watch.on_round, archive=archive
            ),
        )
        training.run(engine)
    return end_run(setup, run_folder, training.state, training.status, model)


def score_start(setup: Setup, engine: ScoringEngine) -> dict[str, float | None]:
    """Returns loss and accuracy of the model before training, for run.json.

    Args:
        setup: The federation.
        engine: The engine that scores the model.
    """
    found = engine.score(setup.initial_weights())
    accuracy = found.correct / found.count if setup.classification else None
    return {"start_loss": finite(found.loss / found.count), "start_accuracy": accuracy}


def find_limits(setup: Setup, events: Sequence[Event], done: int = 0) -> TrainingLimits:
    """Returns how far the budgets of the protocol let a run go, given the rounds charged twice.

    Args:
        setup: The federation.
        events: The events of the ledger so far.
        done: The number of rounds that are over.

    Returns:
        The number of rounds, at least those that are over, and the number of rounds in which each
        client may take part.

    Raises:
        BudgetExceeded: There is no model yet, and the budget does not afford one round.
    """
    protocol = setup.protocol
    sizes = setup.sizes.tolist()
    caps = {}
    for own in protocol.client:
        # A client is charged only for the rounds in which it took part.
        charged = [
            event
            for event in events
            if not isinstance(event, RoundCharged) or own.id in event.clients
        ]
        caps[own.id] = find_capped_rounds(
            protocol, own, sizes[own.id], tuple(find_repeated_rounds(charged, done))
        )
    budget = protocol.privacy.budget
    if budget is None:
        return TrainingLimits(rounds=protocol.rounds, caps=caps)
    reach = find_affordable_rounds(
        protocol, budget, repeated=find_repeated_rounds(events, done), sizes=sizes
    )
    if reach.rounds == 0 and done == 0:
        raise BudgetExceeded(reach.message)
    # A run that was killed after its last affordable round ends with the model that it has.
    return TrainingLimits(rounds=max(reach.rounds, done), caps=caps)
