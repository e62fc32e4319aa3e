"""Work that a page does not wait for. One desk for the whole server: it holds threads and the last answers, and says so here."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

THREADS = 2
KEPT = 500  # answers


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
        self._asked: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def ask(self, function: Callable[..., Any], *arguments: Hashable) -> Future[Any]:
        """The answer to come of `function(*arguments)`."""
        key = (function, arguments)
        with self._lock:
            known = self._asked.get(key)
            if known is None or known.cancelled():
                known = self._asked[key] = self._pool.submit(function, *arguments)
            self._asked.move_to_end(key)
            while len(self._asked) > KEPT:
                self._asked.popitem(last=False)[1].cancel()
        return known


def settled(futures: list[Future[Any]], seconds: float) -> bool:
    """Whether all are there, after waiting for this long at most."""
    return not wait(futures, timeout=seconds).not_done


desk = Desk()
