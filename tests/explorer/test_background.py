"""Work in the background: asked for once, worked out once, and given up when nobody asks for it any more."""

import threading
import time

import pytest

from sordino.explorer.background import (
    Abandoned,
    BackgroundWorker,
    Requester,
    stop_if_unwanted,
    wait_for,
)


class Slow:
    """Calls that wait until they are let go, and remember what was begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = threading.Event()
        self.busy = threading.Event()

    def __call__(self, name: str) -> str:
        self.begun.append(name)
        self.busy.set()
        assert self.go.wait(30)
        stop_if_unwanted()
        return name


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def worker() -> BackgroundWorker:
    return BackgroundWorker(threads=1)


def test_what_was_passed_is_never_begun_and_the_last_is_answered_in_order(worker, slow) -> None:
    page = Requester()
    for position in range(12):
        last = worker.replace_requests(
            page, [(slow, f"{position} first"), (slow, f"{position} second")]
        )
        assert slow.busy.wait(30)
    slow.go.set()
    assert [answer.result(30) for answer in last] == ["11 first", "11 second"]
    assert slow.begun == ["0 first", "11 first", "11 second"]


def test_work_that_is_under_way_ends_where_it_looks(worker, slow) -> None:
    page = Requester()
    (left,) = worker.replace_requests(page, [(slow, "left")])
    assert slow.busy.wait(30)
    worker.replace_requests(page, [])
    slow.go.set()
    with pytest.raises(Abandoned):
        left.result(30)


def test_what_another_page_asks_for_is_worked_out(worker, slow) -> None:
    first, second = Requester(), Requester()
    worker.replace_requests(first, [(slow, "both"), (slow, "first alone")])
    (both,) = worker.replace_requests(second, [(slow, "both")])
    worker.replace_requests(first, [])
    slow.go.set()
    assert both.result(30) == "both"
    assert worker.request(slow, "after").result(30) == "after"
    assert slow.begun == ["both", "after"]


def test_what_a_closed_page_asked_for_is_given_up(worker, slow) -> None:
    closed = Requester()
    worker.request(slow, "before")
    worker.replace_requests(closed, [(slow, "closed")])
    del closed
    slow.go.set()
    assert worker.request(slow, "after").result(30) == "after"
    assert slow.begun == ["before", "after"]


def test_what_was_given_up_and_is_asked_for_again_is_answered(worker, slow) -> None:
    page = Requester()
    (lost,) = worker.replace_requests(page, [(slow, "again")])
    assert slow.busy.wait(30)
    worker.replace_requests(page, [])
    slow.go.set()
    assert wait_for([lost], 30)
    (found,) = worker.replace_requests(page, [(slow, "again")])
    assert found.result(30) == "again"


def test_coming_back_while_it_goes_on_keeps_the_work(worker, slow) -> None:
    page = Requester()
    (once,) = worker.replace_requests(page, [(slow, "once")])
    assert slow.busy.wait(30)
    worker.replace_requests(page, [(slow, "elsewhere")])
    (twice,) = worker.replace_requests(page, [(slow, "once")])
    slow.go.set()
    assert once is twice
    assert twice.result(30) == "once"


def test_many_pages_that_change_their_minds_all_get_their_answers() -> None:
    worker = BackgroundWorker()
    answers: dict[int, list[int]] = {}

    def work(value: int) -> int:
        time.sleep(0.001)
        stop_if_unwanted()
        return value * value

    def turn(number: int) -> None:
        page = Requester()
        for position in range(40):
            asked = worker.replace_requests(
                page, [(work, (position * 7 + at) % 23) for at in range(5)]
            )
        answers[number] = [answer.result(30) for answer in asked]

    pages = [threading.Thread(target=turn, args=(number,)) for number in range(6)]
    for page in pages:
        page.start()
    for page in pages:
        page.join(60)
    wanted = [((39 * 7 + at) % 23) ** 2 for at in range(5)]
    assert answers == dict.fromkeys(range(6), wanted)
