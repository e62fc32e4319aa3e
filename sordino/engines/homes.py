"""Where one of many trainings lives: in a run folder of its own, as `train` writes it, or in memory alone."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.engines.choice import Choice
from sordino.engines.run_folders import (
    created,
    ended,
    first_state,
    made_folder,
    may_be_released,
    model_digest,
    opened_for,
)
from sordino.engines.shared import Shared
from sordino.engines.training import taken_up
from sordino.federation.folder import PRIVATE, RunFolder, State, now, protocol_digest
from sordino.federation.loop import Charges, Keeping, Limits
from sordino.federation.run import Run, Trained, as_arrays
from sordino.federation.setup import ModelSource, Setup
from sordino.federation.storage import held, writing
from sordino.federation.unwritten import Unwritten, UnwrittenLedger
from sordino.privacy.ledger import Ledger
from sordino.protocol import Protocol, UserError

# What a folder holds whose making was cut short: a run is complete with protocol.toml, and releases nothing before.
LEFTOVERS = (
    "run.json",
    "run.json.part",
    "ledger.jsonl",
    "metrics.jsonl",
    "metrics.jsonl.part",
    "private/README.txt",
    "private/README.txt.part",
    "private/metrics.jsonl",
    "private/metrics.jsonl.part",
    "partition.json",
    "partition.json.part",
    "protocol.toml.part",
)


class InMemory:
    """A training of which nothing is written. It holds its metrics and charges."""

    def __init__(self) -> None:
        self.keeping, self.ledger = Unwritten(), UnwrittenLedger()
        self._facts: dict[str, Any] = {}

    def planned(self, plan: Protocol) -> Protocol:
        """The protocol, to which nothing is known besides."""
        return plan

    def ended_before(self, setup: Setup, model: ModelSource | None) -> Run | None:
        """Nothing: a training in memory ends with its call."""

    def engine(self, setup: Setup, wanted: str) -> str:
        """The engine that is wanted."""
        return wanted

    def enter(
        self, setup: Setup, choice: Choice, facts: dict[str, Any], shared: Shared
    ) -> tuple[State, Limits]:
        """Where the training begins, and how far it may go."""
        self.ledger.open(opened_for(setup, facts))
        self._facts = facts
        return first_state(setup), shared.limits(setup)

    def end(self, setup: Setup, state: State, status: str, model: ModelSource | None) -> Trained:
        """What became of the training."""
        own = (
            {client: kept["model"] for client, kept in state.clients.items()}
            if setup.protocol.keeps_models
            else {}
        )
        return Trained(
            protocol=setup.protocol,
            status=status,
            metrics=as_arrays(self.keeping.rows, Path("memory")),
            ledger=self.ledger.events,
            facts={**self._facts, "status": status, "ended": now()},
            state=setup.state(state.weights)
            if may_be_released(setup, self.ledger.events, state.round)
            else None,
            source=model,
            clients={client: setup.client_state(vector) for client, vector in own.items()},
        )

    def close(self) -> None:
        """There is nothing to let go."""


class OnDisk:
    """A training in a run folder, new or left unfinished. It holds the folder's lock and ledger from `enter`, or from the start if there
    is a run, until it is closed.
    """

    keeping: Keeping
    ledger: Charges

    def __init__(self, path: Path) -> None:
        self._path, self._closing = path, ExitStack()
        self._place: RunFolder | None = None
        if (path / "protocol.toml").is_file():
            self._closing.enter_context(held(path))
            self._place = RunFolder.existing(path)

    def planned(self, plan: Protocol) -> Protocol:
        """The protocol, with the seed that was drawn for the run that is there."""
        return (
            replace(plan, seed=self._place.protocol().seed)
            if self._place is not None and plan.seed is None
            else plan
        )

    def ended_before(self, setup: Setup, model: ModelSource | None) -> Run | None:
        """The run, if it is there and over."""
        if self._place is None:
            return None
        refuse_another(self._place, setup)
        return (
            Run.load(self._path, model=model)
            if self._place.facts()["status"] != "unfinished"
            else None
        )

    def engine(self, setup: Setup, wanted: str) -> str:
        """The engine that a run was started with, since seeded noise must not be drawn again over other uploads; or the one wanted."""
        return (
            wanted
            if self._place is None or setup.protocol.noise.secure
            else str(self._place.facts()["engine"])
        )

    def enter(
        self, setup: Setup, choice: Choice, facts: dict[str, Any], shared: Shared
    ) -> tuple[State, Limits]:
        """Make the folder, or take up the run that is in it: where it goes on, and how far it may go."""
        if self._place is not None:
            place, (state, limits) = (
                self._place,
                taken_up(setup, self._place, choice, facts["device"]),
            )
        else:
            state, limits = first_state(setup), shared.limits(setup)
            self._closing.enter_context(held(made_folder(self._path, setup.protocol)))
            sweep(self._path)
            place = self._place = created(self._path, setup, facts)
        place.cut_metrics(state.round)
        self.keeping, self.ledger = (
            place,
            self._closing.enter_context(Ledger.resume(place.ledger_path)),
        )
        return state, limits

    def end(self, setup: Setup, state: State, status: str, model: ModelSource | None) -> Trained:
        """Write down what became of the run."""
        if self._place is None:
            raise RuntimeError("the training was never begun")
        return ended(setup, self._place, state, status, model)

    def close(self) -> None:
        """Let go of the folder."""
        self._closing.close()


Home = InMemory | OnDisk


def refuse_another(place: RunFolder, setup: Setup) -> None:
    """A folder is taken up only by the training that it was made for."""
    facts = place.facts()
    same = {
        "protocol": protocol_digest(place.protocol()) == protocol_digest(setup.protocol),
        "data": facts["data_digest"] == setup.data_digest,
        "model": facts["model_digest"] == model_digest(setup),
    }
    other = [what for what, equal in same.items() if not equal]
    if other:
        raise UserError(
            f"{place.path} holds a training with another {' and '.join(other)}. Call with what it was made with, or choose another folder."
        )


def sweep(path: Path) -> None:
    """Remove what is left of a folder whose making was cut short; a ledger with a round in it is never touched."""
    ledger = path / "ledger.jsonl"
    if ledger.exists() and b'"event":"round"' in ledger.read_bytes():
        return
    with writing(path):
        for name in LEFTOVERS:
            (path / name).unlink(missing_ok=True)
        with suppress(OSError):  # it is not there, or holds what is not ours
            (path / PRIVATE).rmdir()
