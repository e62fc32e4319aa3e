"""What a measured process says and hears: lines on its standard input and output, so that contenders can take turns."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

MARK = "@"  # begins a line that is meant for the driver; a library may print what it likes besides


def say(**facts: object) -> None:
    """Tell the driver."""
    print(MARK + json.dumps(facts), flush=True)


def serve(work: Callable[[], object], *, client_steps: int) -> None:
    """Do `work`, which is `client_steps` steps, again and again for as many seconds as each line of input asks for.

    The first two times are not measured: libraries set themselves up in them.
    """
    work()
    work()
    say(ready=True)
    for line in sys.stdin:
        seconds, done, started = float(line), 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            work()
            done += client_steps
        say(rate=done / elapsed)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the driver asks a contender for: local steps K of a model, and for those that can choose, an engine and its workers."""

    steps: int
    model: str
    engine: str
    workers: int


def asked() -> Work:
    """The work that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--workers", type=int, default=2)
    return Work(**vars(parser.parse_args()))


def rounds_at_once(steps: int) -> int:
    """Rounds that a framework is asked for in one call, so that what it does once per call hardly counts."""
    return 5 if steps < 20 else 1
