"""Storage for one of many trainings: a run folder, as `train` writes it, or memory alone."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.engines.choice import EngineChoice
from sordino.engines.run_folders import (
    create_folder,
    digest_model,
    end_run,
    make_folder,
    make_opening_line,
    may_be_released,
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

# The files of a run folder whose creation was cut short. It is complete once it has protocol.toml,
# and nothing is released before.
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
    """Keeps the metrics and charges of a training in memory; nothing is written."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.ledger = MemoryLedger()
        self._facts: dict[str, Any] = {}

    def complete_plan(self, plan: Protocol) -> Protocol:
        """Returns the protocol unchanged.

        Args:
            plan: The protocol.
        """
        return plan

    def find_ended(self, setup: Setup, model: ModelSource | None) -> Run | None:
        """Returns None, since a training in memory does not outlive its call.

        Args:
            setup: The training.
            model: The model, if it was passed in Python.
        """

    def choose_engine(self, setup: Setup, wanted: str) -> str:
        """Returns the wanted engine.

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
        """Returns the state in which the training begins, and how far it may go.

        Args:
            setup: The training.
            choice: The engine.
            facts: The contents that run.json would have at the start.
            shared: Data sets, prices and kernels that the trainings of the call share.
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
        """Returns the ended training.

        Args:
            setup: The training.
            state: The state after the last round.
            status: How the training ended.
            model: The model, if it was passed in Python.
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
        """Does nothing: memory needs no closing."""


class FolderBackend:
    """Keeps a training in a run folder, a new one or that of an unfinished run.

    It holds the folder's lock and ledger from `enter` on, or from the start if the folder has a
    run, until it is closed.
    """

    store: TrainingStore
    ledger: ChargeLog

    def __init__(self, path: Path) -> None:
        """Locks the folder if it has a run.

        Args:
            path: The path of the folder, which need not exist.

        Raises:
            UserError: Another process holds the run.
        """
        self._path = path
        self._closing = ExitStack()
        self._place: RunFolder | None = None
        # Locked before anything is read, so that no other process changes the run in between.
        if (path / "protocol.toml").is_file():
            self._closing.enter_context(hold_lock(path))
            self._place = RunFolder.existing(path)

    def complete_plan(self, plan: Protocol) -> Protocol:
        """Returns the protocol, with the seed that was drawn for the run in the folder.

        Args:
            plan: The protocol.
        """
        if self._place is None or plan.seed is not None:
            return plan
        # With a new seed it would be another training, which the folder would refuse.
        return replace(plan, seed=self._place.protocol().seed)

    def find_ended(self, setup: Setup, model: ModelSource | None) -> Run | None:
        """Returns the run of the folder, if it has ended.

        Args:
            setup: The training.
            model: The model, if it was passed in Python.

        Raises:
            UserError: The folder holds another training.
        """
        if self._place is None:
            return None
        refuse_another(self._place, setup)
        if self._place.facts()["status"] == "unfinished":
            return None
        return Run.load(self._path, model=model)

    def choose_engine(self, setup: Setup, wanted: str) -> str:
        """Returns the engine that the run was started with, or the wanted one for a new run.

        Args:
            setup: The training.
            wanted: The name of an engine.
        """
        if self._place is None or setup.protocol.noise.secure:
            return wanted
        # Engines round differently, and the same seeded noise must not be added to other uploads.
        return str(self._place.facts()["engine"])

    def enter(
        self,
        setup: Setup,
        choice: EngineChoice,
        facts: dict[str, Any],
        shared: TrainingCache,
    ) -> tuple[State, TrainingLimits]:
        """Makes the folder, or resumes the run that is in it.

        Args:
            setup: The training.
            choice: The engine.
            facts: The contents of run.json at the start.
            shared: Data sets, prices and kernels that the trainings of the call share.

        Returns:
            The state from which the training continues, and how far it may go.

        Raises:
            BudgetExceeded: The budget does not afford one round.
            UserError: Something has changed since the start of the run.
        """
        if self._place is not None:
            place = self._place
            state, limits = take_up_run(setup, place, choice, facts["device"])
        else:
            # A budget that affords nothing is refused before a folder is made.
            state = first_state(setup)
            limits = shared.limits(setup)
            self._closing.enter_context(hold_lock(make_folder(self._path, setup.protocol)))
            remove_leftovers(self._path)
            place = create_folder(self._path, setup, facts)
            self._place = place
        # Rounds after the checkpoint are played again, and would be in the metrics twice.
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
        """Writes the end of the run.

        Args:
            setup: The training.
            state: The state after the last round.
            status: How the training ended.
            model: The model, if it was passed in Python.

        Returns:
            The run, read back.
        """
        if self._place is None:
            raise RuntimeError("the training was never begun")
        return end_run(setup, self._place, state, status, model)

    def close(self) -> None:
        """Closes the ledger and unlocks the folder."""
        self._closing.close()


StorageBackend = MemoryBackend | FolderBackend


def refuse_another(place: RunFolder, setup: Setup) -> None:
    """Refuses a folder that was made for another training.

    Args:
        place: The run folder.
        setup: The training that would be resumed.

    Raises:
        UserError: Protocol, data or model differ; the message says which.
    """
    facts = place.facts()
    same = {
        "protocol": protocol_digest(place.protocol()) == protocol_digest(setup.protocol),
        "data": facts["data_digest"] == setup.data_digest,
        "model": facts["model_digest"] == digest_model(setup),
    }
    other = [what for what, equal in same.items() if not equal]
    if other:
        raise UserError(
            f"{place.path} holds a training with another {' and '.join(other)}. Call again with "
            "the same arguments, or choose another folder."
        )


def remove_leftovers(path: Path) -> None:
    """Removes the files of a run folder whose creation was cut short.

    Args:
        path: The path of the folder, which is left alone if its ledger has a round.
    """
    ledger = path / "ledger.jsonl"
    if ledger.exists() and b'"event":"round"' in ledger.read_bytes():
        return
    with writing(path):
        # By name: any other file is left, and `refuse_filled` complains about it.
        for name in LEFTOVERS:
            (path / name).unlink(missing_ok=True)
        # The folder may be missing, or hold other files.
        with suppress(OSError):
            (path / PRIVATE).rmdir()
