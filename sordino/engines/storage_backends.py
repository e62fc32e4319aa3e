"""Where one of many trainings lives: in a run folder, as `train` writes it, or in memory alone."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.engines.choice import EngineChoice
from sordino.engines.run_folders import (
    create_folder,
    end_run,
    make_folder,
    make_opening_line,
    may_be_released,
    model_digest,
)
from sordino.engines.run_lifecycle import take_up_run
from sordino.engines.training_cache import TrainingCache
from sordino.federation.complete_protocol import ModelSource
from sordino.federation.setup import Setup
from sordino.federation.state import State, first_state
from sordino.federation.store.files import hold_lock, writing
from sordino.federation.store.in_memory import MemoryLedger, MemoryStore
from sordino.federation.store.run import Run, Trained, as_arrays
from sordino.federation.store.run_folder import PRIVATE, RunFolder, now, protocol_digest
from sordino.federation.training import TrainingLimits
from sordino.federation.training_stores import ChargeLog, TrainingStore
from sordino.privacy.ledger import Ledger
from sordino.protocol import Protocol, UserError

# What a folder holds whose making was cut short: a run is complete with protocol.toml, and releases
# nothing before.
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


class MemoryBackend:
    """Keeps a training of which nothing is written. It holds its metrics and charges."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.ledger = MemoryLedger()
        self._facts: dict[str, Any] = {}

    def complete_plan(self, plan: Protocol) -> Protocol:
        """Returns the protocol as it is: nothing more is known of it.

        Args:
            plan: The protocol.
        """
        return plan

    def find_ended(self, setup: Setup, model: ModelSource | None) -> Run | None:
        """Returns None: a training in memory ends with its call.

        Args:
            setup: The training.
            model: The model, where it was passed in Python.
        """

    def engine(self, setup: Setup, wanted: str) -> str:
        """Returns the engine that is wanted.

        Args:
            setup: The training.
            wanted: The name of an engine.
        """
        return wanted

    def enter(
        self,
        setup: Setup,
        choice: EngineChoice,
        facts: dict[str, Any],
        shared: TrainingCache,
    ) -> tuple[State, TrainingLimits]:
        """Returns where the training begins, and how far it may go.

        Args:
            setup: The training.
            choice: The engine.
            facts: What a run.json would say at the start.
            shared: What the trainings of the call share.
        """
        self.ledger.open(make_opening_line(setup, facts))
        self._facts = facts
        return first_state(setup), shared.limits(setup)

    def end(
        self,
        setup: Setup,
        state: State,
        status: str,
        model: ModelSource | None,
    ) -> Trained:
        """Returns what became of the training.

        Args:
            setup: The training.
            state: The state after the last round.
            status: How it ended.
            model: The model, where it was passed in Python.
        """
        own = {}
        if setup.protocol.keeps_models:
            for client, kept in state.clients.items():
                own[client] = setup.client_state(kept["model"])
        released = None
        if may_be_released(setup, self.ledger.events, state.round):
            released = setup.state(state.weights)
        return Trained(
            protocol=setup.protocol,
            status=status,
            metrics=as_arrays(self.store.rows, Path("memory")),
            ledger=self.ledger.events,
            facts={**self._facts, "status": status, "ended": now()},
            state=released,
            source=model,
            clients=own,
        )

    def close(self) -> None:
        """Does nothing: there is nothing to let go."""


