"""`train` and `resume`: from a protocol to a run on disk."""

from __future__ import annotations

import functools
import hashlib
import platform
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors

from sordino.engines.choice import Choice, checked_engine, choose
from sordino.engines.torch_engine import checked_device, worker_count
from sordino.federation.folder import RunFolder, State, claimed_path, now, protocol_digest
from sordino.federation.loop import Limits, RoundMetrics, run_rounds
from sordino.federation.randomness import GENERATOR
from sordino.federation.run import Run
from sordino.federation.setup import DataSource, ModelSource, Setup, prepare
from sordino.federation.storage import held, write_whole, writing
from sordino.federation.uploads import witness_of
from sordino.privacy.caps import capped_rounds
from sordino.privacy.certify import certify
from sordino.privacy.ledger import Event, Ledger, Opened, RoundCharged
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
    report: bool = True,
    on_start: Callable[[Setup, Path], None] = lambda setup, folder: None,
    on_round: Listener = lambda metrics: None,
) -> Run:
    """Train a federation and keep the run on disk.

    Args:
        protocol: what is run.
        data: a name, a path or a `Dataset`, in place of `protocol.data.name`.
        model: a name, a module or a factory, in place of `protocol.model.name`. A module is copied, never changed.
        folder: where the run is kept; by default `runs/<data>-<n>`.
        engine: "native", "torch", or "auto": the native engine where it can run the training, torch otherwise.
        workers: processes (torch) or threads (native) that train clients; by default one per core. The result does not depend on it.
        device: "cpu", "cuda" or "mps".
        evaluate_every: rounds between two scorings on the public test records; 0 for none; by default about 50 in a run.
        keep_uploads: keep what the server receives in every so many rounds, and in the last, for attacks; 0 for never.
        report: whether report.html is written at the end, which takes a few seconds.
        on_start: called once, before the first round.
        on_round: called after every round.

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
    every = scored_every(evaluate_every, protocol)
    checked_every("keep-uploads", keep_uploads)
    checked_device(device)
    checked_engine(engine)
    setup = prepare(protocol, data=data, model=model)
    limits = limits_of(setup, ())  # a budget that affords nothing is refused before anything is written
    choice = choose(setup, engine, device)
    facts = run_facts(setup, choice, worker_count(workers, device), device, every, keep_uploads)
    path = made_folder(folder, setup.protocol)
    with held(path):
        try:
            place, state = created(path, setup, facts), first_state(setup)
            finished = carry_on(setup, place, state, limits, choice, workers, device, on_start, on_round, model)
        except KeyboardInterrupt:
            discard_unstarted(path)
            raise
    if report:
        reported(finished)
    return finished


def resume(
    folder: str | Path,
    *,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    workers: int | None = None,
    device: str = "cpu",
    report: bool = True,
    on_start: Callable[[Setup, Path], None] = lambda setup, folder: None,
    on_round: Listener = lambda metrics: None,
    on_message: Callable[[str], None] = lambda text: None,
) -> Run:
    """Go on with a run that was interrupted. With seeded noise it ends as if it had never been.

    Example:
        >>> resume("runs/digits-1")  # doctest: +SKIP
    """
    place = RunFolder.existing(Path(folder))
    with held(place.path):
        protocol, status = place.protocol(), place.facts()["status"]
        if status != "unfinished":
            raise UserError(f"{place.path} is {status}: there is nothing left to run.")
        setup = prepare(protocol, data=data, model=model)
        choice = choose(setup, "auto" if protocol.noise.secure else place.facts()["engine"], device)
        state, limits = taken_up(setup, place, choice, device, on_message)
        finished = carry_on(setup, place, state, limits, choice, workers, device, on_start, on_round, model)
    if report:
        reported(finished)
    return finished


def reported(run: Run) -> None:
    """Write the report of a run; what goes wrong with it is a warning."""
    from sordino.report.writing import at_the_end

    at_the_end(run, lambda text: warnings.warn(text, stacklevel=4))


def taken_up(
    setup: Setup, place: RunFolder, choice: Choice, device: str, on_message: Callable[[str], None] = lambda text: None
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
    choice: Choice,
    workers: int | None,
    device: str,
    on_start: Callable[[Setup, Path], None],
    on_round: Listener,
    model: ModelSource | None,
) -> Run:
    """Run the rounds that are left and write down how it ended."""
    place.cut_metrics(state.round)
    with choice.start(setup, workers=workers, device=device) as engine, Ledger.resume(place.ledger_path) as ledger:
        on_start(setup, place.path)
        facts = place.facts()
        every, keep = facts["evaluate_every"], facts.get("keep_uploads", 0)  # runs of earlier versions kept none
        witness = witness_of(place.path, rounds=limits.rounds, every=keep, channel=setup.protocol.channel)
        state, status = run_rounds(
            setup, engine, place, ledger, state, limits=limits, evaluate_every=every, on_round=on_round, witness=witness
        )
    return ended(setup, place, state, status, model)


def ended(setup: Setup, place: RunFolder, state: State, status: str, model: ModelSource | None) -> Run:
    """Write down what became of a run."""
    if may_be_released(setup, state.round):
        with writing(place.path / "model.safetensors"):
            write_whole(place.path / "model.safetensors", save_tensors(setup.state(state.weights)))
    if setup.protocol.keeps_models:
        write_clients(setup, place, state)
    place.note(status=status, ended=now())
    return Run.load(place.path, model=model)


def first_state(setup: Setup) -> State:
    """Before the first round."""
    return State(weights=setup.initial_weights(), round=0)


def created(path: Path, setup: Setup, facts: Mapping[str, Any]) -> RunFolder:
    """The folder of a new run, filled."""
    place = RunFolder.create(path, setup.protocol, facts, opened_for(setup))
    if setup.shares is not None:
        place.keep_shares(setup.shares)
    return place


def opened_for(setup: Setup) -> Opened:
    """The first line of a run's ledger."""
    seeded = "fresh" if setup.protocol.noise.secure else "seeded"
    return Opened(protocol=protocol_digest(setup.protocol), generator=GENERATOR, noise=seeded)


