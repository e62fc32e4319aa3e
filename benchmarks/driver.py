"""Measures contenders in turns, so that other work of the machine slows all of them alike.

Contenders are processes. A ratio is taken within one turn of all of them, and the median of these
ratios is reported: speeds drift, ratios less.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import end, family, machine_seconds, processor_seconds, send
from benchmarks.serving import MARK

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".bench"
# A sample is calm if other processes used less than this share of the machine.
CALM = 0.08
SETTLING = (
    0.5  # seconds between waking a contender and measuring it, for what it has missed meanwhile
)


class Failed(Exception):
    """A contender did not answer; says what it wrote last."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Describes a module that is run as a process, with its options and its environment.

    Peers want other versions of what Sordino needs. Each has an environment to itself in .bench,
    pinned by the file of its name in benchmarks/peers, which `make bench` installs. With
    `processes` torchrun starts as many.
    """

    name: str
    module: str
    environment: str | None = None
    processes: int = 1
    options: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        """The interpreter that runs it."""
        if self.environment is None:
            return Path(sys.executable)
        return ENVIRONMENTS / self.environment / "bin" / "python"

    @property
    def command(self) -> list[str]:
        """The command that starts it."""
        if self.processes == 1:
            return [str(self.python), "-m", self.module, *self.options]
        torchrun = ["-m", "torch.distributed.run", "--standalone"]
        count = ["--nproc-per-node", str(self.processes)]
        return [str(self.python), *torchrun, *count, "-m", self.module, *self.options]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Holds client-steps per second of a turn, busy processors, and the share others used."""

    rate: float
    cores: float
    foreign: float

    @property
    def calm(self) -> bool:
        return self.foreign < CALM


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Compares the speeds of two contenders over the turns that were calm for both.

    All turns count if too few were calm.
    """

    rate: float
    other: float
    ratio: float
    cores: float  # the ratio by seconds of processors: what others take away counts for neither
    turns: int
    calm: int


class Server:
    """A contender's process, which runs rounds for as long as it is asked to. Made by `running`."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process, self._errors = process, errors

    def answer(self) -> dict[str, Any]:
        """The next thing it says; waits for it."""
        for line in self._process.stdout or ():
            if line.startswith(MARK):
                return dict(json.loads(line.removeprefix(MARK)))
        raise Failed(self._errors.read_text()[-2000:].strip())

    def halt(self) -> None:
        """Stops it and all that it started.

        Work between its turns, such as Ray's housekeeping, must not slow the others.
        """
        send(family(self._process.pid), signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it continue."""
        send(family(self._process.pid), signal.SIGCONT)

    def sample(self, seconds: float) -> Sample:
        """Lets it run rounds for about the given seconds, alone among the contenders."""
        self.go_on()
        time.sleep(SETTLING)
        try:
            return self._measured(seconds)
        finally:
            self.halt()

    def _measured(self, seconds: float) -> Sample:
        machine, own, started = (
            machine_seconds(),
            processor_seconds(self._process.pid),
            time.perf_counter(),
        )
        print(seconds, file=self._process.stdin, flush=True)
        rate = self.answer()["rate"]
        elapsed, used = time.perf_counter() - started, processor_seconds(self._process.pid) - own
        others = (machine_seconds() - machine) - used
        return Sample(
            rate=rate,
            cores=max(used, 0.01) / elapsed,
            foreign=max(0.0, others) / elapsed / len(os.sched_getaffinity(0)),
        )


@contextmanager
def running(contender: Contender, *arguments: str) -> Iterator[Server]:
    """A contender's process, ended together with all that it started."""
    with tempfile.TemporaryDirectory(prefix="sordino-bench-") as folder:
        errors = Path(folder) / "stderr"
        command = [*contender.command, *arguments]
        with errors.open("w") as log:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        server = Server(process, errors)
        try:
            yield server
        finally:
            server.go_on()
            members = family(process.pid)
            if process.stdin is not None:
                process.stdin.close()  # it ends when it is asked for nothing more
            end(members)
            process.wait()


def take_turns(
    contenders: list[Contender],
    arguments: list[str],
    *,
    turns: int,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, list[Sample]]:
    """Samples of every contender, one a turn; every second turn goes backwards.

    It ends after the given number of turns that were calm for all, or twice as many turns in all.
    A contender that cannot be started is said
    and left out; only the first, which the others are held against, must run.
    """
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for contender in contenders:
            tell(f"starting {contender.name}")
            server = stack.enter_context(running(contender, *arguments))
            try:
                server.answer()
            except Failed as failure:
                if contender is contenders[0]:
                    raise
                tell(f"{contender.name} does not run here and is left out:\n{failure}")
                continue
            server.halt()
            servers[contender.name] = server
        samples: dict[str, list[Sample]] = {name: [] for name in servers}
        calm = 0
        for turn in range(2 * turns):
            for name in list(servers)[:: 1 if turn % 2 == 0 else -1]:
                samples[name].append(servers[name].sample(seconds))
            latest = {name: taken[-1] for name, taken in samples.items()}
            shown = ", ".join(
                f"{name} {sample.rate:.0f}{'' if sample.calm else ' (busy)'}"
                for name, sample in latest.items()
            )
            tell(f"turn {turn + 1}: {shown}")
            calm += all(sample.calm for sample in latest.values())
            if calm == turns:
                break
    return samples


def compare(samples: list[Sample], others: list[Sample]) -> Comparison:
    """The median ratio of samples of the same turn."""
    pairs = list(zip(samples, others, strict=True))
    calm = [(one, other) for one, other in pairs if one.calm and other.calm]
    used = calm if len(calm) >= 3 else pairs
    return Comparison(
        rate=statistics.median(one.rate for one, _ in used),
        other=statistics.median(other.rate for _, other in used),
        ratio=statistics.median(one.rate / other.rate for one, other in used),
        cores=statistics.median(
            one.rate / other.rate * other.cores / one.cores for one, other in used
        ),
        turns=len(pairs),
        calm=len(calm),
    )
