"""Measures what secure sums add to a simulation: `python -m benchmarks.secure_simulation`.

The same federations with their uploads one by one and behind secure aggregation, on one thread of
the native engine, round by round in turn, so that whatever else the machine does slows both alike.
Seconds are those of the processor. Before that, how many draws of integers a second one core makes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.resources import files

import numpy as np

from sordino import Constant, Data, FedAvg, Gaussian, Model, Protocol
from sordino.federation.attendance import Attendance
from sordino.federation.round import Round, play_round
from sordino.federation.setup import Setup, prepare
from sordino.federation.state import first_state
from sordino.mechanisms.discrete_gaussian import draw_integers
from sordino.native.discrete_draws import draw_natively
from sordino.native.native_engine import NativeEngine
from sordino.protocol import Direct, Privacy, SecureAggregation, loads
from sordino.randomness import Key, Purpose

DRAWS = 1_000_000
SUMS = SecureAggregation(threshold=90)
# Uploads one by one, under normal noise and under noise of integers, and sums of the latter.
WAYS = ("floats", "integers", "sums")


def make_lenet(steps: int) -> Protocol:
    """Returns FedAvg of LeNet-5 on MNIST with 100 clients."""
    return Protocol(
        seed=1,
        clients=100,
        rounds=100,
        local=FedAvg(steps=steps, batch=32, clip=1.0, schedule=Constant(rate=0.1)),
        noise=Gaussian(sigma=0.01),
        data=Data(name="mnist", records=600),
        model=Model(name="lenet5", parameters=44_426),
        channel=SUMS,
    )


def read_example(name: str) -> Protocol:
    """Returns a protocol that comes with the package."""
    return loads((files("sordino") / "examples" / f"{name}.toml").read_text())


FEDERATIONS: dict[str, Callable[[], Protocol]] = {
    "digits": lambda: read_example("digits"),
    "secure-mnist": lambda: read_example("secure-mnist"),
    "LeNet-5, 5 steps": lambda: make_lenet(5),
    "LeNet-5, 50 steps": lambda: make_lenet(50),
}


def change_way(protocol: Protocol, way: str) -> Protocol:
    """Returns a federation behind secure sums with its uploads in one of the `WAYS`."""
    if way == "sums":
        return protocol
    noise = replace(protocol.noise, arithmetic=way)
    return replace(protocol, channel=Direct(), noise=noise, privacy=Privacy())


class Played:
    """A training that is played round by round. It holds where it is, and the seconds taken."""

    def __init__(self, setup: Setup) -> None:
        """Begins before the first round."""
        self._setup = setup
        self._engine = NativeEngine(setup, workers=1)
        self._state = first_state(setup)
        self._attendance = Attendance({}, (), next_round=0)
        self.seconds: list[float] = []

    def play(self) -> None:
        """Plays the next round."""
        began = time.process_time()
        record = play_round(Round(self._setup, self._state, self._attendance), self._engine)
        self.seconds.append(time.process_time() - began)
        self._state = record.after


def measure_federation(protocol: Protocol, rounds: int) -> dict[str, float]:
    """Returns the seconds of a round in each way, the median of several."""
    played = {way: Played(prepare(change_way(protocol, way))) for way in WAYS}
    for _ in range(rounds + 1):
        for one in played.values():
            one.play()
    # The first round fills caches and makes tables.
    return {way: statistics.median(one.seconds[1:]) for way, one in played.items()}


def measure_draws(draw: Callable[..., np.ndarray], digits: int) -> float:
    """Returns how many draws a second are made, the median of several times."""
    found = []
    for turn in range(6):
        stream = Key.from_seed(turn).stream(Purpose.UPLOAD_NOISE)
        began = time.process_time()
        draw(stream, 1, DRAWS, digits)
        found.append(DRAWS / (time.process_time() - began))
    return statistics.median(found[1:])


def print_draws(digits: Iterable[int]) -> None:
    """Prints how many draws are made."""
    for count in digits:
        natively = measure_draws(draw_natively, count) / 1e6
        numpy = measure_draws(draw_integers, count) / 1e6
        print(f"{count} digits: {natively:.0f} million draws a second, numpy {numpy:.0f} million")


def main() -> None:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=FEDERATIONS, default=list(FEDERATIONS))
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}; seconds of the processor, one thread")
    print_draws((1, 5, 12))
    for name in given.only:
        found = measure_federation(FEDERATIONS[name](), given.rounds)
        ratios = ", ".join(f"{found['sums'] / found[way]:.2f} times {way}" for way in WAYS[:2])
        seconds = ", ".join(f"{way} {found[way]:.4f}" for way in WAYS)
        print(f"{name}: {seconds} s a round; sums are {ratios}")


if __name__ == "__main__":
    main()
