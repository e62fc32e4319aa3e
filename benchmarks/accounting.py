"""Measures the pricing of 10,000 steps of subsampled noisy SGD, ours and dp_accounting's in turn.

A separate process, which `__main__` runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.serving import say
from sordino.privacy.amplification import subsampling

RATE = 0.01
MULTIPLIER = 1.0
STEPS = 10_000
DELTA = 1e-5
TURNS = 5


def price_ours() -> float:
    """Prices steps on a fixed number of distinct records, replace one."""
    return subsampling.compose_fixed_batches(mu=1 / MULTIPLIER, rate=RATE, steps=STEPS).epsilon(
        DELTA
    )


def price_theirs() -> float:
    """Prices the sampled Gaussian, the event that dp_accounting has for such training."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    step = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(MULTIPLIER))
    return float(
        PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(step, STEPS)).get_epsilon(DELTA)
    )


def measure_seconds(work: Callable[[], float]) -> float:
    """Returns how long a piece of work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measures, and prints the result."""
    # The first calls import.
    price_ours()
    price_theirs()
    pairs = []
    for _ in range(TURNS):
        pairs.append((measure_seconds(price_ours), measure_seconds(price_theirs)))
    say(ours=[pair[0] for pair in pairs], theirs=[pair[1] for pair in pairs])


if __name__ == "__main__":
    main()
