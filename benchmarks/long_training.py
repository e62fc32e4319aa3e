"""Times a whole training: 900 rounds of dp-sgd on scattering features of MNIST, behind secure sums.

The features are computed once, before the clock runs.
"""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.resources import files

from benchmarks.serving import say
from benchmarks.task import WORKERS
from sordino import train
from sordino.federation.setup import prepare
from sordino.protocol import Privacy, UserError, loads

ROUNDS = 900


def main() -> None:
    """Trains, and says how long it took."""
    example = loads((files("sordino") / "examples" / "secure-mnist.toml").read_text())
    plan = replace(example, rounds=ROUNDS, privacy=Privacy())
    try:
        prepare(plan)
    except UserError:
        say(seconds=0)
        return
    began, spent = time.perf_counter(), time.process_time()
    run = train(plan, engine="native", workers=WORKERS, evaluate_every=100)
    seconds, processor = time.perf_counter() - began, time.process_time() - spent
    say(seconds=seconds, processor=processor, accuracy=float(run.metrics["accuracy"][-1]))


if __name__ == "__main__":
    main()
