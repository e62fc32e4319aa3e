"""Answers the tasks of a client's SuperNode in processes forked from a warm one.

Flower's own SuperExec starts a program by its name for every message, and loads everything again.
Here a process that has loaded what the work needs waits for tasks, and forks for each. It begins
with the first task and ends when none has come for a while, so that an idle node is small.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.flower.app_pinning import AppPin
from sordino.flower.client_store import ClientStore

if TYPE_CHECKING:
    from flwr.app import Context, Message

# Flower prints only its own logger's records.
LOG = logging.getLogger("flwr")
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
# Seconds without a task after which the warm process ends.
IDLE = 600.0
# How often a task is begun whose process was killed.
TRIES = 2
# Seconds that the SuperNode on this machine has to answer.
TIMEOUT = 20.0
# Bytes that are read from the pipe of tasks at once.
PIPE_BYTES = 65_536
# Exit code of a process that answered a task with an error.
ANSWERED_WITH_ERROR = 3
# An option of Linux' prctl: end with the parent.
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class TaskSource:
    """Describes where tasks come from and which client answers them.

    Attributes:
        folder: The client's folder.
        address: Host and port of the SuperNode on this machine.
        secret: Known to the SuperNode and its supervisor only; tasks are given for it.
        own: Digest of the app that belongs to this installation of Sordino.
    """

    folder: Path
    address: str
    secret: bytes
    own: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """Describes a task that was acquired.

    Attributes:
        kind: What Flower would start for it.
        token: Flower's token, which is needed to fetch and to answer it.
    """

    kind: str
    token: str


def fork_process(work: Callable[[], int]) -> int:
    """Runs work in a new process, which ends when this one does.

    Args:
        work: Returns the exit code of the process.

    Returns:
        The id of the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        end_with_parent()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def end_with_parent() -> None:
    """Asks the system to kill this process when its parent ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def open_runtime_client(source: TaskSource, token: str | None = None) -> Any:
    """Returns Flower's client of the SuperNode on this machine.

    Args:
        source: Where the SuperNode is.
        token: Token of a task; without it, tasks are acquired with the node's secret.
    """
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    interceptor: Any
    if token is None:
        interceptor = SuperExecAuthHttpInterceptor(
            master_secret=source.secret, protected_methods=frozenset({ACQUIRE})
        )
    else:
        interceptor = RuntimeTokenHttpInterceptor(token)
    return RuntimeHttpClient(
        f"http://{source.address}",
        interceptors=[RuntimeVersionHttpInterceptor(component_name="sordino"), interceptor],
        timeout=TIMEOUT,
    )


def acquire_task(source: TaskSource) -> Task | None:
    """Returns the next task of the SuperNode.

    Args:
        source: Where tasks come from.

    Returns:
        A task of any kind, so that none is left waiting; None if there is none.
    """
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    client = open_runtime_client(source)
    try:
        kinds = [kind.value for kind in TaskType]
        answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=kinds))
    finally:
        client.close()
    if not answer.HasField("task") or not answer.token:
        return None
    return Task(kind=answer.task.type, token=answer.token)


class WarmWorker:
    """Hands tasks to a process that has loaded everything, and starts it when there is none."""

    def __init__(self, source: TaskSource) -> None:
        """Creates it; the process is started with the first task.

        Args:
            source: Where tasks come from.
        """
        self._source = source
        self._process = 0
        self._pipe = -1
        self._code = 0

    @property
    def process(self) -> int:
        """The id of the warm process; 0 if there is none."""
        if self._process:
            ended, status = os.waitpid(self._process, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
                self._forget()
        return self._process

    def take_failure(self) -> int:
        """Returns the exit code of a warm process that failed, once; 0 if none did."""
        if self.process:
            return 0
        code = self._code
        self._code = 0
        return code

    def hand_over(self, task: Task) -> None:
        """Gives a task to the warm process.

        Args:
            task: The task.
        """
        line = f"{task.kind} {task.token}\n".encode()
        if not self.process:
            self._start()
        try:
            os.write(self._pipe, line)
        except BrokenPipeError:
            # It ended in this moment, since it had nothing to do.
            self._forget()
            self._start()
            os.write(self._pipe, line)

    def stop(self) -> None:
        """Ends the warm process at once: what it works on is on disk, or was never sent."""
        if not self.process:
            return
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        self._forget()

    def _start(self) -> None:
        reading, pipe = os.pipe()
        self._pipe = pipe

        def work() -> int:
            os.close(pipe)
            return answer_tasks(self._source, reading)

        self._process = fork_process(work)
        os.close(reading)

    def _forget(self) -> None:
        os.close(self._pipe)
        self._process = 0
        self._pipe = -1


def answer_tasks(source: TaskSource, tasks: int) -> int:
    """Answers the tasks that come through a pipe, until none has come for a while.

    Args:
        source: Where tasks come from.
        tasks: The reading end of the pipe.

    Returns:
        An exit code.
    """
    # These bring Flower's client and torch, once for all rounds.
    import sordino.flower.client_app
    import sordino.flower.local_work  # noqa: F401
    from sordino.mechanisms.discrete_gaussian import make_digit_table

    # Forked processes have it, where noise is of integers, and need not compute it each.
    make_digit_table()
    unread = b""
    while select.select([tasks], [], [], IDLE)[0]:
        new = os.read(tasks, PIPE_BYTES)
        if not new:
            break
        *lines, unread = (unread + new).split(b"\n")
        for line in lines:
            kind, token = line.decode().split(" ")
            answer_task(source, Task(kind=kind, token=token))
    return 0


def answer_task(source: TaskSource, task: Task) -> None:
    """Answers one task in a new process, and once more if that process is killed.

    Args:
        source: Where tasks come from.
        task: The task.
    """
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supernode.runtime.run_clientapp import pull_task_input

    client = open_runtime_client(source, task.token)
    try:
        message, context, _, bundle = pull_task_input(client)
    except Exception as error:
        LOG.error("A task could not be fetched: %s", error)
        return
    finally:
        client.close()
    for _ in range(TRIES):
        worker = fork_process(
            lambda: answer_message(source, task, message, context, bundle.content)
        )
        status = os.waitpid(worker, 0)[1]
        if os.WIFEXITED(status):
            return
        LOG.error("The process of a task ended by signal %s.", os.WTERMSIG(status))
    words = "its process was killed"
    failed = Message(Error(ErrorCode.CLIENT_APP_CRASHED, words), reply_to=message)
    send_reply(source, task, failed, context, SubStatus.FAILED)


def answer_message(
    source: TaskSource, task: Task, message: Message, context: Context, bundle: bytes
) -> int:
    """Computes the answer to a message and sends it.

    Args:
        source: Where tasks come from.
        task: The task.
        message: The message.
        context: The node's settings.
        bundle: The app that the SuperLink sent.

    Returns:
        An exit code.
    """
    from flwr.common.constant import SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http

    from sordino.flower.messages import reply_safely

    client = open_runtime_client(source, task.token)
    HeartbeatSender(make_task_heartbeat_fn_http(client)).start()

    def answer() -> Message:
        app = AppPin(ClientStore(source.folder), source.own).choose_app(task.kind, bundle)
        return app(message, context)

    reply = reply_safely(message, answer)
    if reply.has_error():
        send_reply(source, task, reply, context, SubStatus.FAILED)
        return ANSWERED_WITH_ERROR
    send_reply(source, task, reply, context, SubStatus.COMPLETED)
    return 0


def send_reply(
    source: TaskSource, task: Task, reply: Message, context: Context, status: str
) -> None:
    """Hands a reply to the SuperNode, and reports the task as done.

    Args:
        source: Where tasks come from.
        task: The task.
        reply: The reply.
        context: The node's settings.
        status: How the task ended.
    """
    from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

    client = open_runtime_client(source, task.token)
    try:
        push_message(client, reply, context)
        push_task_output(client, context, status, "")
    finally:
        client.close()
