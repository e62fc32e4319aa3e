"""Answers the tasks of a client's SuperNode in processes that are forked, not looked up.

Flower's own SuperExec starts a program by its name for every message, and loads everything anew.
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

from sordino.engines.flower.custody import Custodian
from sordino.engines.flower.pinned import Pin

if TYPE_CHECKING:
    from flwr.app import Context, Message

LOG = logging.getLogger("flwr")  # Flower shows what its own logger says
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
IDLE = 600.0  # seconds without a task after which the loaded process ends
TRIES = 2  # how often a task is begun whose process was killed
SECONDS = 20.0  # that the SuperNode on this machine is given for an answer
PR_SET_PDEATHSIG = 1  # of Linux' prctl: end with the parent


@dataclass(frozen=True, kw_only=True)
class Post:
    """Describes where tasks come from and whose they are.

    Attributes:
        folder: The client's folder.
        address: Host and port of the SuperNode on this machine.
        secret: Known to the SuperNode and to its keeper only: without it nobody gets a task.
        own: Digest of the app that belongs to this installation of Sordino.
    """

    folder: Path
    address: str
    secret: bytes
    own: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """Describes a task that was acquired: what Flower would start, and the token for it."""

    kind: str
    token: str


def fork(work: Callable[[], int]) -> int:
    """Runs work in a process of its own, which ends with this one; returns its id."""
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


def runtime_client(post: Post, token: str | None = None) -> Any:
    """Returns Flower's client of the SuperNode on this machine.

    Args:
        post: Where it is.
        token: Of a task; without it, tasks are acquired with the node's secret.
    """
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    shown: Any
    if token is None:
        shown = SuperExecAuthHttpInterceptor(
            master_secret=post.secret, protected_methods=frozenset({ACQUIRE})
        )
    else:
        shown = RuntimeTokenHttpInterceptor(token)
    return RuntimeHttpClient(
        f"http://{post.address}",
        interceptors=[RuntimeVersionHttpInterceptor(component_name="sordino"), shown],
        timeout=SECONDS,
    )


def acquire_task(post: Post) -> Task | None:
    """Returns the next task of the SuperNode, of whatever kind, or None."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    client = runtime_client(post)
    try:
        kinds = [kind.value for kind in TaskType]
        answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=kinds))
    finally:
        client.close()
    if not answer.HasField("task") or not answer.token:
        return None
    return Task(kind=answer.task.type, token=answer.token)


class Answering:
    """Hands tasks to a process that has everything loaded, and starts it when there is none."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._process = 0
        self._pipe = -1
        self._code = 0

    @property
    def process(self) -> int:
        """The id of the loaded process; 0 if there is none."""
        if self._process:
            ended, status = os.waitpid(self._process, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
                self._forget()
        return self._process

    def take_failure(self) -> int:
        """Returns the exit code of a loaded process that failed, once; 0 if none did."""
        if self.process:
            return 0
        code = self._code
        self._code = 0
        return code

    def hand_over(self, task: Task) -> None:
        """Gives a task to the loaded process."""
        line = f"{task.kind} {task.token}\n".encode()
        if not self.process:
            self._start()
        try:
            os.write(self._pipe, line)
        except BrokenPipeError:  # it ended in this moment, since it had nothing to do
            self._forget()
            self._start()
            os.write(self._pipe, line)

    def stop(self) -> None:
        """Ends the loaded process, at once: what it works on is on disk, or was never sent."""
        if not self.process:
            return
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        self._forget()

    def _start(self) -> None:
        reading, self._pipe = os.pipe()
        pipe = self._pipe

        def work() -> int:
            os.close(pipe)
            return answer_tasks(self._post, reading)

        self._process = fork(work)
        os.close(reading)

    def _forget(self) -> None:
        os.close(self._pipe)
        self._process = 0
        self._pipe = -1


def answer_tasks(post: Post, tasks: int) -> int:
    """Answers the tasks that come through a pipe, until none has come for a while."""
    import sordino.engines.flower.client_app
    import sordino.engines.flower.work  # noqa: F401  brings torch, once for all rounds

    unread = b""
    while select.select([tasks], [], [], IDLE)[0]:
        new = os.read(tasks, 65_536)
        if not new:
            break
        *lines, unread = (unread + new).split(b"\n")
        for line in lines:
            kind, token = line.decode().split(" ")
            answer_task(post, Task(kind=kind, token=token))
    return 0


def answer_task(post: Post, task: Task) -> None:
    """Answers one task in a process of its own, and once more if that process is killed."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supernode.runtime.run_clientapp import pull_task_input

    client = runtime_client(post, task.token)
    try:
        message, context, _, bundle = pull_task_input(client)
    except Exception as error:
        LOG.error("A task could not be fetched: %s", error)
        return
    finally:
        client.close()
    for _ in range(TRIES):
        worker = fork(lambda: work_on(post, task, message, context, bundle.content))
        status = os.waitpid(worker, 0)[1]
        if os.WIFEXITED(status):
            return
        LOG.error("The process of a task ended by signal %s.", os.WTERMSIG(status))
    words = "its process was killed"
    failed = Message(Error(ErrorCode.CLIENT_APP_CRASHED, words), reply_to=message)
    send_reply(post, task, failed, context, SubStatus.FAILED)


def work_on(post: Post, task: Task, message: Message, context: Context, bundle: bytes) -> int:
    """Computes the answer to a message and sends it; returns an exit code."""
    from flwr.common.constant import SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http

    from sordino.engines.flower.messages import answered

    client = runtime_client(post, task.token)
    heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heart.start()

    def answer() -> Message:
        app = Pin(Custodian(post.folder), post.own).choose_app(task.kind, bundle)
        return app(message, context)

    reply = answered(message, answer)
    good = not reply.has_error()
    status = SubStatus.COMPLETED if good else SubStatus.FAILED
    send_reply(post, task, reply, context, status)
    return 0 if good else 3


def send_reply(post: Post, task: Task, reply: Message, context: Context, status: str) -> None:
    """Hands a reply to the SuperNode, and says that the task is done."""
    from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

    client = runtime_client(post, task.token)
    try:
        push_message(client, reply, context)
        push_task_output(client, context, status, "")
    finally:
        client.close()
