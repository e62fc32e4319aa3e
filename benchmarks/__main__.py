"""Run the benchmarks: `python -m benchmarks [--only SECTION] [--seconds S] [--turns N]`.

The table goes to standard output, `bench.json` to the working directory, progress to standard
error. About fifteen minutes in all.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.driver import Contender, compare, running, take_turns
from benchmarks.native import (
    CENTRAL_COMPARISONS,
    COMPARISONS,
    FLOWER,
    NOISY_COMPARISONS,
    PFL,
    PLAIN,
    compared_rows,
)
from benchmarks.results import Row, table, write

OURS = Contender(name="sordino", module="benchmarks.ours")

ENGINE = "torch, 2 workers"

# Local steps K to the least wanted ratio against every peer.
WANTED = {5: {PLAIN: 1.7, PFL: 1.6, FLOWER: 2.0}, 50: {PLAIN: 1.7, PFL: 1.6, FLOWER: 1.2}}

Tell = Callable[[str], None]


def torch_rows(options: argparse.Namespace, tell: Tell) -> Iterator[Row]:
    """Speed of the torch engine against the peers."""
    for steps, wanted in WANTED.items():
        peers = [peer for peer in wanted if is_installed(peer, tell)]
        turns = take_turns(
            [OURS, *peers],
            ["--steps", str(steps)],
            turns=options.turns,
            seconds=options.seconds,
            tell=lambda text, k=steps: tell(f"K={k}: {text}"),
        )
        for peer in (peer for peer in peers if peer.name in turns):
            found = compare(turns[OURS.name], turns[peer.name])
            yield Row(
                work=f"LeNet-5, 20 clients, K={steps}",
                engine=ENGINE,
                against=peer.name,
                ratio=found.ratio,
                value=found.rate,
                other=found.other,
                unit="client-steps/s",
                at_least=wanted[peer],
                note=f"{found.cores:.3g} core for core, {found.calm} of {found.turns} turns calm",
            )


def is_installed(peer: Contender, tell: Tell) -> bool:
    """Whether a peer's package is there; says so if not."""
    there = peer.python.exists()
    if not there:
        tell(f"{peer.name} is left out: {peer.python} is not there. `make bench` installs it.")
    return there


def memory_rows(options: argparse.Namespace, tell: Tell) -> Iterator[Row]:
    """Memory of 500 clients, in all and over the rounds."""
    tell("memory: 500 clients, 20 rounds")
    found = answer("benchmarks.memory")
    work = f"memory, 500 clients on {found['data']}"
    late, early = [found["late"]], [found["early"]]
    yield row(
        work,
        "1.5 GiB",
        late,
        [1536.0],
        "MiB",
        at_most=1.0,
        note=f"sum of peaks {found['peak']:,.0f} MiB",
    )
    yield row(f"{work}, after round 20", "after round 2", late, early, "MiB", at_most=1.05)


