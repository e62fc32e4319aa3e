"""Seconds to price 10,000 steps of subsampled noisy SGD, ours and dp_accounting's, in turn. A process of its own: run by `__main__`."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.serving import say
from sordino.privacy import subsampled

RATE, MULTIPLIER, STEPS, DELTA = 0.01, 1.0, 10_000, 1e-5
TURNS = 5


def ours() -> float:
    """Steps on a fixed number of distinct records, replace one."""
    return subsampled.fixed_size(mu=1 / MULTIPLIER, rate=RATE, steps=STEPS).epsilon(DELTA)


def theirs() -> float:
    """dp_accounting composes the sampled Gaussian, which is the event that it has for such training."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    step = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(MULTIPLIER))
    return float(
        PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(step, STEPS)).get_epsilon(DELTA)
    )


def seconds(work: Callable[[], float]) -> float:
    """How long a piece of work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    ours(), theirs()  # imports
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(TURNS)]
    say(ours=[pair[0] for pair in pairs], theirs=[pair[1] for pair in pairs])


if __name__ == "__main__":
    main()
