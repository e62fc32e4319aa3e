"""The folder of a run: its creation, the facts it notes, checks on resuming, and its end."""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors

from sordino.engines.choice import Chosen
from sordino.federation.complete_protocol import ModelSource
from sordino.federation.setup import Setup
from sordino.federation.state import State
from sordino.federation.store.files import write_whole, writing
from sordino.federation.store.run import Run
from sordino.federation.store.run_folder import RunFolder, claimed_path, now, protocol_digest
from sordino.federation.store.seals import digest_beginning, refuse_changed_files, seal_folder
from sordino.models.task_losses import mean_predictor_loss
from sordino.privacy.certify import certify
from sordino.privacy.ledger import Ledger, read_ledger, refuse_unpaid
from sordino.privacy.ledger_lines import Event, Opened
from sordino.privacy.spending import find_missing_clients, find_repeated_rounds
from sordino.protocol import Protocol, UserError
from sordino.protocol.version import own_version
from sordino.randomness import GENERATOR


def make_folder(folder: str | Path | None, protocol: Protocol) -> Path:
    """Makes the folder of a new run.

    Args:
        folder: The path of the folder; None for the first free number under runs/.
        protocol: The protocol of the run, whose data give the folder its name.

    Returns:
        The path of the folder, which need not be empty.
    """
    if folder is None:
        name = Path(protocol.data.name).stem if protocol.data is not None else "run"
        return claimed_path(name, Path("runs"))
    with writing(Path(folder)):
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def create_folder(path: Path, setup: Setup, facts: Mapping[str, Any]) -> RunFolder:
    """Writes the files of a new run.

    Args:
        path: The path of an empty folder.
        setup: The federation.
        facts: The contents of run.json at the start.

    Returns:
        The folder.
    """
    return RunFolder.create(
        path, setup.protocol, facts, make_opening_line(setup, facts), setup.shares
    )


def make_opening_line(setup: Setup, facts: Mapping[str, Any]) -> Opened:
    """Returns the first line of a run's ledger.

    Args:
        setup: The federation.
        facts: The contents of run.json at the start.
    """
    noise = "seeded"
    if setup.protocol.noise.secure:
        # Across machines clients never noise a round twice, so a repeated round costs nothing.
        noise = "once" if facts["engine"] == "flower" else "fresh"
    return Opened(
        protocol=protocol_digest(setup.protocol),
        generator=GENERATOR,
        noise=noise,
        **vars(digest_beginning(facts, setup.shares)),
    )


def collect_facts(
    setup: Setup,
    choice: Chosen,
    workers: int,
    device: str,
    every: int,
    keep: int,
) -> dict[str, Any]:
    """Returns the contents of run.json at the start.

    Args:
        setup: The federation.
        choice: The engine and the reason for it.
        workers: The number of processes or threads that train clients.
        device: "cpu", "cuda" or "mps".
        every: The number of rounds from one scoring to the next; 0 for no scoring.
        keep: The number of rounds from one whose uploads are kept to the next; 0 to keep none.
    """
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
        "grid": None if setup.protocol.grid is None else asdict(setup.protocol.grid),
        "evaluate_every": every,
        "keep_uploads": keep,
        "parameters": int(setup.initial_weights().size),
        "input_shape": list(setup.input_shape),
        "outputs": setup.outputs,
        "sizes": setup.sizes.tolist(),
        "baseline": mean_predictor_loss(setup.test.y) if len(setup.test.y) > 0 else None,
        "tested_on": setup.tested_on,
        "test_records": len(setup.test.y),
        "data_digest": setup.data_digest,
        "model_digest": digest_model(setup),
        **choice.facts,
    }


def digest_model(setup: Setup) -> str:
    """Returns the SHA-256 of the model's structure and initial weights.

    Args:
        setup: The federation.
    """
    return hashlib.sha256(
        str(setup.module).encode() + setup.initial_weights().tobytes()
    ).hexdigest()


def discard_unstarted(path: Path) -> None:
    """Removes a run that was interrupted before it released anything.

    Args:
        path: The run folder; it is left alone if a round is in its ledger.
    """
    # A charged round may have been released, and the record of its cost must never be lost.
    ledger = path / "ledger.jsonl"
    if ledger.exists() and b'"event":"round"' in ledger.read_bytes():
        return
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    with suppress(OSError):
        path.rmdir()