def write_clients(setup: Setup, place: RunFolder, state: State) -> None:
    """The own model of every client that took part, each in a file of its own."""
    target = place.path / "clients"
    with writing(target):
        target.mkdir(exist_ok=True)
        for client, kept in state.clients.items():
            write_whole(target / f"{client}.safetensors", save_tensors(setup.state(kept["model"])))


def discard_unstarted(path: Path) -> None:
    """Remove a run that was interrupted before it released anything, so that nothing is left half made."""
    ledger = path / "ledger.jsonl"
    if ledger.exists() and b'"event":"round"' in ledger.read_bytes():
        return
    for entry in path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    with suppress(OSError):
        path.rmdir()


def recover_cut_line(setup: Setup, place: RunFolder, state: State) -> None:
    """Count a ledger line that a crash cut short as spent. Noise that repeats needs no such care: the same line will be written."""
    with writing(place.ledger_path), Ledger.resume(place.ledger_path) as ledger:
        if ledger.cut_short and not ledger.opened.repeatable:
            ledger.charge(round=state.round, clients=range(setup.protocol.clients))  # who had been drawn is not known


def may_be_released(setup: Setup, rounds: int) -> bool:
    """Whether the model after so many rounds fits the budget; one that diverged early may not, as fewer rounds can cost more in `final`."""
    budget, sizes = setup.protocol.privacy.budget, setup.sizes.tolist()
    if budget is None:
        return True
    spent = certify(setup.protocol, budget.view, budget.unit, delta=budget.delta, rounds=range(rounds), sizes=sizes)
    return spent.epsilon(budget.delta) <= budget.epsilon


