"""Compares the native engine with alternatives: the work, the peers, and the speed required."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from benchmarks.driver import Contender, compare, take_turns
from benchmarks.results import Row

PLAIN = Contender(name="plain torch loop", module="benchmarks.peers.plain")
PFL = Contender(name="pfl-research", module="benchmarks.peers.pfl_research", environment="pfl")
PFL_TWO = replace(PFL, name="pfl-research, 2 processes", processes=2)
FLOWER = Contender(name="Flower on Ray", module="benchmarks.peers.flower", environment="flower")
OPACUS = Contender(
    name="Opacus in a plain loop", module="benchmarks.peers.opacus_loop", environment="opacus"
)
TORCH = Contender(
    name="torch engine, 2 workers", module="benchmarks.ours", options=("--engine", "torch")
)
NATIVE = Contender(
    name="native, 2 threads", module="benchmarks.ours", options=("--engine", "native")
)
NATIVE_ALONE = Contender(
    name="native, 1 thread",
    module="benchmarks.ours",
    options=("--engine", "native", "--workers", "1"),
)
NOISY = replace(NATIVE, module="benchmarks.noisy")
NOISY_ALONE = replace(NATIVE_ALONE, module="benchmarks.noisy")
NOISY_TORCH = Contender(
    name="torch, 1 worker",
    module="benchmarks.noisy",
    options=("--engine", "torch", "--workers", "1"),
)
LOTS = replace(NATIVE, module="benchmarks.lots")
OPACUS_LOTS = replace(OPACUS, name="Opacus, 2 threads", module="benchmarks.peers.opacus_lots")
COHORT = replace(NATIVE, module="benchmarks.cohort")
COHORT_TORCH = replace(TORCH, module="benchmarks.cohort")
PFL_COHORT = replace(PFL_TWO, module="benchmarks.peers.pfl_cohort")
MATMUL = Contender(name="matmul of 1024^3, 2 threads", module="benchmarks.matmul")
MATMUL_ALONE = Contender(
    name="matmul of 1024^3, 1 thread", module="benchmarks.matmul", options=("--workers", "1")
)

# Floating-point operations of one step of LeNet-5 on 32 images: forward, gradients of the weights,
# gradients of the inputs (not of the first layer); a multiplication and an addition for every
# weight and place.
LENET5_STEP = 48.5e6


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Some work, and for pairs of contenders the least ratio that is wanted."""

    work: str
    model: str
    steps: int
    wanted: dict[tuple[Contender, Contender], float]


COMPARISONS = (
    Comparison(
        work="LeNet-5, K=5",
        model="lenet5",
        steps=5,
        wanted={
            (NATIVE, PFL): 12,
            (NATIVE_ALONE, PFL): 7,
            (NATIVE, PFL_TWO): 5,
            (NATIVE, FLOWER): 17,
            (NATIVE, TORCH): 6,
            (NATIVE, MATMUL): 0.6,
            (NATIVE_ALONE, MATMUL_ALONE): 0.6,
        },
    ),
    Comparison(
        work="LeNet-5, K=50",
        model="lenet5",
        steps=50,
        wanted={(NATIVE, PFL): 12, (NATIVE, FLOWER): 8, (NATIVE, TORCH): 6},
    ),
    Comparison(
        work="mlp 64-32-10, K=50",
        model="mlp",
        steps=50,
        wanted={(NATIVE, PLAIN): 60, (NATIVE, PFL): 30},
    ),
    Comparison(
        work="logistic 784-10, K=50", model="logistic", steps=50, wanted={(NATIVE, PLAIN): 20}
    ),
    Comparison(
        work="PriFedSync's MNIST CNN, K=5",
        model="prifedsync-mnist",
        steps=5,
        wanted={(NATIVE, PLAIN): 2.5},
    ),
)

# Every example clipped, noise in every step: one thread or worker is compared core for core with
# Opacus.
NOISY_COMPARISONS = (
    Comparison(
        work="LeNet-5, K=5, noisy-sgd",
        model="lenet5",
        steps=5,
        wanted={(NOISY, OPACUS): 25, (NOISY_ALONE, OPACUS): 13, (NOISY_TORCH, OPACUS): 1.5},
    ),
)

CENTRAL_COMPARISONS = (
    Comparison(
        work="dp-sgd behind secure sums, lots of 2,000, logistic 3969-10",
        model="logistic",
        steps=1,
        wanted={(LOTS, OPACUS_LOTS): 5},
    ),
    Comparison(
        work="pfl-research's CIFAR-10 benchmark, cohort of 50, dropout",
        model="cnn",
        steps=5,
        wanted={(COHORT, PFL_COHORT): 3, (COHORT, COHORT_TORCH): 1},
    ),
)


def compared_rows(
    comparisons: Iterable[Comparison],
    options: argparse.Namespace,
    tell: Callable[[str], None],
    is_installed: Callable[[Contender, Callable[[str], None]], bool],
) -> Iterator[Row]:
    """Speed of our engines against each other and the peers."""
    for comparison in comparisons:
        pairs = {
            pair: least for pair, least in comparison.wanted.items() if is_installed(pair[1], tell)
        }
        contenders = list(dict.fromkeys(contender for pair in pairs for contender in pair))
        if not contenders:
            continue
        arguments = ["--steps", str(comparison.steps), "--model", comparison.model]
        say = lambda text, work=comparison.work: tell(f"{work}: {text}")  # noqa: E731
        turns = take_turns(
            contenders, arguments, turns=options.turns, seconds=options.seconds, tell=say
        )
        for (ours, other), least in pairs.items():
            if ours.name in turns and other.name in turns:
                found = compare(turns[ours.name], turns[other.name])
                of_the_machine = other in (MATMUL, MATMUL_ALONE)
                share, unit = (LENET5_STEP, 1e9) if of_the_machine else (1.0, 1.0)
                yield Row(
                    work=comparison.work,
                    engine=ours.name,
                    against=other.name,
                    ratio=found.ratio * share,
                    value=found.rate * share / unit,
                    other=found.other / unit,
                    unit="GFLOP/s" if of_the_machine else "client-steps/s",
                    at_least=least,
                    note=f"{found.cores * share:.3g} core for core, "
                    f"{found.calm} of {found.turns} turns calm",
                )
