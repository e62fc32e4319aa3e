"""`train` and `resume`: from a protocol to a run on disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from sordino.engines.choice import Chosen, SuperLink, checked_engine, choose
from sordino.engines.run_folders import (
    created,
    discard_unstarted,
    ended,
    first_state,
    made_folder,
    recover_cut_line,
    refuse_changed,
    run_facts,
)
from sordino.engines.torch_engine import checked_device, worker_count
from sordino.federation.folder import RunFolder, State, refuse_filled
from sordino.federation.loop import Limits, RoundMetrics, run_rounds
from sordino.federation.run import Run
from sordino.federation.setup import Begun, DataSource, ModelSource, Setup, prepare, resolved
from sordino.federation.signatures import read_private_key, sign_run
from sordino.federation.storage import held
from sordino.federation.uploads import witness_of
from sordino.privacy.caps import capped_rounds
from sordino.privacy.ledger import Event, Ledger, RoundCharged
from sordino.privacy.ledger import read as read_ledger
from sordino.privacy.spending import BudgetExceeded, afforded, repeated_rounds
from sordino.protocol import InvalidValue, Protocol, UserError

SCORINGS = 50  # a run is scored about this many times unless said otherwise

Listener = Callable[[RoundMetrics], None]


def train(
    protocol: Protocol,
    *,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    folder: str | Path | None = None,
    engine: str = "auto",
    workers: int | None = None,
    device: str = "cpu",
    evaluate_every: int | None = None,
    keep_uploads: int = 0,
    superlink: SuperLink | None = None,
    sign: str | Path | None = None,
    report: bool = True,
    on_start: Callable[[Begun, Path], None] = lambda begun, folder: None,
    on_round: Listener = lambda metrics: None,
    on_message: Callable[[str], None] = lambda text: None,
) -> Run:
    """Train a federation and keep the run on disk.

    Args:
        protocol: what is run.
        data: a name, a path or a `Dataset`, in place of `protocol.data.name`.
        model: a name, a module or a factory, in place of `protocol.model.name`. A module is copied, never changed.
        folder: where the run is kept; by default `runs/<data>-<n>`.
        engine: "native", "torch", "flower" across machines, or "auto": the native engine where it can run the training, else torch.
        workers: processes (torch) or threads (native) that train clients; by default one per core. The result does not depend on it.
        device: "cpu", "cuda" or "mps".
        evaluate_every: rounds between two scorings on the test records, public or not; 0 for none; by default about 50 in a run.
        keep_uploads: keep what the server receives in every so many rounds, and in the last, for attacks; 0 for never.
        superlink: where the clients' machines meet, for the engine "flower".
        sign: file of an Ed25519 key that signs the run when it has ended (`sordino verify --new-key` makes one).
        report: whether report.html is written at the end, which takes a few seconds.
        on_start: called once, before the first round.
        on_round: called after every round.
        on_message: told what there is to say besides, such as who fell silent.

    Raises:
        UserError: something does not fit; nothing was written.

    Example:
        >>> from sordino import Protocol, FedAvg, StageWise, Gaussian, train
        >>> protocol = Protocol(
        ...     clients=10, rounds=2, local=FedAvg(steps=2, batch=8, clip=1.0, schedule=StageWise(rate=0.5)), noise=Gaussian(sigma=0.01)
        ... )
        >>> run = train(protocol, data="digits", model="logistic")  # doctest: +SKIP
        >>> run.status  # doctest: +SKIP
        'finished'
    """
    key = None if sign is None else read_private_key(Path(sign))
    every = scored_every(evaluate_every, protocol)
    checked_every("keep-uploads", keep_uploads)
    checked_device(device)
    if checked_engine(engine, superlink) == "flower" and superlink is not None:
        from sordino.engines.flower.driver import Watch, train_across

        named = resolved_names(protocol, data, model)
        path = made_folder(folder, named)
        watch = Watch(on_start=on_start, on_round=on_round, on_message=on_message)
        finished = train_across(
            named,
            superlink,
            folder=path,
            evaluate_every=every,
            keep_uploads=keep_uploads,
            watch=watch,
        )
    else:
        setup = prepare(protocol, data=data, model=model)
        every = scored_every(evaluate_every, setup.protocol)
        choice = choose(setup, engine, device)
        place_for = lambda: made_folder(folder, setup.protocol)  # noqa: E731
        finished = begin(
            setup,
            choice,
            place_for,
            every,
            keep_uploads,
            workers,
            device,
            on_start,
            on_round,
            model,
        )
    if key is not None:
        sign_run(finished.folder, key)
    if report:
        reported(finished)
    return finished


def begin(
    setup: Setup,
    choice: Chosen,
    place_for: Callable[[], Path],
    every: int,
    keep: int,
    workers: int | None,
    device: str,
    on_start: Callable[[Begun, Path], None],
    on_round: Listener,
    model: ModelSource | None = None,
) -> Run:
    """Make the folder of a new run and run it."""
    limits = limits_of(
        setup, ()
    )  # a budget that affords nothing is refused before anything is written
    facts = run_facts(setup, choice, worker_count(workers, device), device, every, keep)
    path = place_for()
    with held(path):
        refuse_filled(
            path
        )  # before the rest: what is discarded on an interruption must be the run's own
        try:
            place, state = created(path, setup, facts), first_state(setup)
            return carry_on(
                setup, place, state, limits, choice, workers, device, on_start, on_round, model
            )
        except KeyboardInterrupt:
            discard_unstarted(path)
            raise


def resume(
    folder: str | Path,
    *,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    workers: int | None = None,
    device: str = "cpu",
    superlink: SuperLink | None = None,
    sign: str | Path | None = None,
    report: bool = True,
    on_start: Callable[[Begun, Path], None] = lambda begun, folder: None,
    on_round: Listener = lambda metrics: None,
    on_message: Callable[[str], None] = lambda text: None,
) -> Run:
    """Go on with a run that was interrupted. With seeded noise it ends as if it had never been.

    Example:
        >>> resume("runs/digits-1")  # doctest: +SKIP
    """
    key = None if sign is None else read_private_key(Path(sign))
    place = RunFolder.existing(Path(folder))
    if place.facts()["engine"] == "flower":
        from sordino.engines.flower.driver import Watch, resume_across

        finished = resume_across(
            place, superlink, Watch(on_start=on_start, on_round=on_round, on_message=on_message)
        )
    else:

        def prepared(protocol: Protocol) -> tuple[Setup, Chosen]:
            setup = prepare(protocol, data=data, model=model)
            return setup, choose(
                setup, "auto" if protocol.noise.secure else place.facts()["engine"], device
            )

        finished = go_on(place, prepared, workers, device, on_start, on_round, on_message, model)
    if key is not None:
        sign_run(finished.folder, key)
    if report:
        reported(finished)
    return finished


def go_on(
    place: RunFolder,
    prepared: Callable[[Protocol], tuple[Setup, Chosen]],
    workers: int | None,
    device: str,
    on_start: Callable[[Begun, Path], None],
    on_round: Listener,
    on_message: Callable[[str], None],
    model: ModelSource | None = None,
    *,
    patience: float = 0.0,
) -> Run:
    """Take up a run where its checkpoint left it; `patience` is how long another process may still hold it."""
    with held(place.path, patience=patience):
        protocol, status = place.protocol(), place.facts()["status"]
        if status != "unfinished":
            raise UserError(f"{place.path} is {status}: there is nothing left to run.")
        setup, choice = prepared(protocol)
        state, limits = taken_up(setup, place, choice, device, on_message)
        return carry_on(
            setup, place, state, limits, choice, workers, device, on_start, on_round, model
        )


def reported(run: Run) -> None:
    """Write the report of a run; what goes wrong with it is a warning."""
    from sordino.report.writing import at_the_end

    at_the_end(run, lambda text: warnings.warn(text, stacklevel=4))


def taken_up(
    setup: Setup,
    place: RunFolder,
    choice: Chosen,
    device: str,
    on_message: Callable[[str], None] = lambda text: None,
) -> tuple[State, Limits]:
    """Where an unfinished run goes on, and how far it may go, if everything is as it was."""
    state, message = place.load_checkpoint()
    if message:
        on_message(message)
    state = state if state is not None else first_state(setup)
    refuse_changed(place, setup, state, choice, device)
    recover_cut_line(setup, place, state)
    return state, limits_of(setup, read_ledger(place.ledger_path).events, state.round)


def carry_on(
    setup: Setup,
    place: RunFolder,
    state: State,
    limits: Limits,
    choice: Chosen,
    workers: int | None,
    device: str,
    on_start: Callable[[Begun, Path], None],
    on_round: Listener,
    model: ModelSource | None,
) -> Run:
    """Run the rounds that are left and write down how it ended."""
    place.cut_metrics(state.round)
    with (
        choice.start(setup, workers=workers, device=device) as engine,
        Ledger.resume(place.ledger_path) as ledger,
    ):
        on_start(setup, place.path)
        facts = place.facts()
        every, keep = (
            facts["evaluate_every"],
            facts.get("keep_uploads", 0),
        )  # runs of earlier versions kept none
        witness = witness_of(
            place.path, rounds=limits.rounds, every=keep, channel=setup.protocol.channel
        )
        state, status = run_rounds(
            setup,
            engine,
            place,
            ledger,
            state,
            limits=limits,
            evaluate_every=every,
            on_round=on_round,
            witness=witness,
        )
    return ended(setup, place, state, status, model)


def limits_of(setup: Setup, events: Sequence[Event], done: int = 0) -> Limits:
    """How far the budgets of the protocol let the run go, given what was charged twice.

    Raises:
        BudgetExceeded: not one more round fits.
    """
    protocol, sizes = setup.protocol, setup.sizes.tolist()
    caps = {}
    for own in protocol.client:
        charged = [
            event
            for event in events
            if not isinstance(event, RoundCharged) or own.id in event.clients
        ]
        caps[own.id] = capped_rounds(
            protocol, own, sizes[own.id], tuple(repeated_rounds(charged, done))
        )
    budget = protocol.privacy.budget
    if budget is None:
        return Limits(rounds=protocol.rounds, caps=caps)
    reach = afforded(protocol, budget, repeated=repeated_rounds(events, done), sizes=sizes)
    if reach.rounds <= done and done < protocol.rounds:
        raise BudgetExceeded(reach.message)
    return Limits(rounds=reach.rounds, caps=caps)


def resolved_names(
    protocol: Protocol, data: DataSource | None, model: ModelSource | None
) -> Protocol:
    """The protocol with the names of data and model that were given; objects of this process cannot be sent to other machines."""
    for key, given in (("data", data), ("model", model)):
        if given is not None and not isinstance(given, str):
            raise UserError(
                f"{key} was handed over in Python; across machines it must have a name, or a path, that every machine knows."
            )
    return resolved(protocol, data, model)


def scored_every(every: int | None, protocol: Protocol) -> int:
    """Returns the rounds between two scorings, 0 for never; without test records there are none."""
    asked = max(1, protocol.rounds // SCORINGS)
    if every is not None:
        asked = checked_every("evaluate-every", every)
    untested = protocol.data is not None and protocol.data.test == "none"
    return 0 if untested else asked


def checked_every(key: str, every: int) -> int:
    """Rounds between two scorings, or two rounds that are kept."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        raise InvalidValue(key, every, "a whole number, 0 for never")
    return every
