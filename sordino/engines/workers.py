"""A pool of worker processes whose answers come in the order of the tasks."""

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

# ("upload", client, round, the state that the client has kept), or
# ("score", first row, row after the last, None).
WorkerTask = tuple[str, int, int, ClientState | None]

# The most tasks that a worker holds: the present one and the next, so that it never waits.
QUEUED = 2
# The most tasks per worker that are handed out ahead of the one whose answer is due next, which
# bounds the answers that are held back.
AHEAD = 8


class Pool:
    """Holds worker processes with one thread each.

    Data reach them once: by fork if the system has it, else through shared memory.
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
            workers: The number of processes.
            start_method: "fork" or "spawn"; None for fork if the system has it.
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
            # If this process kept its copy of their end, it would not notice a worker's death.
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def map(self, weights: np.ndarray, tasks: list[WorkerTask]) -> Iterator[Any]:
        """Yields the answers to tasks, in the order of the tasks.

        Args:
            weights: The model with which they begin.
            tasks: The tasks.

        Yields:
            Every answer, as soon as all before it have been yielded.

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
            # A task with arrays may fill the pipe one way, and the answer to the one before it the
            # other way: both ends would wait forever.
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
            raise self._describe_loss(connection) from None

    def _receive(self, connection: Any) -> tuple[int, Any]:
        try:
            index, answer, error = connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._describe_loss(connection) from None
        if isinstance(error, SordinoError):
            raise error
        if error is not None:
            raise RuntimeError(f"a worker process failed:\n{error}")
        return index, answer

    def _describe_loss(self, connection: Any) -> SordinoError:
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
    """Runs a worker: answers messages until the parent closes the pipe or is gone.

    Args:
        connection: The worker's end of the pipe.
        setup: The federation.
        parent: The process that started the worker.
        record_steps: Whether uploads of noisy-sgd come with the noisy mean of every step.
    """
    # The parent handles Ctrl-C, between two rounds.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # With several threads, sums would be taken in another order and change the bits of a run.
    torch.set_num_threads(1)
    work = ClientWork(setup, record_steps=record_steps)
    weights = np.empty(0, dtype=np.float32)
    while True:
        while not connection.poll(1.0):
            # Forked siblings inherit the pipe, which therefore outlives a killed parent.
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
    """Returns an answer and None, or None and an error.

    Args:
        work: The local work of clients.
        weights: The model with which the task begins.
        task: The task.
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
    # Sent as text, since not every exception of a library can be pickled.
    except Exception:
        return None, traceback.format_exc()
