"""A finished run with its data, from which come what attackers are given and the truth."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np

from sordino.attacks.gradient_rules import gradient_steps_of
from sordino.attacks.reading import ModelReader
from sordino.data import Dataset, load_data
from sordino.federation.complete_protocol import DataSource, ModelSource
from sordino.federation.integer_uploads import open_residues
from sordino.federation.setup import prepare
from sordino.federation.store.run import Run
from sordino.federation.store.upload_archive import ArchivedRound, kept_rounds, read_round
from sordino.mechanisms import mechanism_of
from sordino.models.flat import FlatModel
from sordino.protocol import Data, FedAvg, NoisySgd, UserError
from sordino.protocol.errors import format_command


class AttackedRun:
    """Holds a finished run, its data and its split into clients, and changes nothing of it.

    Attributes:
        run: The finished run that is attacked.
        protocol: The protocol of the run.
        dataset: The data that the run was trained on.
    """

    def __init__(
        self, run: Run, *, data: DataSource | None = None, model: ModelSource | None = None
    ) -> None:
        """Loads the data of a run, and checks that they are those it was trained on.

        Args:
            run: A finished run.
            data: The data of the run, where they were passed in Python.
            model: The model of the run, where it was passed in Python.

        Raises:
            UserError: The run is not finished, its clients' records are elsewhere, or its data or
                its model are not those it was trained with.
        """
        # An unfinished run may still change under the attack.
        if run.status == "unfinished":
            raise UserError(
                f"{run.folder} is not finished: continue it with "
                f"`{format_command('resume', run.folder)}`, then attack it."
            )
        if run.facts["engine"] == "flower":
            raise UserError(
                f"{run.folder} was trained across machines: its clients' records are with them, "
                "and nothing here can say what an attack got right. Train the same protocol on one "
                "machine, on records like theirs, and attack that run."
            )
        self.run = run
        self.protocol = run.protocol
        self.dataset = self._load_data(data)
        if model is None:
            model = run.source
        # The same preparation as in training: it repeats the split of the records and the initial
        # model.
        self._setup = prepare(run.protocol, data=self.dataset, model=model)
        if self._setup.data_digest != run.facts["data_digest"]:
            raise UserError(
                f"the data of {run.folder} are not those it was trained on. "
                "Put them back, or train again."
            )

    @property
    def noise(self) -> float:
        """The size of the noise, which is its parameter in the protocol."""
        return mechanism_of(self.protocol.noise).size

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes.

        Raises:
            UserError: The data have quantities to predict, and no classes.
        """
        if self.dataset.classes is None:
            raise UserError(
                f"{self.dataset.name} has no classes, which this attack is about. "
                "Attack a run on data with classes."
            )
        return self.dataset.classes

    @cached_property
    def kept(self) -> list[int]:
        """The rounds whose uploads are kept.

        Raises:
            UserError: The run kept no uploads.
        """
        rounds = kept_rounds(self.run.folder)
        if not rounds:
            raise UserError(
                f"{self.run.folder} has no uploads, and this attack needs what the server "
                "received. Train again with `sordino train --keep-uploads`."
            )
        return rounds

    def client_rows(self, count: int) -> np.ndarray:
        """Returns rows of the clients' records, evenly spread over the clients.

        Args:
            count: How many at most.
        """
        return spread_rows(np.concatenate(self._setup.parts), count)

    def unassigned_rows(self, count: int) -> np.ndarray:
        """Returns rows of the training records that were assigned to no client.

        Args:
            count: How many at most.
        """
        rows = np.arange(len(self._setup.train.y))
        return spread_rows(np.setdiff1d(rows, np.concatenate(self._setup.parts)), count)

    def open_model(self, weights: np.ndarray) -> ModelReader:
        """Returns a reader of the run's model at given weights.

        Args:
            weights: The parameters.
        """
        return ModelReader(self._setup.module, weights, self._setup.train.inputs(slice(0, 1)))

    def initial_model(self) -> np.ndarray:
        """Returns the model before the first round, which has seen no records."""
        return self._setup.initial_weights()

    def last_model(self) -> np.ndarray:
        """Returns the model after the last round.

        Raises:
            UserError: The run released no model.
        """
        if self.run.state is None:
            raise UserError(
                f"{self.run.folder} has no model: its budget did not allow one to be released."
            )
        return FlatModel(self._setup.module).from_state(self.run.state).numpy().copy()

    def read_round(self, round_index: int) -> ArchivedRound:
        """Returns what the server received in a kept round.

        Args:
            round_index: Number of the round, from 0.
        """
        kept = read_round(self.run.folder, round_index)
        if kept.total is None or kept.clients is None:
            return kept
        # Of a secure sum the server knows the mean of the uploads, and nothing else.
        weights = self._setup.sum_weights[kept.clients]
        moved = open_residues(kept.total, self._setup.grid) / weights.sum()
        return replace(kept, uploads=(kept.model + moved)[None])

    def gradient_rule(self) -> FedAvg | NoisySgd:
        """Returns the local rule, where an upload is the global model moved along gradients.

        Raises:
            UserError: Uploads are made of anything else, or the batches cannot be drawn again.
        """
        # Without the batches there is no truth to hold a guess against.
        if self.protocol.noise.secure:
            raise UserError(
                f"{self.run.folder} drew its batches from the operating system, so it is not known "
                "which records were in an upload. Attack a run with noise.secure = false."
            )
        if gradient_steps_of(self.protocol) is None:
            raise UserError(
                f"local.rule = {self.protocol.local.tag!r}: this attack reads gradients out of "
                "uploads that begin at the global model, which fedavg, fedprox and noisy-sgd (sgd, "
                "fixed batches) without personalization or penalty send. Attack such a run."
            )
        # No other rule has steps along gradients.
        return cast("FedAvg | NoisySgd", self.protocol.local)

    def _load_data(self, data: DataSource | None) -> Dataset:
        """Returns the data of the run."""
        if isinstance(data, Dataset):
            return data
        spec = self.protocol.data
        if data is None and (spec is None or spec.name.startswith("python:")):
            raise UserError(
                f"the data of {self.run.folder} were handed over in Python: "
                "hand them over again, as data=..."
            )
        if spec is None:
            spec = Data(name=str(data))
        return load_data(spec, data)


def spread_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Returns some of the rows at even distances, the first and the last among them.

    Args:
        rows: The rows to choose from.
        count: How many at most.

    Example:
        >>> spread_rows(np.arange(9), 3).tolist(), spread_rows(np.arange(2), 3).tolist()
        ([0, 4, 8], [0, 1])
    """
    places = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)
    return np.asarray(rows[places])


def spread_rounds(rounds: list[int], count: int) -> list[int]:
    """Returns some of the rounds, from first to last at even distances; one alone is the last.

    Args:
        rounds: The rounds to choose from, in ascending order.
        count: How many at most.

    Example:
        >>> spread_rounds([0, 1, 2, 3, 4], 3), spread_rounds([0, 1, 2], 1), spread_rounds([5], 3)
        ([0, 2, 4], [2], [5])
    """
    if count == 1:
        return rounds[-1:]
    return [rounds[place] for place in spread_rows(np.arange(len(rounds)), count)]
