"""The live display shows what was spent: never what later rounds will cost, and never an old price as the present one."""

import io
import re

import pytest
from rich.console import Console

from sordino.federation.loop import RoundMetrics
from sordino.ui import progress

ROUNDS = 200


def metrics(round: int) -> RoundMetrics:
    return RoundMetrics(
        round=round,
        participants=5,
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