def refuse_changed(
    place: RunFolder,
    setup: Setup,
    state: State,
    choice: Chosen,
    device: str,
) -> None:
    """Refuses to resume a run with other data, another model or another engine than at its start.

    The rounds must have been charged in its ledger, and its files must be those that were sealed.

    Args:
        place: The run folder.
        setup: The federation that would continue.
        state: The state from which it would continue.
        choice: The engine that would train it.
        device: The device of the engine.

    Raises:
        Changed: A sealed file was changed.
        UserError: Something else has changed; the message says what.
    """
    refuse_changed_files(place)
    facts = place.facts()
    events = read_ledger(place.ledger_path).events
    if setup.data_digest != facts["data_digest"]:
        raise UserError(
            f"the data are not those that {place.path} was started with. Put those back; the run "
            "is as it was."
        )
    refuse_unpaid(place.ledger_path, events, state.round)
    # Fresh noise is independent of all noise before, whatever upload it is added to.
    if setup.protocol.noise.secure:
        return
    # Seeded noise is drawn again after an interruption. Added to another upload, it would cancel in
    # the difference of the two, so everything that an upload depends on must be as it was.
    means = {
        "generator": GENERATOR,
        "torch": torch.__version__,
        "device": device,
        "kernel": choice.fingerprint,
        "model_digest": digest_model(setup),
    }
    for name, present in means.items():
        if facts.get(name) != present:
            what = name.replace("_digest", "")
            raise UserError(
                f"{place.path} was started with another {what} ({facts.get(name)}; here "
                f"{present}). Its noise is seeded: the same noise on other uploads would hide "
                f"nothing. Use the same {what}, or start a new run."
            )


def recover_cut_line(
    setup: Setup,
    place: RunFolder,
    state: State,
    rounds: int,
) -> None:
    """Charges the round whose ledger line was cut short by a crash.

    Args:
        setup: The federation.
        place: The run folder.
        state: The state from which the run continues.
        rounds: The number of rounds that the protocol and its budget allow.
    """
    with writing(place.ledger_path), Ledger.resume(place.ledger_path) as ledger:
        # With repeatable noise the same line will be written again. After the last round the line
        # was the seal, which costs nothing.
        over = state.round == rounds
        if ledger.cut_short and not ledger.opened.repeatable and not over:
            # The participants are no longer known, so every client is charged.
            ledger.charge(round=state.round, clients=range(setup.protocol.clients))


def end_run(
    setup: Setup,
    place: RunFolder,
    state: State,
    status: str,
    model: ModelSource | None,
) -> Run:
    """Writes the last files of a run that has ended, and seals it.

    Args:
        setup: The federation.
        place: The run folder.
        state: The state after the last round.
        status: How the run ended.
        model: The model, if it was passed in Python.

    Returns:
        The run, read back.
    """
    if may_be_released(setup, read_ledger(place.ledger_path).events, state.round):
        with writing(place.path / "model.safetensors"):
            write_whole(place.path / "model.safetensors", save_tensors(setup.state(state.weights)))
    if setup.protocol.keeps_models:
        write_personal_models(setup, place, state)
    place.publish_last_scores()
    # The seal is written before the status, so that every run that has ended has one.
    place.sync_metrics()
    with writing(place.ledger_path), Ledger.resume(place.ledger_path) as ledger:
        ledger.seal(seal_folder(place, status=status, rounds=state.round))
    place.note(status=status, ended=now())
    return Run.load(place.path, model=model)


def write_personal_models(setup: Setup, place: RunFolder, state: State) -> None:
    """Writes the personal model of every client that took part, one file each.

    Args:
        setup: The federation.
        place: The run folder.
        state: The state after the last round.
    """
    target = place.path / "clients"
    with writing(target):
        target.mkdir(exist_ok=True)
        for client, kept in state.clients.items():
            # Across machines the model stays with the client.
            if "model" in kept:
                own = save_tensors(setup.client_state(kept["model"]))
                write_whole(target / f"{client}.safetensors", own)


def may_be_released(setup: Setup, events: Sequence[Event], rounds: int) -> bool:
    """Returns whether releasing the model after some rounds fits the budget.

    The model of a training that diverged early may not fit: fewer rounds can cost more in the view
    "final", where the noise of later rounds hides what earlier ones released.

    Args:
        setup: The federation.
        events: The events of the ledger.
        rounds: The number of rounds after which the training ended.
    """
    budget = setup.protocol.privacy.budget
    # If clients fell silent, every round was checked against the budget before it was released.
    if budget is None or find_missing_clients(events):
        return True
    # A round that was interrupted and drawn again is charged twice.
    spent = certify(
        setup.protocol,
        budget.view,
        budget.unit,
        delta=budget.delta,
        rounds=[*range(rounds), *find_repeated_rounds(events, rounds)],
        sizes=setup.sizes.tolist(),
    )
    return spent.epsilon(budget.delta) <= budget.epsilon