def limits_of(setup: Setup, events: Sequence[Event], done: int = 0) -> Limits:
    """How far the budgets of the protocol let the run go, given what was charged twice.

    Raises:
        BudgetExceeded: not one more round fits.
    """
    protocol, sizes = setup.protocol, setup.sizes.tolist()
    caps = {}
    for own in protocol.client:
        charged = [event for event in events if not isinstance(event, RoundCharged) or own.id in event.clients]
        caps[own.id] = capped_rounds(protocol, own, sizes[own.id], tuple(repeated_rounds(charged, done)))
    budget = protocol.privacy.budget
    if budget is None:
        return Limits(rounds=protocol.rounds, caps=caps)
    reach = afforded(protocol, budget, repeated=repeated_rounds(events, done), sizes=sizes)
    if reach.rounds <= done and done < protocol.rounds:
        raise BudgetExceeded(reach.message)
    return Limits(rounds=reach.rounds, caps=caps)


def refuse_changed(place: RunFolder, setup: Setup, state: State, choice: Choice, device: str) -> None:
    """A run is resumed only with the data, the model and the means it was started with, and with a ledger that pays for its rounds.

    Seeded noise that is drawn again over another upload would cancel in their difference.
    """
    facts, events = place.facts(), read_ledger(place.ledger_path).events
    if setup.data_digest != facts["data_digest"]:
        raise UserError(f"the data of {place.path} are not those it was started with. Put them back; the run is as it was.")
    paid = {event.round for event in events if isinstance(event, RoundCharged)}
    missing = [t for t in range(state.round) if t not in paid]
    if missing:
        raise UserError(f"{place.ledger_path} lacks round {missing[0]}, which was run: lines were removed from it. The run is not resumed.")
    if setup.protocol.noise.secure:
        return
    means = {"generator": GENERATOR, "torch": torch.__version__, "device": device, "kernel": choice.fingerprint}
    means["model_digest"] = model_digest(setup)
    for name, present in means.items():
        if facts.get(name) != present:
            what = name.replace("_digest", "")
            reason = "Its noise is seeded, and drawn again over other uploads it would hide nothing."
            raise UserError(
                f"{place.path} was started with another {what} ({facts.get(name)}; here {present}). {reason} Use the same, or start anew."
            )


def model_digest(setup: Setup) -> str:
    """SHA-256 of the model's structure and initial weights."""
    return hashlib.sha256(str(setup.module).encode() + setup.initial_weights().tobytes()).hexdigest()


def made_folder(folder: str | Path | None, protocol: Protocol) -> Path:
    """The folder of a new run."""
    if folder is None:
        name = Path(protocol.data.name).stem if protocol.data is not None else "run"
        return claimed_path(name, Path("runs"))
    with writing(Path(folder)):
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def scored_every(every: int | None, protocol: Protocol) -> int:
    """Rounds between two scorings."""
    return max(1, protocol.rounds // SCORINGS) if every is None else checked_every("evaluate-every", every)


def checked_every(key: str, every: int) -> int:
    """Rounds between two scorings, or two rounds that are kept."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        raise InvalidValue(key, every, "a whole number, 0 for never")
    return every


@functools.cache
def own_version() -> str:
    """The version of the package that is installed."""
    return version("sordino")


def run_facts(setup: Setup, choice: Choice, workers: int, device: str, every: int, keep: int) -> dict[str, Any]:
    """What run.json says at the start."""
    research = "seeded: for research, private only while the seed is secret"
    return {
        "status": "unfinished",
        "started": now(),
        "sordino": own_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "engine": choice.name,
        "engine_reason": choice.reason,
        "kernel": choice.fingerprint,
        "workers": workers,
        "device": device,
        "generator": GENERATOR,
        "noise": "fresh, from the operating system" if setup.protocol.noise.secure else research,
        "evaluate_every": every,
        "keep_uploads": keep,
        "parameters": int(setup.initial_weights().size),
        "input_shape": list(setup.input_shape),
        "outputs": setup.outputs,
        "sizes": setup.sizes.tolist(),
        "data_digest": setup.data_digest,
        "model_digest": model_digest(setup),
    }
