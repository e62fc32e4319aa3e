"""Plays a game for a given time, and ends it by itself when the verdict is clear.

The first trainings choose the test and say what one costs; the others judge it in equal steps, with
a look at the verdict after each. Error limits hold at every look (`anytime_limits`), so it does not
matter for them when the game ends, or why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from sordino.audit.audit_folder import AuditFolder
from sordino.audit.game import Chunk, Game, chunks_of, play_all
from sordino.audit.lower_bounds import Scores
from sordino.audit.verdict import Ending, TimedTest

# Trainings per side that are played first, to see what one costs, and of which every step is made.
FIRST = 128
# The share of the time after which the test is chosen: it ends between this and twice as much.
CHOOSING_SHARE = 0.15
# More of them choose no better test.
MOST_CHOOSING = 8192
# How often the verdict is looked at, about.
LOOKS = 16
# Of the time, what the trainings have at least, however long their preparation took.
LEAST_SHARE = 0.4
# Of the time, what is kept for the step that is being played when it is over.
RESERVE = 0.05
# As many times what was planned are played at most, if the machine is faster than it was.
FASTER = 4
MOST_MINUTES = 60 * 24 * 7


@dataclass(frozen=True, kw_only=True)
class TimePlan:
    """Says how many trainings on each side are played.

    Attributes:
        choosing: Those that choose the test.
        judging: Those that judge it, as far as the time is expected to go.
        step: Those that judge it between two looks.
    """

    choosing: int
    judging: int
    step: int


@dataclass(frozen=True, kw_only=True)
class PlayedChunks:
    """Holds what was played when the game ended.

    Attributes:
        chunks: The chunks that count.
        test: How it went, if it was planned by time.
    """

    chunks: list[Chunk]
    test: TimedTest | None = None


class TimedPlay:
    """Plays a game until its time is over or its verdict is clear.

    It holds the clock, which runs from the start.

    Args:
        game: The game.
        place: The folder that keeps its scores.
        minutes: How long it may take.
        workers: Processes; None for one per core.
        on_plan: Called once, when it is known how many trainings fit.
        on_progress: Called with the trainings per side that judge so far, and of how many.
        is_clear: Whether more trainings would hardly change any verdict.
    """

    def __init__(
        self,
        game: Game,
        place: AuditFolder,
        minutes: float,
        *,
        workers: int | None,
        on_plan: Callable[[TimePlan], None],
        on_progress: Callable[[int, int], None],
        is_clear: Callable[[Scores], bool],
    ) -> None:
        self._game = game
        self._place = place
        self._minutes = minutes
        self._workers = workers
        self._on_plan = on_plan
        self._on_progress = on_progress
        self._is_clear = is_clear
        self._end = time.monotonic() + 60 * minutes

    def play(self) -> PlayedChunks:
        """Plays the game, or the rest of it.

        Returns:
            The trainings that count, and why there are no more.
        """
        self._end = max(self._end, time.monotonic() + LEAST_SHARE * 60 * self._minutes)
        kept = self._place.plan()
        plan = self._choose() if kept is None else TimePlan(**kept)
        self._place.keep_plan(asdict(plan))
        self._on_plan(plan)
        return self._judge(plan)

    def _choose(self) -> TimePlan:
        """Plays trainings that choose the test, twice as many each time, and plans the others."""
        first = min(FIRST, self._game.together)
        begun = time.monotonic()
        given = CHOOSING_SHARE * (self._end - begun)
        done = 0
        rate = 0.0
        while done == 0 or (time.monotonic() - begun < given and done < MOST_CHOOSING):
            started = time.monotonic()
            more = max(done, first)
            self._play(chunks_of_half(0, done, done + more, self._game.together))
            rate = more / max(time.monotonic() - started, 1e-6)
            done += more
        left = max(0.0, self._end - time.monotonic())
        steps = max(1, int(left * rate / first))
        step = first
        # Doubled, so that no step crosses the border between two groups of lanes.
        while step < self._game.together and step * LOOKS < steps * first:
            step *= 2
        return TimePlan(choosing=done, judging=-(-steps * first // step) * step, step=step)

    def _play(self, chunks: Sequence[Chunk]) -> None:
        for played in play_all(self._game, self._place.missing(chunks), self._workers):
            self._place.keep(played)

    def _judge(self, plan: TimePlan) -> PlayedChunks:
        """Plays trainings that judge the test, and looks at the verdict after every step."""
        choosing = choosing_chunks(self._game.together, plan.choosing)
        steps = [
            chunks_of_half(1, start, start + plan.step, plan.step)
            for start in range(0, FASTER * plan.judging, plan.step)
        ]
        last = self._end - 60 * self._minutes * RESERVE
        counted = choosing
        looks = 0
        ended: Ending = "time"
        for looks in self._played_steps(steps):
            counted = counted + steps[looks - 1]
            done = looks * plan.step
            self._on_progress(done, max(done, plan.judging))
            if self._is_clear(self._place.scores(counted)[0]):
                ended = "clear"
                break
            if time.monotonic() > last:
                break
        test = TimedTest(
            minutes=self._minutes,
            choosing=plan.choosing,
            planned=plan.judging,
            looks=looks,
            ended=ended,
        )
        return PlayedChunks(chunks=counted, test=test)

    def _played_steps(self, steps: Sequence[Sequence[Chunk]]) -> Iterator[int]:
        """Yields how many steps from the first on are complete, one more each time."""
        missing = self._place.missing([chunk for step in steps for chunk in step])
        left = {chunk.name for chunk in missing}
        complete = 0
        playing = play_all(self._game, missing, self._workers)
        try:
            while complete < len(steps):
                if left.isdisjoint(chunk.name for chunk in steps[complete]):
                    complete += 1
                    yield complete
                    continue
                played = next(playing)
                self._place.keep(played)
                left.remove(played.chunk.name)
        finally:
            playing.close()


def choosing_chunks(together: int, trainings: int) -> list[Chunk]:
    """Returns the chunks that choose the test, as they were played: twice as many each time.

    Args:
        together: How many a chunk holds at most.
        trainings: How many there are on each side.
    """
    start, stop = 0, min(FIRST, together)
    chunks = []
    while start < trainings:
        chunks += chunks_of_half(0, start, stop, together)
        start, stop = stop, 2 * stop
    return chunks


def chunks_of_half(half: int, start: int, stop: int, size: int) -> list[Chunk]:
    """Returns chunks of one half, in the order in which they are played: both sides in turn.

    Args:
        half: 0 for trainings that choose the test, 1 for those that judge it.
        start: The place of the first among the trainings of a side.
        stop: The place after the last.
        size: How many a chunk holds at most.
    """
    chunks = [chunk for chunk in chunks_of(stop, size, start) if chunk.half == half]
    return sorted(chunks, key=lambda chunk: (chunk.start, chunk.side))
