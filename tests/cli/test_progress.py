"""The live display shows what was spent: never what later rounds will cost, and never an old price as the present one."""

import io
import re

import pytest
from rich.console import Console

from sordino.cli import progress
from sordino.federation.round_metrics import RoundMetrics

ROUNDS = 200


def metrics(round: int, participants: int = 5) -> RoundMetrics:
    return RoundMetrics(
        round=round,
        participants=participants,
        loss=0.5,
        accuracy=0.9,
        signal_to_noise=None,
        bytes_up=10,
        bytes_down=10,
        clip_fraction=None,
        nonfinite_steps=0,
        seconds=0.1,
        status="ok",
    )


@pytest.mark.parametrize("done_before", [0, 37])
def test_the_price_shown_is_that_of_the_rounds_done_or_says_of_which(
    monkeypatch: pytest.MonkeyPatch, done_before: int
) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(progress, "messages", screen)
    asked: list[int] = []

    def price(rounds: int) -> str:
        asked.append(rounds)
        return f"epsilon <= {rounds}"

    with progress.TrainingProgress() as display:
        display.start(rounds=ROUNDS, done=done_before, spent=price)
        for round in range(done_before, ROUNDS):
            display.advance(metrics(round))
            shown = str(display._bar.tasks[0].fields["scores"])
            found = re.search(r"epsilon <= (\d+)(?: after round (\d+))?$", shown)
            assert found is not None
            epsilon, said = int(found.group(1)), found.group(2)
            assert epsilon == (round + 1 if said is None else int(said)) <= round + 1
    assert asked[0] == done_before + 1
    assert asked[-1] == ROUNDS
    assert len(asked) <= progress.PRICINGS + 2  # a price takes a tenth of a second or so


@pytest.mark.parametrize("hidden", [False, True])
def test_how_many_take_part_is_shown_unless_the_promise_counts_on_a_hidden_draw(
    monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    log = io.StringIO()
    monkeypatch.setattr(progress, "messages", Console(file=log, force_terminal=True, width=120))
    with progress.TrainingProgress() as display:
        display.start(rounds=2, done=0, spent=lambda rounds: "", draw_hidden=hidden)
        display.advance(metrics(0, participants=9))
        display.advance(metrics(1, participants=4))
        shown = str(display._bar.tasks[0].fields["scores"])
    assert ("4 clients" in shown) == (not hidden)
