"""Seconds of processor that `sordino certify` and `sordino calibrate` take on every example, start of Python included.

Beside them, where dp_accounting has an event for the protocol, the seconds that its accountant takes for that, its import included.
A process of its own: run by `__main__`.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import sordino
from benchmarks.serving import say
from sordino.protocol import Protocol
from sordino.protocol.file import read

EXAMPLES = sorted((Path(sordino.__file__).parent / "examples").glob("*.toml"))
TARGET = "4"
THEIRS = (
    "import sys; from dp_accounting.pld import PLDAccountant; from sordino.privacy.events import dp_event; "
    "from sordino.protocol.file import read; "
    "PLDAccountant().compose(dp_event(read(sys.argv[1]))).get_epsilon(1e-5)"
)


def processor_seconds(arguments: list[str]) -> float | None:
    """Returns the seconds of processor of a Python process; None where it refuses."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent if done.returncode == 0 else None


def target_of(protocol: Protocol) -> list[str]:
    """Returns the target of a calibration: in the view and for the unit of the budget, where there is one."""
    budget = protocol.privacy.budget
    asked = [] if budget is None else ["--view", str(budget.view), "--unit", budget.unit]
    return ["--epsilon", TARGET, *asked]


def main() -> None:
    found = {}
    for path in EXAMPLES:
        command = ["-m", "sordino"]
        certify = processor_seconds([*command, "certify", str(path), "--json"])
        sought = target_of(read(path))
        calibrate = processor_seconds([*command, "calibrate", str(path), *sought, "--json"])
        theirs = processor_seconds(["-c", THEIRS, str(path)])
        found[path.stem] = {"certify": certify, "calibrate": calibrate, "theirs": theirs}
    say(examples=found)


if __name__ == "__main__":
    main()