class FolderBackend:
    """Keeps a training in a run folder, new or left unfinished.

    It holds the folder's lock and ledger from `enter`, or from the start if there is a run, until
    it is closed.
    """

    store: TrainingStore
    ledger: ChargeLog

    def __init__(self, path: Path) -> None:
        """Takes hold of the run that is there, if there is one.

        Args:
            path: The folder, which need not exist.

        Raises:
            UserError: Another process holds it.
        """
        self._path = path
        self._closing = ExitStack()
        self._place: RunFolder | None = None
        # Held before anything is read: another process could change the run in between.
        if (path / "protocol.toml").is_file():
            self._closing.enter_context(hold_lock(path))
            self._place = RunFolder.existing(path)

    def complete_plan(self, plan: Protocol) -> Protocol:
        """Returns the protocol, with the seed that was drawn for the run that is there.

        Args:
            plan: The protocol.
        """
        if self._place is None or plan.seed is not None:
            return plan
        # A new seed would make another training of it, which the folder then refuses.
        return replace(plan, seed=self._place.protocol().seed)

    def find_ended(self, setup: Setup, model: ModelSource | None) -> Run | None:
        """Returns the run, if it is there and over.

        Args:
            setup: The training.
            model: The model, where it was passed in Python.

        Raises:
            UserError: The folder holds another training.
        """
        if self._place is None:
            return None
        refuse_another(self._place, setup)
        if self._place.facts()["status"] == "unfinished":
            return None
        return Run.load(self._path, model=model)

    def engine(self, setup: Setup, wanted: str) -> str:
        """Returns the engine that a run was started with, or the one wanted.

        Args:
            setup: The training.
            wanted: The name of an engine.
        """
        if self._place is None or setup.protocol.noise.secure:
            return wanted
        # Seeded noise must not be drawn again over other uploads, and engines round differently.
        return str(self._place.facts()["engine"])

    def enter(
        self,
        setup: Setup,
        choice: EngineChoice,
        facts: dict[str, Any],
        shared: TrainingCache,
    ) -> tuple[State, TrainingLimits]:
        """Makes the folder, or takes up the run that is in it.

        Args:
            setup: The training.
            choice: The engine.
            facts: What run.json says at the start.
            shared: What the trainings of the call share.

        Returns:
            Where the training continues, and how far it may go.

        Raises:
            BudgetExceeded: Not one more round fits.
            UserError: The run was started with other means.
        """
        if self._place is not None:
            place = self._place
            state, limits = take_up_run(setup, place, choice, facts["device"])
        else:
            # What a budget refuses is refused before a folder is made.
            state = first_state(setup)
            limits = shared.limits(setup)
            self._closing.enter_context(hold_lock(make_folder(self._path, setup.protocol)))
            remove_leftovers(self._path)
            place = create_folder(self._path, setup, facts)
            self._place = place
        # Rounds after the checkpoint will be run again, and would be in the metrics twice.
        place.cut_metrics(state.round)
        self.store = place
        self.ledger = self._closing.enter_context(Ledger.resume(place.ledger_path))
        return state, limits

    def end(
        self,
        setup: Setup,
        state: State,
        status: str,
        model: ModelSource | None,
    ) -> Trained:
        """Writes down what became of the run.

        Args:
            setup: The training.
            state: The state after the last round.
            status: How it ended.
            model: The model, where it was passed in Python.

        Returns:
            The run, read back.
        """
        if self._place is None:
            raise RuntimeError("the training was never begun")
        return end_run(setup, self._place, state, status, model)

    def close(self) -> None:
        """Lets go of the folder."""
        self._closing.close()


StorageBackend = MemoryBackend | FolderBackend


def refuse_another(place: RunFolder, setup: Setup) -> None:
    """Refuses a folder that was made for another training.

    Args:
        place: The run folder.
        setup: The training that would take it up.

    Raises:
        UserError: It says what differs.
    """
    facts = place.facts()
    same = {
        "protocol": protocol_digest(place.protocol()) == protocol_digest(setup.protocol),
        "data": facts["data_digest"] == setup.data_digest,
        "model": facts["model_digest"] == model_digest(setup),
    }
    other = [what for what, equal in same.items() if not equal]
    if other:
        raise UserError(
            f"{place.path} holds a training with another {' and '.join(other)}. Call with what it "
            "was made with, or choose another folder."
        )


def remove_leftovers(path: Path) -> None:
    """Removes the remains of a folder whose making was cut short.

    Args:
        path: The folder; one whose ledger has a round in it is never touched.
    """
    ledger = path / "ledger.jsonl"
    if ledger.exists() and b'"event":"round"' in ledger.read_bytes():
        return
    with writing(path):
        # By name: a file that is not ours is left for `refuse_filled` to speak of.
        for name in LEFTOVERS:
            (path / name).unlink(missing_ok=True)
        # Its folder is not there, or holds what is not ours.
        with suppress(OSError):
            (path / PRIVATE).rmdir()
