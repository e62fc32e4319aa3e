"""Work in the background: asked for once, worked out once, and given up when nobody asks for it any more."""

import threading
import time

import pytest

from sordino.ui.explorer.background import Abandoned, Asker, Desk, settled, stop_if_unwanted


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
def desk() -> Desk:
    return Desk(threads=1)


def test_what_was_passed_is_never_begun_and_the_last_is_answered_in_order(desk, slow) -> None:
    page = Asker()
    for position in range(12):
        last = desk.ask_instead(page, [(slow, f"{position} first"), (slow, f"{position} second")])
        assert slow.busy.wait(30)
    slow.go.set()
    assert [answer.result(30) for answer in last] == ["11 first", "11 second"]
    assert slow.begun == ["0 first", "11 first", "11 second"]


def test_work_that_is_under_way_ends_where_it_looks(desk, slow) -> None:
    page = Asker()
    (left,) = desk.ask_instead(page, [(slow, "left")])
    assert slow.busy.wait(30)
    desk.ask_instead(page, [])
    slow.go.set()
    with pytest.raises(Abandoned):
        left.result(30)


def test_what_another_page_asks_for_is_worked_out(desk, slow) -> None:
    first, second = Asker(), Asker()
    desk.ask_instead(first, [(slow, "both"), (slow, "first alone")])
    (both,) = desk.ask_instead(second, [(slow, "both")])
    desk.ask_instead(first, [])
    slow.go.set()
    assert both.result(30) == "both"
    assert desk.ask(slow, "after").result(30) == "after"
    assert slow.begun == ["both", "after"]


def test_what_a_closed_page_asked_for_is_given_up(desk, slow) -> None:
    closed = Asker()
    desk.ask(slow, "before")
    desk.ask_instead(closed, [(slow, "closed")])
    del closed
    slow.go.set()
    assert desk.ask(slow, "after").result(30) == "after"
    assert slow.begun == ["before", "after"]


def test_what_was_given_up_and_is_asked_for_again_is_answered(desk, slow) -> None:
    page = Asker()
    (lost,) = desk.ask_instead(page, [(slow, "again")])
    assert slow.busy.wait(30)
    desk.ask_instead(page, [])
    slow.go.set()
    assert settled([lost], 30)
    (found,) = desk.ask_instead(page, [(slow, "again")])
    assert found.result(30) == "again"


def test_coming_back_while_it_goes_on_keeps_the_work(desk, slow) -> None:
    page = Asker()
    (once,) = desk.ask_instead(page, [(slow, "once")])
    assert slow.busy.wait(30)
    desk.ask_instead(page, [(slow, "elsewhere")])
    (twice,) = desk.ask_instead(page, [(slow, "once")])
    slow.go.set()
    assert once is twice
    assert twice.result(30) == "once"


def test_many_pages_that_change_their_minds_all_get_their_answers() -> None:
    desk = Desk()
    answers: dict[int, list[int]] = {}

    def work(value: int) -> int:
        time.sleep(0.001)
        stop_if_unwanted()
        return value * value

    def turn(number: int) -> None:
        page = Asker()
        for position in range(40):
            asked = desk.ask_instead(page, [(work, (position * 7 + at) % 23) for at in range(5)])
        answers[number] = [answer.result(30) for answer in asked]

    pages = [threading.Thread(target=turn, args=(number,)) for number in range(6)]
    for page in pages:
        page.start()
    for page in pages:
        page.join(60)
    wanted = [((39 * 7 + at) % 23) ** 2 for at in range(5)]
    assert answers == dict.fromkeys(range(6), wanted)
