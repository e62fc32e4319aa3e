"""The torch engine: any `nn.Module`, in worker processes of one thread each, or in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType

import numpy as np

from sordino.engines.workers import Pool, WorkerTask
from sordino.federation.client import ClientWork, Score, join_scores, score_chunks
from sordino.federation.processors import check_device, single_threaded, worker_count
from sordino.federation.round import RoundTask
from sordino.federation.setup import Setup
from sordino.federation.upload import Upload


class TorchEngine:
    """Executes the local work of rounds. It holds worker processes, so use it as a context.

    The result does not depend on the number of workers, bit for bit: clients never share state,
    every operator runs on one thread, and uploads are handed over in the order of the participants.

    Example:
        >>> task = RoundTask(round_index=0, broadcast=weights, participants=np.arange(20))
        ... # doctest: +SKIP
        >>> with TorchEngine(setup, workers=2) as engine:  # doctest: +SKIP
        ...     uploads = list(engine.train(task))
    """

    name = "torch"

    def __init__(
        self,
        setup: Setup,
        *,
        workers: int | None = None,
        device: str = "cpu",
        start_method: str | None = None,
        record_steps: bool = False,
    ) -> None:
        """Starts the worker processes, or none where this process works alone.

        Args:
            setup: The federation.
            workers: The number of processes; None for one per core.
            device: "cpu", "cuda" or "mps".
            start_method: "fork" or "spawn"; None for fork if the system has it.
            record_steps: Whether uploads of noisy-sgd come with the noisy mean of every step.

        Raises:
            UserError: This machine does not have the device, or the number of workers is invalid.
        """
        self.workers = worker_count(workers, device)
        self.device = check_device(device)
        self._chunks = score_chunks(len(setup.test.y))
        self._own: ClientWork | None = None
        self._pool: Pool | None = None
        # A single worker is this process: another one would only cost the sending of models.
        if self.workers == 1:
            self._own = ClientWork(setup, device, record_steps=record_steps)
        else:
            self._pool = Pool(setup, self.workers, start_method, record_steps=record_steps)

    def __enter__(self) -> TorchEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the worker processes."""
        if self._pool is not None:
            self._pool.close()

    def train(self, task: RoundTask) -> Iterator[Upload]:
        """Yields the uploads of a round, in the order of the participants.

        Args:
            task: The round.
        """
        clients = [int(client) for client in task.participants]
        if self._pool is not None:
            asked = [
                ("upload", client, task.round_index, task.kept_of(client)) for client in clients
            ]
            yield from self._pool.map(task.broadcast, asked)
        elif self._own is not None:
            for client in clients:
                with single_threaded():
                    upload = self._own.upload(
                        client=client,
                        round_index=task.round_index,
                        weights=task.broadcast,
                        kept=task.kept_of(client),
                    )
                yield upload

    @property
    def absent(self) -> Mapping[int, str]:
        """Nobody: clients that are simulated always answer."""
        return {}

    def score(self, weights: np.ndarray) -> Score:
        """Scores a model on the test records.

        Args:
            weights: The model.

        Returns:
            The sums over all test records.

        Raises:
            RuntimeError: The engine is closed.
        """
        if self._pool is not None:
            asked: list[WorkerTask] = [
                ("score", chunk.start, chunk.stop, None) for chunk in self._chunks
            ]
            return join_scores(list(self._pool.map(weights, asked)))
        if self._own is None:
            raise RuntimeError("the engine is closed")
        with single_threaded():
            parts = [self._own.score(weights=weights, rows=chunk) for chunk in self._chunks]
        return join_scores(parts)
