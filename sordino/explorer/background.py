"""Computes in the background what a page does not wait for.

One worker serves the whole server: it holds the threads and the last answers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any
from weakref import WeakSet

THREADS = 2
# Answers that are kept.
KEPT = 500

Call = tuple[Callable[..., Any], *tuple[Hashable, ...]]


class Abandoned(Exception):
    """Ends a job that nobody wants any more."""


class Requester:
    """Represents a page in one browser, which asks for one set of answers at a time."""

    def __init__(self) -> None:
        self.work: list[Job] = []


class Job:
    """Holds a call that was asked for, and everybody who still wants its answer."""

    def __init__(self, call: Call) -> None:
        self.call = call
        # Weak: a page that was closed asks for nothing.
        self.requesters: WeakSet[Requester] = WeakSet()
        # Whether it was asked for by no page in particular.
        self.always = False
        self.future: Future[Any]

    @property
    def wanted(self) -> bool:
        """Whether anybody wants it."""
        return self.always or len(self.requesters) > 0


class BackgroundWorker:
    """Hands jobs to threads, and keeps their answers.

    What was asked for once is not computed again.

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
        """Requests the answer of a call, which is computed in any case.

        Args:
            function: The function to call.
            *arguments: Of the call.

        Returns:
            The answer to come of `function(*arguments)`.
        """
        with self._lock:
            work = self._find((function, *arguments))
            work.always = True
        return work.future

    def replace_requests(self, requester: Requester, calls: Sequence[Call]) -> list[Future[Any]]:
        """Requests the answers of calls, instead of those that a page asked for before.

        What the page asked for before is given up, unless somebody still wants it.

        Args:
            requester: The page that asks.
            calls: Functions with their arguments, the most urgent first.

        Returns:
            The answers to come, in the order of the calls.

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
        """Returns the job of a call, which is started if it is new."""
        work = self._jobs.get(call)
        if work is None:
            work = self._jobs[call] = Job(call)
            work.future = self._pool.submit(self._answer, work)
        self._jobs.move_to_end(call)
        while len(self._jobs) > KEPT:
            self._jobs.popitem(last=False)
        return work

    def _answer(self, work: Job) -> Any:
        """Returns what the call of a job returns."""
        _running.stop_if_unwanted = lambda: self._stop_if_unwanted(work)
        try:
            stop_if_unwanted()
            function, *arguments = work.call
            return function(*arguments)
        finally:
            del _running.stop_if_unwanted

    def _stop_if_unwanted(self, work: Job) -> None:
        """Ends a job that nobody wants. Later requests find no trace of it and start again."""
        with self._lock:
            if work.wanted:
                return
            if self._jobs.get(work.call) is work:
                del self._jobs[work.call]
        raise Abandoned


# In a thread of a worker: how to end its present job.
_running = threading.local()


def stop_if_unwanted() -> None:
    """Ends the present job, if nobody wants it any more. Long computations call it now and then.

    Raises:
        Abandoned: Nobody wants it.
    """
    stop = getattr(_running, "stop_if_unwanted", None)
    if stop is not None:
        stop()


def wait_for(futures: list[Future[Any]], seconds: float) -> bool:
    """Waits for answers.

    Args:
        futures: The answers to come.
        seconds: How long to wait at most.

    Returns:
        Whether all are there.
    """
    return not wait(futures, timeout=seconds).not_done


worker = BackgroundWorker()
