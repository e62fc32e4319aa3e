"""A training as a value in Python: its model, its metrics, its ledger and its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from torch import nn

from sordino.data import IN_PYTHON, division_notes
from sordino.federation.complete_protocol import ModelSource, protocol_model
from sordino.federation.round_metrics import OWN_SCORES, RoundMetrics
from sordino.federation.store.run_folder import RunFolder
from sordino.federation.store.seals import is_sealed, refuse_changed_files
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.ledger import read_ledger, refuse_unpaid
from sordino.privacy.ledger_lines import Event, RoundCharged
from sordino.privacy.spending import certify_run
from sordino.protocol import Protocol, UserError, View
from sordino.protocol.errors import format_command


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A training and what became of it, on disk or not.

    Attributes:
        protocol: What was run, resolved and complete.
        status: "finished", "diverged", "budget", or "unfinished".
        metrics: One array per metric, one entry per round; NaN where a round was not scored.
        ledger: Every charge, in order.
        facts: Engine and why, versions, kind of noise and the like.
        state: The tensors of the last model; None where it may not be released.
        source: The model, if it was passed in Python.
        clients: What clients have kept for themselves, where they keep models.

    Example:
        >>> trained = train_many([protocol], data="digits", model="mlp")[0]  # doctest: +SKIP
        >>> trained.engine, trained.status  # doctest: +SKIP
        ('native', 'finished')
    """

    protocol: Protocol
    status: str
    metrics: dict[str, np.ndarray]
    ledger: tuple[Event, ...]
    facts: dict[str, Any]
    state: dict[str, torch.Tensor] | None
    source: ModelSource | None = None
    clients: Mapping[int, dict[str, torch.Tensor]] = field(default_factory=dict, repr=False)

    @property
    def rounds_paid(self) -> list[int]:
        """The rounds in the order in which they were paid for, repetitions included."""
        return [event.round for event in self.ledger if isinstance(event, RoundCharged)]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of records of every client."""
        return tuple(self.facts["sizes"])

    @property
    def engine(self) -> str:
        """The engine that did the local work; `facts["engine_reason"]` says why."""
        return str(self.facts["engine"])

    @property
    def model(self) -> nn.Module:
        """The trained model, a fresh module on every access.

        Raises:
            UserError: There is none, or it was passed in Python and is not known here.
        """
        if self.state is None:
            raise self._without_model()
        return self._module(self.state)

    @property
    def personal(self) -> tuple[int, ...]:
        """The clients that have a personal model, in order: those that took part.

        Where clients keep no models there are none.
        """
        return tuple(sorted(self.clients))

    def client_model(self, client: int) -> nn.Module:
        """Returns the personal model of a client, a fresh module on every call.

        Args:
            client: Number of the client, from 0.

        Returns:
            The model, ready to predict.

        Raises:
            UserError: The client keeps none, or has not taken part.
        """
        state = self._client_state(client)
        if state is None:
            raise UserError(
                f"client {client} of {self._name} has no personal model: it took no "
                "part, or keeps none."
            )
        return self._module(state)

    def guarantee(
        self, view: View | str = View.SERVER, unit: str = "record", *, delta: float = 1e-5
    ) -> Guarantee:
        """Returns the guarantee of the run, by the rounds that the ledger says were paid for.

        Args:
            view: The adversary's view.
            unit: "record" or "client".
            delta: The delta at which the price is optimized.

        Returns:
            The guarantee, with all notes that belong to it.

        Raises:
            UserError: The view is "final" and the training diverged: when it stopped depends on the
                data, so its last model is one of all.

        Example:
            >>> trained.guarantee("final").epsilon(1e-5)  # doctest: +SKIP
            0.71
        """
        if self.status == "diverged" and View.parse(view) == View.FINAL:
            raise UserError(
                f"{self._name} diverged, and when it stopped depends on the data: ask for the view "
                "'rounds', not 'final'."
            )
        return self.noted(
            certify_run(self.protocol, self.ledger, view, unit, delta=delta, sizes=self.sizes)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What must accompany every guarantee about it, in addition to the protocol's notes."""
        return division_notes(self.protocol, self.facts)

    def noted(self, guarantee: Guarantee) -> Guarantee:
        """Returns a guarantee about this training with what must be said with it.

        Args:
            guarantee: The guarantee.

        Returns:
            The same guarantee with more notes.
        """
        return replace(guarantee, notes=(*guarantee.notes, *self.notes))

    def _client_state(self, client: int) -> dict[str, torch.Tensor] | None:
        return self.clients.get(client)

    @property
    def _name(self) -> str:
        return "this training"

    def _without_model(self) -> UserError:
        return UserError(
            "this training has no model: fewer rounds than planned can cost more than its budget "
            "allows."
        )

    def _module(self, state: dict[str, torch.Tensor]) -> nn.Module:
        source: ModelSource = ""
        if self.source is not None:
            source = self.source
        elif self.protocol.model is not None:
            source = self.protocol.model.name
        if isinstance(source, str) and source.startswith(IN_PYTHON):
            raise UserError(
                f"the model of {self._name} was handed over in Python: use "
                f"Run.load({self._name!r}, model=...)."
            )
        shape = tuple(self.facts["input_shape"])
        outputs = self.facts["outputs"]
        # Neither the seed nor the names of the classes matter: all weights are replaced below.
        module = protocol_model(
            self.protocol, source, shape, outputs, classes=("no", "yes"), seed=0
        )
        try:
            module.load_state_dict(state)
        except RuntimeError:
            # The message of torch lists every tensor, which helps nobody.
            raise UserError(
                f"{self._name} holds tensors of another model than its protocol's. Put back its "
                "own model.safetensors."
            ) from None
        return module.eval()