def scaling_rows(options: argparse.Namespace, tell: Tell) -> Iterator[Row]:
    """Seconds per round, first with more clients that do not take part, then with more that do."""
    tell("scaling: 100, 1,000 and 10,000 clients")
    seconds = {
        (entry["clients"], entry["participants"]): entry["seconds"]
        for entry in answer("benchmarks.scaling")["rounds"]
    }
    for clients in (1_000, 10_000):
        yield row(
            f"round of 20 out of {clients:,} clients",
            "20 out of 100",
            seconds[clients, 20],
            seconds[100, 20],
            "s",
            at_most=1.1,
        )
    for size in (20, 40):
        pair = seconds[1_000, size], seconds[1_000, size // 2]
        yield row(
            f"round of {size} out of 1,000 clients",
            f"{size // 2} out of 1,000",
            *pair,
            "s",
            at_most=2.1,
        )


def central_rows(options: argparse.Namespace, tell: Tell) -> Iterator[Row]:
    """Central noise and secure sums: against peers, and the seconds of a whole training."""
    yield from compared_rows(CENTRAL_COMPARISONS, options, tell, is_installed)
    tell("central: 900 rounds of dp-sgd on MNIST")
    found = answer("benchmarks.long_training")
    if not found["seconds"]:
        tell("it is left out: SORDINO_DATA names no folder with MNIST")
        return
    said = f"accuracy {found['accuracy']:.1%}, {found['processor']:.0f} s of processors"
    timed = row(
        "900 rounds of dp-sgd, 100 clients, scattering features of MNIST",
        "120 s",
        [found["seconds"]],
        [120.0],
        "s",
        at_most=1.0,
        note=said,
    )
    yield replace(timed, engine="native, 2 threads")


def growth_rows(options: argparse.Namespace, tell: Tell) -> Iterator[Row]:
    """Measures rounds of the native engine at one, two and four times the size."""
    tell("growth: native rounds")
    found = {
        (entry["clients"], entry["steps"], entry["width"]): entry["seconds"]
        for entry in answer("benchmarks.growth")["rounds"]
    }
    base = min(found)
    for place, what in enumerate(("clients", "steps", "hidden units")):
        for factor in (2, 4):
            larger, smaller = (
                tuple(size * (f if i == place else 1) for i, size in enumerate(base))
                for f in (factor, factor // 2)
            )
            name = f"native round, {larger[place]} {what}"
            pair = found[larger], found[smaller]
            yield replace(
                row(name, f"{smaller[place]} {what}", *pair, "s", at_most=2.2),
                engine="native kernel, 1 thread",
            )


def many_rows(options: argparse.Namespace, tell: Tell) -> Iterator[Row]:
    """Seconds of 200 small trainings in one call, against as many calls."""
    tell("many: 200 trainings")
    found = answer("benchmarks.many")
    for place, where, least in (("memory", "in memory", 5.0), ("folders", "in run folders", 1.5)):
        ratio = statistics.median(
            alone / together for alone, together in zip(found["alone"], found[place], strict=True)
        )
        middle = {
            "value": statistics.median(found[place]),
            "other": statistics.median(found["alone"]),
        }
        work = f"200 trainings of digits, {where}"
        yield Row(
            work=work,
            engine="train_many",
            against="train, in run folders",
            ratio=ratio,
            **middle,
            unit="s",
            at_least=least,
        )


def audit_rows(options: argparse.Namespace, tell: Tell) -> Iterator[Row]:
    """Seconds of an audit of a worst case."""
    tell("audit: 10,000 trainings of a worst case")
    found = answer("benchmarks.audits")
    spent = f"{statistics.median(found['processor']):.1f} s of processors"
    work = "audit of a worst case, 20 clients, 100 rounds, 10,000 trainings"
    timed = row(
        work, "10 s", found["seconds"], [10.0] * len(found["seconds"]), "s", at_most=1.0, note=spent
    )
    yield replace(timed, engine="side by side, 2 processes")


def accounting_rows(options: argparse.Namespace, tell: Tell) -> Iterator[Row]:
    """Seconds to price 10,000 subsampled steps."""
    tell("accounting: 10,000 steps of subsampled noisy SGD")
    found = answer("benchmarks.accounting")
    priced = row(
        "pricing 10,000 subsampled steps",
        "dp_accounting",
        found["ours"],
        found["theirs"],
        "s",
        at_most=1.0,
    )
    yield replace(priced, engine="sordino.privacy")
    yield from pricing_rows(tell)


def pricing_rows(tell: Tell) -> Iterator[Row]:
    """Measures certify and calibrate on every example, against the seconds that they may take."""
    tell("accounting: certify and calibrate of every example")
    for name, spent in answer("benchmarks.pricing")["examples"].items():
        theirs = spent["theirs"]
        note = "dp_accounting has no such event" if theirs is None else f"its event: {theirs:.2f} s"
        for command, limit in (("certify", 1.0), ("calibrate", 1.5)):
            if spent[command] is None:
                continue
            timed = row(
                f"{command} {name}", f"{limit} s", [spent[command]], [limit], "s", at_most=1.0
            )
            yield replace(timed, engine="sordino, seconds of processor", note=note)


def row(
    work: str,
    against: str,
    values: list[float],
    others: list[float],
    unit: str,
    *,
    at_most: float,
    note: str = "",
) -> Row:
    """A row of values that were measured in turn."""
    ratio = statistics.median(value / other for value, other in zip(values, others, strict=True))
    middle = {"value": statistics.median(values), "other": statistics.median(others)}
    return Row(
        work=work,
        engine=ENGINE,
        against=against,
        ratio=ratio,
        **middle,
        unit=unit,
        at_most=at_most,
        note=note,
    )


def answer(module: str) -> dict[str, Any]:
    """What a measurement that runs by itself in a process says at its end."""
    with running(Contender(name=module, module=module)) as server:
        return server.answer()


SECTIONS = {
    "torch": torch_rows,
    "noisy": lambda options, tell: compared_rows(NOISY_COMPARISONS, options, tell, is_installed),
    "native": lambda options, tell: compared_rows(COMPARISONS, options, tell, is_installed),
    "central": central_rows,
    "growth": growth_rows,
    "many": many_rows,
    "audit": audit_rows,
    "memory": memory_rows,
    "scaling": scaling_rows,
    "accounting": accounting_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Speed, memory and scaling of a training, against the alternatives.",
    )
    parser.add_argument("--only", choices=SECTIONS, help="run one part")
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="of every contender's turn; a round is always finished",
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=5,
        help="how often the contenders alternate on a calm machine; on a busy one up to twice",
    )
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contenders are ended too
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    rows: list[Row] = []
    for name, section in SECTIONS.items():
        if options.only in (None, name):
            rows.extend(section(options, progress.print))
    console = Console(highlight=False)
    console.width = max(console.width, 140)
    console.print(table(rows))
    write(rows, options.out)


if __name__ == "__main__":
    main()
