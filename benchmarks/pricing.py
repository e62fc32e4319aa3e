"""Measures the processor seconds of `sordino certify` and `sordino calibrate` on every example.

The start of Python is included. Beside them, where dp_accounting has an event for the protocol, are
the seconds that its accountant takes for that, its import included. Each is the least of two runs,
since other work on the machine can only add to it. A separate process, which `__main__` runs.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import sordino
from benchmarks.serving import say
from sordino.protocol import Protocol
from sordino.protocol.file import read_protocol

EXAMPLES = sorted((Path(sordino.__file__).parent / "examples").glob("*.toml"))
TARGET = "4"
RUNS = 2
# Distributions where dp_accounting composes the event by them, else its Rényi accountant.
THEIRS = """
import sys
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from sordino.privacy.dp_events import dp_event
from sordino.protocol.file import read_protocol

event = dp_event(read_protocol(sys.argv[1]))
accountant = PLDAccountant()
if not accountant.supports(event):
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
accountant.compose(event).get_epsilon(1e-5)
"""


def processor_seconds(arguments: list[str]) -> float | None:
    """Returns the least processor seconds of a Python process; None where it refuses."""
    found = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            return None
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def make_target(protocol: Protocol) -> list[str]:
    """Returns the target of a calibration, in the view and unit of the budget if there is one."""
    budget = protocol.privacy.budget
    asked = []
    if budget is not None:
        asked = ["--view", str(budget.view), "--unit", budget.unit]
    return ["--epsilon", TARGET, *asked]


def main() -> None:
    """Prints the seconds of every example."""
    found = {}
    for path in EXAMPLES:
        command = ["-m", "sordino"]
        certify = processor_seconds([*command, "certify", str(path), "--json"])
        sought = make_target(read_protocol(path))
        calibrate = processor_seconds([*command, "calibrate", str(path), *sought, "--json"])
        theirs = processor_seconds(["-c", THEIRS, str(path)])
        found[path.stem] = {"certify": certify, "calibrate": calibrate, "theirs": theirs}
    say(examples=found)


if __name__ == "__main__":
    main()
