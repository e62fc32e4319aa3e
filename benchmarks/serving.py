"""What a measured process says and hears: lines on its standard input and output, so that contenders can take turns."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

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


def asked_steps() -> int:
    """The number of local steps K that the driver asks a contender for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    return int(parser.parse_args().steps)


def rounds_at_once(steps: int) -> int:
    """Rounds that a framework is asked for in one call, so that what it does once per call hardly counts."""
    return 5 if steps < 20 else 1
