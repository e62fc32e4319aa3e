"""Work that a page does not wait for. One desk for the whole server: it holds threads and the last answers, and says so here."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any
from weakref import WeakSet

THREADS = 2
KEPT = 500  # answers

Call = tuple[Callable[..., Any], *tuple[Hashable, ...]]


class Abandoned(Exception):
    """Ends work that nobody asks for any more."""


class Asker:
    """A page in one browser. It asks for one set of answers at a time."""

    def __init__(self) -> None:
        self.work: list[Work] = []


class Work:
    """A call that was asked for, and everybody who still does."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.askers: WeakSet[Asker] = WeakSet()  # a browser that is closed asks for nothing
        self.always = False  # asked for by no page in particular
        self.future: Future[Any]

    @property
    def wanted(self) -> bool:
        """Whether anybody asks for it."""
        return self.always or len(self.askers) > 0


class Desk:
    """Hands out work to threads, and keeps answers. What was asked for once is not worked out again.

    Example:
        >>> desk = Desk()
        >>> desk.ask(pow, 2, 10).result()
        1024
        >>> desk.ask(pow, 2, 10) is desk.ask(pow, 2, 10)
        True
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sordino-desk")
        self._asked: OrderedDict[Call, Work] = OrderedDict()
        self._lock = threading.RLock()

    def ask(self, function: Callable[..., Any], *arguments: Hashable) -> Future[Any]:
        """Returns the answer to come of `function(*arguments)`, which is worked out in any case."""
        with self._lock:
            work = self._find((function, *arguments))
            work.always = True
        return work.future

    def ask_instead(self, asker: Asker, calls: Sequence[Call]) -> list[Future[Any]]:
        """Returns the answers to come of all calls, the most urgent first.

        What `asker` asked for before is given up, unless it is asked for again or somebody else does.

        Args:
            asker: The page that asks.
            calls: Functions with their arguments.

        Example:
            >>> page = Asker()  # what a page that is gone asked for is given up
            >>> [answer.result() for answer in Desk().ask_instead(page, [(pow, 2, 10), (pow, 2, 3)])]
            [1024, 8]
        """
        with self._lock:
            for work in asker.work:
                work.askers.discard(asker)
            asker.work = [self._find(call) for call in calls]
            for work in asker.work:
                work.askers.add(asker)
            return [work.future for work in asker.work]

    def _find(self, call: Call) -> Work:
        """Returns the work on a call, which is begun if it is new."""
        work = self._asked.get(call)
        if work is None:
            work = self._asked[call] = Work(call)
            work.future = self._pool.submit(self._answer, work)
        self._asked.move_to_end(call)
        while len(self._asked) > KEPT:
            self._asked.popitem(last=False)
        return work

    def _answer(self, work: Work) -> Any:
        """Returns what a call returns."""
        _running.stop_if_unwanted = lambda: self._stop_if_unwanted(work)
        try:
            stop_if_unwanted()
            function, *arguments = work.call
            return function(*arguments)
        finally:
            del _running.stop_if_unwanted

    def _stop_if_unwanted(self, work: Work) -> None:
        """Ends work that nobody asks for. Who asks later finds no trace of it and begins anew."""
        with self._lock:
            if work.wanted:
                return
            if self._asked.get(work.call) is work:
                del self._asked[work.call]
        raise Abandoned


_running = threading.local()  # in a thread of a desk: how to end its present work


def stop_if_unwanted() -> None:
    """Ends the present work, if it is a desk's and nobody asks for it any more. Long work calls it now and then.

    Raises:
        Abandoned: Nobody asks for it.
    """
    stop = getattr(_running, "stop_if_unwanted", None)
    if stop is not None:
        stop()


def settled(futures: list[Future[Any]], seconds: float) -> bool:
    """Whether all are there, after waiting for this long at most."""
    return not wait(futures, timeout=seconds).not_done


desk = Desk()
