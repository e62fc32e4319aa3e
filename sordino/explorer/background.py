"""Computes in the background what a page does not wait for.

There is one worker for the whole server. It holds the threads and the most recent answers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any
from weakref import WeakSet

THREADS = 2
# The number of answers that are kept.
KEPT = 500

Call = tuple[Callable[..., Any], *tuple[Hashable, ...]]


class Abandoned(Exception):
    """Ends a job that nobody wants any more."""


class Requester:
    """Represents a page in one browser, which requests one set of answers at a time."""

    def __init__(self) -> None:
        self.work: list[Job] = []


class Job:
    """Holds a call, its answer to come, and the pages that still want that answer."""

    def __init__(self, call: Call) -> None:
        self.call = call
        # Weak references, so that a page that was closed no longer wants anything.
        self.requesters: WeakSet[Requester] = WeakSet()
        # Whether it was requested on behalf of no page in particular.
        self.always = False
        self.future: Future[Any]

    @property
    def wanted(self) -> bool:
        """Whether the answer is still wanted."""
        return self.always or len(self.requesters) > 0


class BackgroundWorker:
    """Hands jobs to threads, and keeps their answers, so that none is computed twice.

    Example:
        >>> worker = BackgroundWorker()
        >>> worker.request(pow, 2, 10).result()
        1024
        >>> worker.request(pow, 2, 10) is worker.request(pow, 2, 10)
        True
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sordino-explorer")
        self._jobs: OrderedDict[Call, Job] = OrderedDict()
        self._lock = threading.RLock()

    def request(self, function: Callable[..., Any], *arguments: Hashable) -> Future[Any]:
        """Requests the answer of a call, which is computed whether or not a page waits for it.

        Args:
            function: The function to call.
            *arguments: The arguments of the call.

        Returns:
            A future with the answer of `function(*arguments)`.
        """
        with self._lock:
            work = self._find((function, *arguments))
            work.always = True
        return work.future

    def replace_requests(self, requester: Requester, calls: Sequence[Call]) -> list[Future[Any]]:
        """Requests the answers of calls, in place of those that a page requested before.

        Earlier requests of the page are abandoned, unless another page still wants them.

        Args:
            requester: The page.
            calls: Functions with their arguments, the most urgent first.

        Returns:
            Futures with the answers, in the order of the calls.

        Example:
            >>> page = Requester()
            >>> calls = [(pow, 2, 10), (pow, 2, 3)]
            >>> [answer.result() for answer in BackgroundWorker().replace_requests(page, calls)]
            [1024, 8]
        """
        with self._lock:
            for work in requester.work:
                work.requesters.discard(requester)
            requester.work = [self._find(call) for call in calls]
            for work in requester.work:
                work.requesters.add(requester)
            return [work.future for work in requester.work]

    def _find(self, call: Call) -> Job:
        """Returns the job of a call, and starts it if it is new."""
        work = self._jobs.get(call)
        if work is None:
            work = self._jobs[call] = Job(call)
            work.future = self._pool.submit(self._answer, work)
        self._jobs.move_to_end(call)
        while len(self._jobs) > KEPT:
            self._jobs.popitem(last=False)
        return work

    def _answer(self, work: Job) -> Any:
        """Computes the answer of a job."""
        _running.stop_if_unwanted = lambda: self._stop_if_unwanted(work)
        try:
            stop_if_unwanted()
            function, *arguments = work.call
            return function(*arguments)
        finally:
            del _running.stop_if_unwanted

    def _stop_if_unwanted(self, work: Job) -> None:
        """Ends a job that nobody wants, and forgets it, so that a later request starts it again."""
        with self._lock:
            if work.wanted:
                return
            if self._jobs.get(work.call) is work:
                del self._jobs[work.call]
        raise Abandoned


# In a thread of a worker: how to end its present job.
_running = threading.local()


def stop_if_unwanted() -> None:
    """Ends the present job if its answer is no longer wanted. Long computations call it often.

    Raises:
        Abandoned: The answer is no longer wanted.
    """
    stop = getattr(_running, "stop_if_unwanted", None)
    if stop is not None:
        stop()


def wait_for(futures: list[Future[Any]], seconds: float) -> bool:
    """Waits for answers.

    Args:
        futures: The answers to come.
        seconds: The longest time to wait.

    Returns:
        Whether all answers are there.
    """
    return not wait(futures, timeout=seconds).not_done


worker = BackgroundWorker()
