"""Speaks with the driver by lines on standard input and output, so that contenders take turns."""

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
    """Repeats `work`, of `client_steps` steps, for the seconds that each line of input asks for.

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
    """Holds what the driver asks for: steps K of a model, and for some an engine and workers."""

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
    """Returns the rounds of one call of a framework, so that its start-up hardly counts."""
    return 5 if steps < 20 else 1
