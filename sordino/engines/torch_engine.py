"""The torch engine: any `nn.Module`, in worker processes of one thread each, or in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import torch

from sordino.engines.workers import Pool
from sordino.federation.assignment import Upload
from sordino.federation.client import ClientWork, Score, joined, score_chunks
from sordino.federation.personal import Kept
from sordino.federation.setup import Setup
from sordino.protocol import InvalidValue, UserError


class TorchEngine:
    """Executes the local work of rounds. It holds worker processes: use it as a context.

    The result does not depend on the number of workers, bit for bit: clients never share state, every operator runs on one thread,
    and uploads are handed over in the order of the participants. In this process `on_step` sees every noisy mean of noisy-sgd.

    Example:
        >>> with TorchEngine(setup, workers=2) as engine:  # doctest: +SKIP
        ...     uploads = list(engine.uploads(round=0, weights=weights, participants=np.arange(20)))
    """

    name = "torch"

    def __init__(
        self,
        setup: Setup,
        *,
        workers: int | None = None,
        device: str = "cpu",
        start_method: str | None = None,
        on_step: Callable[[torch.Tensor], None] = lambda noisy: None,
    ) -> None:
        self.workers = worker_count(workers, device)
        self.device = checked_device(device)
        self._chunks = score_chunks(len(setup.test.y))
        self._own = ClientWork(setup, device, on_step) if self.workers == 1 else None
        self._pool = Pool(setup, self.workers, start_method) if self.workers > 1 else None

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
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()

    def uploads(
        self,
        *,
        round: int,
        weights: np.ndarray,
        participants: np.ndarray,
        kept: Mapping[int, Kept] | None = None,
    ) -> Iterator[Upload]:
        """The uploads of a round, in the order of the participants; `kept` is what clients have kept, where they keep anything."""
        clients = [int(client) for client in participants]
        if self._pool is not None:
            tasks = [
                ("upload", client, round, None if kept is None else kept[client])
                for client in clients
            ]
            yield from self._pool.map(weights, tasks)
        elif self._own is not None:
            for client in clients:
                own: dict[str, Any] = {} if kept is None else {"kept": kept[client]}
                with single_threaded():
                    upload = self._own.upload(client=client, round=round, weights=weights, **own)
                yield upload

    @property
    def absent(self) -> Mapping[int, str]:
        """Nobody: clients that are simulated always answer."""
        return {}

    def score(self, weights: np.ndarray) -> Score:
        """Score a model on the test records."""
        if self._pool is not None:
            return joined(
                list(
                    self._pool.map(
                        weights,
                        [("score", chunk.start, chunk.stop, None) for chunk in self._chunks],
                    )
                )
            )
        if self._own is None:
            raise RuntimeError("the engine is closed")
        with single_threaded():
            return joined([self._own.score(weights=weights, rows=chunk) for chunk in self._chunks])


def worker_count(workers: int | None, device: str) -> int:
    """How many processes work: one per core on the cpu unless said otherwise, this one alone on an accelerator."""
    if workers is not None and (
        isinstance(workers, bool) or not isinstance(workers, int) or workers < 1
    ):
        raise InvalidValue("workers", workers, "a whole number of at least 1")
    if device != "cpu":
        if workers is not None and workers > 1:
            raise InvalidValue(
                "workers", workers, f"1 on the device {device!r}, which one process uses alone"
            )
        return 1
    return workers if workers is not None else len(os.sched_getaffinity(0))


def checked_device(device: str) -> str:
    """The device, if this machine has it."""
    kind = device.split(":")[0]
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if kind not in available:
        raise InvalidValue("device", device, '"cpu", "cuda" or "mps"')
    if not available[kind]:
        raise UserError(
            f"device = {device!r}: torch finds no such device on this machine. Use device = 'cpu'."
        )
    return device


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run torch operators on one thread and leave the caller's setting and global generator as they were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