@dataclass(frozen=True, kw_only=True, eq=False)
class Run(Trained):
    """A training that is kept in a folder.

    Attributes:
        folder: Where it is on disk.

    Example:
        >>> run = Run.load("runs/digits-1")  # doctest: +SKIP
        >>> run.metrics["accuracy"][-1]  # doctest: +SKIP
        np.float64(0.93)
    """

    folder: Path

    @classmethod
    def load(cls, folder: str | Path, *, model: ModelSource | None = None) -> Run:
        """Reads a run back; reading changes nothing.

        Args:
            folder: The folder of the run.
            model: The model, where it was passed in Python and not by name.

        Returns:
            The run.

        Raises:
            Changed: Its files are not those that its ledger has sealed.
            UserError: There is no run, or its files are damaged.
        """
        place = RunFolder.existing(Path(folder))
        facts = place.facts()
        protocol = place.protocol()
        sizes = facts["sizes"]
        whole = isinstance(sizes, list) and all(
            isinstance(size, int) and size > 0 for size in sizes
        )
        if not whole or len(sizes) != protocol.clients:
            raise UserError(
                f"{place.path / 'run.json'} is damaged: its sizes are not the numbers of records "
                f"of {protocol.clients} clients."
            )
        rows = place.metrics()
        events = read_ledger(place.ledger_path).events
        # Every row of metrics shows a released round, so the ledger must have paid for it. Seals
        # come after that: where a ledger was cut, its missing charges are the graver finding.
        refuse_unpaid(place.ledger_path, events, len(rows))
        refuse_changed_files(place)
        return cls(
            folder=place.path,
            protocol=protocol,
            status=facts["status"],
            metrics=as_arrays(rows, place.path),
            ledger=events,
            facts=facts,
            state=read_state(place.path / "model.safetensors"),
            source=model,
        )

    @property
    def personal(self) -> tuple[int, ...]:
        """The clients that have a personal model, in order: those that took part.

        Where clients keep no models there are none.
        """
        return tuple(
            sorted(int(path.stem) for path in (self.folder / "clients").glob("*.safetensors"))
        )

    def _client_state(self, client: int) -> dict[str, torch.Tensor] | None:
        return read_state(self.folder / "clients" / f"{client}.safetensors")

    @property
    def sealed(self) -> bool:
        """Whether the ledger seals what the run is priced by; those of early versions do not."""
        return is_sealed(RunFolder(self.folder))

    @property
    def _name(self) -> str:
        return str(self.folder)

    def _without_model(self) -> UserError:
        return UserError(
            f"{self.folder} has no model yet: it is {self.status}. Finish it with "
            f"`{format_command('resume', self.folder)}`."
        )


def as_arrays(rows: list[dict[str, Any]], folder: Path) -> dict[str, np.ndarray]:
    """Returns rows of metrics as one array per metric; None becomes NaN.

    Args:
        rows: One entry per round.
        folder: Where they come from, for messages.

    Returns:
        The arrays by name.

    Raises:
        UserError: A row lacks a metric, or has one that is not a number.
    """
    names = [f.name for f in fields(RoundMetrics)]
    # Not every run has all metrics; those that it lacks are not known.
    lacking = dict.fromkeys(OWN_SCORES)
    rows = [{**lacking, **row} for row in rows]
    try:
        found = {
            name: np.array([np.nan if row[name] is None else row[name] for row in rows])
            for name in names
        }
    except (KeyError, ValueError):
        found = {}
    # What numpy makes of a column says whether all of its entries are of the right kind.
    kinds = {name: {"status": "U", "round": "iu"}.get(name, "iuf") for name in names}
    if not found or any(
        array.ndim != 1 or (len(rows) > 0 and array.dtype.kind not in kinds[name])
        for name, array in found.items()
    ):
        raise UserError(
            f"{folder / 'metrics.jsonl'} is damaged: a line lacks a metric, or has one that is "
            "not a number."
        )
    return found


def read_state(path: Path) -> dict[str, torch.Tensor] | None:
    """Returns the tensors of a finished model, or None where there is none.

    Args:
        path: Its file.

    Raises:
        UserError: The file is damaged.
    """
    if not path.exists():
        return None
    try:
        return dict(sorted(load_tensors(path.read_bytes()).items()))
    # The library raises errors of several kinds for a damaged file, and no list of them is
    # promised.
    except Exception as error:
        raise UserError(f"{path} is damaged: {error}") from None
