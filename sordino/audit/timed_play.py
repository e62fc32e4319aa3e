"""Plays a game for a given time, and ends it early when the verdict is clear.

The first trainings choose the test and show how long one takes. The others judge it in equal steps,
with a look at the verdict after each. Error limits hold at every look (`anytime_limits`), so they
hold whenever the game ends, and whatever ended it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from sordino.audit.audit_folder import AuditFolder
from sordino.audit.game import Chunk, Game, make_chunks, play_all
from sordino.audit.lower_bounds import Scores
from sordino.audit.verdict import Ending, TimedTest

# Trainings per side that are played first, to see how long one takes; a step is a multiple of it.
FIRST = 128
# The share of the time that trainings may take to choose the test. The last doubling may begin just
# before it is over, so that they end after at most about twice as long.
CHOOSING_SHARE = 0.15
# The most trainings that choose the test: more choose no better one.
MOST_CHOOSING = 8192
# About how often the verdict is looked at.
LOOKS = 16
# The share of the time that trainings have at least, however long their preparation took.
LEAST_SHARE = 0.4
# The share of the time that is left for the step under way when time runs out.
RESERVE = 0.05
# The most trainings that are played, as a multiple of the planned ones, if the machine gets faster.
FASTER = 4
# The longest time: a week.
MOST_MINUTES = 60 * 24 * 7


@dataclass(frozen=True, kw_only=True)
class TimePlan:
    """Says how many trainings on each side are played.

    Attributes:
        choosing: The trainings that choose the test.
        judging: The trainings that judge it, as many as the time is expected to allow.
        step: The judging trainings between two looks at the verdict.
    """

    choosing: int
    judging: int
    step: int


@dataclass(frozen=True, kw_only=True)
class PlayedChunks:
    """Holds the chunks that a game was ended with.

    Attributes:
        chunks: The chunks that count.
        test: How an audit with a time limit went; None without one.
    """

    chunks: list[Chunk]
    test: TimedTest | None = None


class TimedPlay:
    """Plays a game until its time is over or its verdict is clear.

    The time runs from the construction of this object.

    Args:
        game: The game.
        place: The folder that keeps its scores.
        minutes: How long it may take.
        workers: Processes; None for one per core.
        on_plan: Called once, when it is known how many trainings fit.
        on_progress: Called with the number of judging trainings per side so far, and of how many.
        is_clear: Returns whether more trainings would hardly change any verdict.
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
            self._play_missing(make_half_chunks(0, done, done + more, self._game.together))
            rate = more / max(time.monotonic() - started, 1e-6)
            done += more
        left = max(0.0, self._end - time.monotonic())
        steps = max(1, int(left * rate / first))
        step = first
        # Doubled, so that no step crosses the border between two groups of lanes.
        while step < self._game.together and step * LOOKS < steps * first:
            step *= 2
        return TimePlan(choosing=done, judging=-(-steps * first // step) * step, step=step)

    def _play_missing(self, chunks: Sequence[Chunk]) -> None:
        for played in play_all(self._game, self._place.list_missing(chunks), self._workers):
            self._place.keep_scores(played)

    def _judge(self, plan: TimePlan) -> PlayedChunks:
        """Plays trainings that judge the test, and looks at the verdict after every step."""
        choosing = make_choosing_chunks(self._game.together, plan.choosing)
        steps = [
            make_half_chunks(1, start, start + plan.step, plan.step)
            for start in range(0, FASTER * plan.judging, plan.step)
        ]
        last = self._end - 60 * self._minutes * RESERVE
        counted = choosing
        looks = 0
        ended: Ending = "time"
        for looks in self._play_steps(steps):
            counted = counted + steps[looks - 1]
            done = looks * plan.step
            self._on_progress(done, max(done, plan.judging))
            if self._is_clear(self._place.read_scores(counted)[0]):
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

    def _play_steps(self, steps: Sequence[Sequence[Chunk]]) -> Iterator[int]:
        """Plays steps in order, and yields the number of complete ones after each."""
        missing = self._place.list_missing([chunk for step in steps for chunk in step])
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
                self._place.keep_scores(played)
                left.remove(played.chunk.name)
        finally:
            playing.close()


def make_choosing_chunks(together: int, trainings: int) -> list[Chunk]:
    """Returns the chunks that choose the test, as they were played: twice as many each time.

    Args:
        together: The most trainings in a chunk.
        trainings: The number of trainings on each side.
    """
    start, stop = 0, min(FIRST, together)
    chunks = []
    while start < trainings:
        chunks += make_half_chunks(0, start, stop, together)
        start, stop = stop, 2 * stop
    return chunks


def make_half_chunks(half: int, start: int, stop: int, size: int) -> list[Chunk]:
    """Returns chunks of one half, in the order in which they are played: both sides in turn.

    Args:
        half: 0 for trainings that choose the test, 1 for those that judge it.
        start: The place of the first among the trainings of a side.
        stop: The place after the last.
        size: The most trainings in a chunk.
    """
    chunks = [chunk for chunk in make_chunks(stop, size, start) if chunk.half == half]
    return sorted(chunks, key=lambda chunk: (chunk.start, chunk.side))
