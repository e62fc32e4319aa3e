"""The table engine: the local work of many trainings of one small federation, side by side.

It is made for audits. Row n is training n: it draws what `train` would draw for that training
alone, and ends with the same model up to the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sordino.engines.row_clients import RowClients
from sordino.federation.round import RoundTask
from sordino.federation.rules.local_training import Assignment, LocalResult
from sordino.federation.setup import Setup
from sordino.federation.upload import Upload, finish_upload
from sordino.protocol import UserError
from sordino.randomness import LANES


class TableEngine:
    """Executes the local work of all rows of a table.

    It holds models that every call overwrites.

    Example:
        >>> engine = TableEngine(setup, range(100))  # doctest: +SKIP
        >>> for record in play_training(setup, engine, 3, trainings=range(100)):  # doctest: +SKIP
        ...     print(record.after.weights.shape)
        (100, 2)
    """

    name = "table"

    def __init__(self, setup: Setup, trainings: range) -> None:
        """Makes the models of the rows.

        Args:
            setup: The federation, with a model that can be trained many times at once.
                `setup.training` is not used.
            trainings: The numbers of the trainings, all in one group of `LANES`.

        Raises:
            UserError: The trainings do not share a keystream, or the model has no rows.
        """
        if trainings.start // LANES != (trainings.stop - 1) // LANES:
            raise UserError(
                f"trainings {trainings.start} to {trainings.stop - 1} do not share a keystream: "
                f"take at most {LANES}, between two multiples of it."
            )
        self._setup = setup
        self._first = trainings.start
        self._clients = RowClients(setup)

    @property
    def absent(self) -> Mapping[int, str]:
        """Nobody: clients that are simulated always answer."""
        return {}

    def train(self, task: RoundTask) -> Iterator[Upload]:
        """Yields every client's table of uploads; clients that compute the same are trained once.

        Args:
            task: The round, with one training a row.
        """
        done: dict[int, tuple[Assignment, LocalResult]] = {}
        for client in task.participants.tolist():
            like = int(self._clients.like[client])
            if like not in done:
                done[like] = self._clients.train(
                    client=like,
                    round_index=task.round_index,
                    weights=task.broadcast,
                    first=self._first,
                    kept=task.kept_of(like),
                )
            assignment, result = done[like]
            upload = finish_upload(
                self._setup, assignment, result, training=self._first, client=client
            )
            yield replace(upload, rows=task.rows_of(client))
