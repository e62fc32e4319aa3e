"""The folder of a run: how it is made, what it notes, when it may be taken up again, and how it ends."""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors

from sordino.engines.choice import Chosen
from sordino.federation.folder import RunFolder, State, claimed_path, now, protocol_digest
from sordino.federation.models.losses import mean_predictor_loss
from sordino.federation.randomness import GENERATOR
from sordino.federation.run import Run
from sordino.federation.seals import beginning_of, refuse_changed_files, sealed
from sordino.federation.setup import ModelSource, Setup
from sordino.federation.storage import write_whole, writing
from sordino.privacy.certify import certify
from sordino.privacy.ledger import Event, Ledger, Opened, refuse_unpaid
from sordino.privacy.ledger import read as read_ledger
from sordino.privacy.spending import missed_in
from sordino.protocol import Protocol, UserError
from sordino.protocol.version import own_version


def made_folder(folder: str | Path | None, protocol: Protocol) -> Path:
    """The folder of a new run."""
    if folder is None:
        name = Path(protocol.data.name).stem if protocol.data is not None else "run"
        return claimed_path(name, Path("runs"))
    with writing(Path(folder)):
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def first_state(setup: Setup) -> State:
    """Before the first round."""
    return State(weights=setup.initial_weights(), round=0)


def created(path: Path, setup: Setup, facts: Mapping[str, Any]) -> RunFolder:
    """The folder of a new run, filled."""
    return RunFolder.create(path, setup.protocol, facts, opened_for(setup, facts), setup.shares)


def opened_for(setup: Setup, facts: Mapping[str, Any]) -> Opened:
    """The first line of a run's ledger."""
    noise = "seeded"
    if setup.protocol.noise.secure:
        # Across machines clients never noise a round twice, so a repeated round costs nothing.
        noise = "once" if facts["engine"] == "flower" else "fresh"
    return Opened(
        protocol=protocol_digest(setup.protocol),
        generator=GENERATOR,
        noise=noise,
        **vars(beginning_of(facts, setup.shares)),
    )


def run_facts(
    setup: Setup, choice: Chosen, workers: int, device: str, every: int, keep: int
) -> dict[str, Any]:
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
        "baseline": mean_predictor_loss(setup.test.y) if len(setup.test.y) > 0 else None,
        "tested_on": setup.tested_on,
        "test_records": len(setup.test.y),
        "data_digest": setup.data_digest,
        "model_digest": model_digest(setup),
        **choice.facts,
    }


def model_digest(setup: Setup) -> str:
    """SHA-256 of the model's structure and initial weights."""
    return hashlib.sha256(
        str(setup.module).encode() + setup.initial_weights().tobytes()
    ).hexdigest()


def discard_unstarted(path: Path) -> None:
    """Remove a run that was interrupted before it released anything, so that nothing is left half made."""
    ledger = path / "ledger.jsonl"
    if ledger.exists() and b'"event":"round"' in ledger.read_bytes():
        return
    for entry in path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    with suppress(OSError):
        path.rmdir()


def refuse_changed(
    place: RunFolder, setup: Setup, state: State, choice: Chosen, device: str
) -> None:
    """A run is resumed only with the data, the model and the means it was started with, and with a ledger that pays for its rounds.

    Seeded noise that is drawn again over another upload would cancel in their difference.
    """
    refuse_changed_files(place)
    facts, events = place.facts(), read_ledger(place.ledger_path).events
    if setup.data_digest != facts["data_digest"]:
        raise UserError(
            f"the data of {place.path} are not those it was started with. Put them back; the run is as it was."
        )
    refuse_unpaid(place.ledger_path, events, state.round)
    if setup.protocol.noise.secure:
        return
    means = {
        "generator": GENERATOR,
        "torch": torch.__version__,
        "device": device,
        "kernel": choice.fingerprint,
    }
    means["model_digest"] = model_digest(setup)
    for name, present in means.items():
        if facts.get(name) != present:
            what = name.replace("_digest", "")
            reason = (
                "Its noise is seeded, and drawn again over other uploads it would hide nothing."
            )
            raise UserError(
                f"{place.path} was started with another {what} ({facts.get(name)}; here {present}). {reason} Use the same, or start anew."
            )


def recover_cut_line(setup: Setup, place: RunFolder, state: State) -> None:
    """Count a ledger line that a crash cut short as spent. Noise that repeats needs no such care: the same line will be written."""
    with writing(place.ledger_path), Ledger.resume(place.ledger_path) as ledger:
        over = state.round == setup.protocol.rounds  # then the line was the seal
        if ledger.cut_short and not ledger.opened.repeatable and not over:
            ledger.charge(
                round=state.round, clients=range(setup.protocol.clients)
            )  # who had been drawn is not known


def ended(
    setup: Setup, place: RunFolder, state: State, status: str, model: ModelSource | None
) -> Run:
    """Write down what became of a run."""
    if may_be_released(setup, read_ledger(place.ledger_path).events, state.round):
        with writing(place.path / "model.safetensors"):
            write_whole(place.path / "model.safetensors", save_tensors(setup.state(state.weights)))
    if setup.protocol.keeps_models:
        write_clients(setup, place, state)
    place.publish_last_scores()
    # Sealed, then ended: a run that says it has ended has its seal.
    place.sync_metrics()
    with writing(place.ledger_path), Ledger.resume(place.ledger_path) as ledger:
        ledger.seal(sealed(place, status=status, rounds=state.round))
    place.note(status=status, ended=now())
    return Run.load(place.path, model=model)


def write_clients(setup: Setup, place: RunFolder, state: State) -> None:
    """The own model of every client that took part, each in a file of its own."""
    target = place.path / "clients"
    with writing(target):
        target.mkdir(exist_ok=True)
        for client, kept in state.clients.items():
            if "model" in kept:  # across machines it is kept where the client is
                own = save_tensors(setup.client_state(kept["model"]))
                write_whole(target / f"{client}.safetensors", own)


def may_be_released(setup: Setup, events: Sequence[Event], rounds: int) -> bool:
    """Whether the model after so many rounds fits the budget; one that diverged early may not, as fewer rounds can cost more in `final`."""
    budget, sizes = setup.protocol.privacy.budget, setup.sizes.tolist()
    if budget is None or missed_in(
        events
    ):  # where clients fell silent, every round was held against the budget
        return True
    spent = certify(
        setup.protocol,
        budget.view,
        budget.unit,
        delta=budget.delta,
        rounds=range(rounds),
        sizes=sizes,
    )
    return spent.epsilon(budget.delta) <= budget.epsilon
