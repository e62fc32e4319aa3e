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
from sordino.federation.personal import Kept
from sordino.federation.setup import Setup, Tensors
from sordino.protocol import SordinoError

# ("upload", client, round, what the client has kept) or ("score", first row, row after the last, None)
Task = tuple[str, int, int, Kept | None]

QUEUED = 2  # tasks that a worker holds: the one it works on and the next, so that it never waits for this process
AHEAD = (
    8  # tasks per worker that may be done before an earlier one is; bounds the answers held back
)


class Pool:
    """Worker processes with one thread each. Data reach them once: by fork where the system has it, else through shared memory."""

    def __init__(self, setup: Setup, workers: int, start_method: str | None = None) -> None:
        method = start_method or (
            "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        )
        context: Any = torch.multiprocessing.get_context(method)
        if method != "fork":
            share(setup.train)
            share(setup.test)
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, setup, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def map(self, weights: np.ndarray, tasks: list[Task]) -> Iterator[Any]:
        """Do the tasks on the model `weights`; answers come in the order of the tasks."""
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
        self, todo: deque[tuple[int, Task]], load: dict[Connection, int], limit: int
    ) -> None:
        while todo and todo[0][0] < limit:
            idlest = min(load, key=lambda connection: load[connection])
            # A task that carries arrays fills the line, and so may the answer to the one before: two full lines would wait for each other.
            if load[idlest] >= (QUEUED if todo[0][1][3] is None else 1):
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
            f"a worker process (pid {process.pid}) ended unexpectedly, exit code {process.exitcode}; "
            "if that is -9 the system may have run out of memory. The run can be resumed, with fewer workers if need be."
        )

    def close(self) -> None:
        """End the processes, by their ids."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(timeout=5)


def share(data: Tensors) -> None:
    """Move tensors to memory that processes share, so that a spawned worker maps them and copies nothing."""
    for tensor in (data.x, data.y, data.scale, data.shift):
        tensor.share_memory_()


def serve(connection: Connection, setup: Setup, parent: int) -> None:
    """A worker's life: take a message, answer it, until the parent closes the line or is gone."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is the parent's affair: it stops between two rounds
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    work = ClientWork(setup)
    weights = np.empty(0, dtype=np.float32)
    while True:
        while not connection.poll(1.0):
            if (
                os.getppid() != parent
            ):  # a killed parent closes nothing in a forked child that inherited the line
                os._exit(0)
        try:
            label, content = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if label == "weights":
            weights = content
            continue
        connection.send((label, *answered(work, weights, content)))


def answered(work: ClientWork, weights: np.ndarray, task: Task) -> tuple[Any, Any]:
    """Answer and no error, or no answer and the error."""
    kind, first, second, kept = task
    try:
        if kind == "upload":
            own: dict[str, Any] = {} if kept is None else {"kept": kept}
            return work.upload(client=first, round=second, weights=weights, **own), None
        return work.score(weights=weights, rows=slice(first, second)), None
    except SordinoError as error:
        return None, error
    except Exception:
        return None, traceback.format_exc()
