"""A pool of worker processes that answer in the order they were asked, whichever finishes first."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from sordino.federation.client import ClientWork
from sordino.federation.record_tensors import Tensors
from sordino.federation.rules.local_training import ClientState
from sordino.federation.setup import Setup
from sordino.protocol import SordinoError

# ("upload", client, round, what the client has kept), or
# ("score", first row, row after the last, None).
WorkerTask = tuple[str, int, int, ClientState | None]

# Tasks that a worker holds: the one it works on and the next, so that it never waits for us.
QUEUED = 2
# Tasks per worker that may be done before an earlier one is; this bounds the answers held back.
AHEAD = 8


class Pool:
    """Holds worker processes with one thread each.

    Data reach them once: by fork where the system has it, else through shared memory.
    """

    def __init__(
        self,
        setup: Setup,
        workers: int,
        start_method: str | None = None,
        *,
        record_steps: bool = False,
    ) -> None:
        """Starts the processes.

        Args:
            setup: The federation.
            workers: How many processes.
            start_method: How they are started; None for fork where the system has it.
            record_steps: Whether uploads of noisy-sgd come with the noisy mean of every step.
        """
        method = start_method
        if method is None and "fork" in multiprocessing.get_all_start_methods():
            method = "fork"
        elif method is None:
            method = "spawn"
        context: Any = torch.multiprocessing.get_context(method)
        if method != "fork":
            share_memory(setup.train)
            share_memory(setup.test)
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve_tasks, args=(theirs, setup, os.getpid(), record_steps), daemon=True
            )
            process.start()
            # With our copy of their end open, we would never notice that a worker is gone.
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def map(self, weights: np.ndarray, tasks: list[WorkerTask]) -> Iterator[Any]:
        """Yields the answers to tasks, in the order of the tasks.

        Args:
            weights: The model that they work on.
            tasks: The work to be done.

        Yields:
            An answer, as soon as it and all before it are there.

        Raises:
            SordinoError: A task failed, or a worker process ended.
        """
        for connection in self._connections:
            self._send(connection, ("weights", weights))
        todo = deque(enumerate(tasks))
        load: dict[Any, int] = dict.fromkeys(self._connections, 0)
        done: dict[int, Any] = {}
        for due in range(len(tasks)):
            while due not in done:
                self._hand_out(todo, load, limit=due + AHEAD * len(load))
                for ready in wait(list(load)):
                    index, answer = self._receive(ready)
                    load[ready] -= 1
                    done[index] = answer
            yield done.pop(due)

    def _hand_out(
        self, todo: deque[tuple[int, WorkerTask]], load: dict[Connection, int], limit: int
    ) -> None:
        while todo and todo[0][0] < limit:
            idlest = min(load, key=lambda connection: load[connection])
            # A task that carries arrays fills the line, and so may the answer to the one before:
            # two full lines would wait for each other.
            carries_arrays = todo[0][1][3] is not None
            most = 1 if carries_arrays else QUEUED
            if load[idlest] >= most:
                return
            self._send(idlest, todo.popleft())
            load[idlest] += 1

    def _send(self, connection: Connection, message: Any) -> None:
        try:
            connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost(connection) from None

    def _receive(self, connection: Any) -> tuple[int, Any]:
        try:
            index, answer, error = connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._lost(connection) from None
        if isinstance(error, SordinoError):
            raise error
        if error is not None:
            raise RuntimeError(f"a worker process failed:\n{error}")
        return index, answer

    def _lost(self, connection: Any) -> SordinoError:
        process = self._processes[self._connections.index(connection)]
        process.join(timeout=2)
        return SordinoError(
            f"a worker process (pid {process.pid}) ended unexpectedly, exit code "
            f"{process.exitcode}; if that is -9 the system may have run out of memory. The run can "
            "be resumed, with fewer workers if need be."
        )

    def close(self) -> None:
        """Ends the processes, by their ids."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(timeout=5)


def share_memory(data: Tensors) -> None:
    """Moves tensors to memory that processes share, so that a spawned worker copies nothing.

    Args:
        data: The records.
    """
    for tensor in (data.x, data.y, data.scale, data.shift):
        tensor.share_memory_()


def serve_tasks(
    connection: Connection,
    setup: Setup,
    parent: int,
    record_steps: bool = False,
) -> None:
    """Answers messages until the parent closes the line or is gone: the life of a worker.

    Args:
        connection: The worker's end of the line.
        setup: The federation.
        parent: The process that started the worker.
        record_steps: Whether uploads of noisy-sgd come with the noisy mean of every step.
    """
    # Ctrl-C is the parent's affair: it stops between two rounds.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # One thread: the order in which several would add up numbers would change the bits of a run.
    torch.set_num_threads(1)
    work = ClientWork(setup, record_steps=record_steps)
    weights = np.empty(0, dtype=np.float32)
    while True:
        while not connection.poll(1.0):
            # A killed parent closes nothing in a forked child that inherited the line.
            if os.getppid() != parent:
                os._exit(0)
        try:
            label, content = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if label == "weights":
            weights = content
            continue
        connection.send((label, *run_worker_task(work, weights, content)))


def run_worker_task(work: ClientWork, weights: np.ndarray, task: WorkerTask) -> tuple[Any, Any]:
    """Returns an answer and no error, or no answer and the error.

    Args:
        work: The work of clients.
        weights: The model.
        task: The work to be done.
    """
    kind, first, second, kept = task
    try:
        if kind == "upload":
            return work.upload(
                client=first,
                round_index=second,
                weights=weights,
                kept=kept,
            ), None
        return work.score(weights=weights, rows=slice(first, second)), None
    except SordinoError as error:
        return None, error
    # Sent as text: an exception of a library need not survive a pickle.
    except Exception:
        return None, traceback.format_exc()
