"""Reads processor time and memory of a process and its descendants, and ends them by their ids.

It reads /proc, so that it works on Linux only.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")

# Process id and the tick at which it was started: an id may be used again.
Identity = tuple[int, int]


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/<pid>/stat; none if the process is gone."""
    # The name comes first, in brackets, and may hold blanks: fields are counted from its end.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def family(pid: int) -> list[Identity]:
    """Returns a process and all its living descendants, parents first."""
    stats = {int(entry): _stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
    members = [pid]
    # The list grows while it is read: children of children are found as well.
    for member in members:
        members.extend(child for child, stat in stats.items() if stat and int(stat[1]) == member)
    return [(member, int(stats[member][19])) for member in members if stats.get(member)]


def processor_seconds(pid: int) -> float:
    """Returns the processor time that a process and its living descendants have used."""
    stats = (_stat(member) for member, _ in family(pid))
    return sum(int(stat[11]) + int(stat[12]) for stat in stats if stat) / TICKS


def machine_seconds() -> float:
    """Returns the processor time that the machine has used, or that its host took from it."""
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen, *_guests = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft_interrupts + stolen) / TICKS


def memory(pid: int) -> tuple[float, float]:
    """Returns MiB held by a process and its descendants, and the sum of their peaks.

    Pages that processes share are counted once in the first (PSS). The second is an upper bound,
    since shared pages count in every process.
    """
    held = 0
    peak = 0
    for member, _ in family(pid):
        with suppress(OSError):
            held += _kib(Path(f"/proc/{member}/smaps_rollup"), "Pss:")
            peak += _kib(Path(f"/proc/{member}/status"), "VmHWM:")
    return held / 1024, peak / 1024


def _kib(file: Path, field: str) -> int:
    return next(
        int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(field)
    )


def send(members: list[Identity], number: signal.Signals) -> None:
    """Sends a signal to processes that are still there, such as one to stop or to continue."""
    for member in members:
        with suppress(ProcessLookupError):
            if _lives(member):
                os.kill(member[0], number)


def end(members: list[Identity], patience: float = 10.0) -> None:
    """Waits for processes to end, and kills those that do not."""
    deadline = time.monotonic() + patience
    while (
        alive := [member for member in members if _lives(member)]
    ) and time.monotonic() < deadline:
        time.sleep(0.1)
    send(alive, signal.SIGKILL)


def _lives(member: Identity) -> bool:
    stat = _stat(member[0])
    # A zombie has ended, and an id with another start is another process.
    return bool(stat) and int(stat[19]) == member[1] and stat[0] != "Z"
