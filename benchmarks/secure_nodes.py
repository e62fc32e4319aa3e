"""Measures a secure round against a plain one: `python -m benchmarks.secure_nodes --nodes 3`.

Two deployments on this machine, with TLS and keys, train the same tiny federation at the same time,
one of them behind secure sums: whatever else the machine does slows both alike. Seconds of a round
by the clock and by the processor, that of all processes of a deployment, without the first round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.nodes import PATIENCE, behind_secure_sums, federation, wait_until_connected
from sordino import Protocol, Run
from sordino.protocol import save_protocol
from tests.flower.lab import Lab, children_of

TICKS = os.sysconf("SC_CLK_TCK")
LOOK = 0.1


def count_processor_seconds(pids: list[int]) -> float:
    """Returns what some processes, all below them, and those of these that ended have taken."""
    ticks = 0
    for pid in [*pids, *children_of(pids)]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        # User and system, of the process itself and of its children that were waited for.
        ticks += sum(int(number) for number in fields[11:15])
    return ticks / TICKS


@dataclass(kw_only=True)
class Deployment:
    """One deployment that trains. It holds its processes and the seconds of each round's end.

    Attributes:
        lab: Its processes.
        folder: The run's folder.
        ends: After each round, what the processor has spent on it all.
    """

    lab: Lab
    folder: Path
    ends: list[float] = field(default_factory=list)

    def set_up(self, protocol: Protocol) -> None:
        """Starts link and nodes, and waits until they are connected."""
        lab = self.lab
        lab.secure(protocol.clients)
        lab.start_link()
        lab.register(protocol.clients)
        agreed = []
        if protocol.release.secure_sum is not None:
            agreed = ["--clients", lab.certificates / "clients.json"]
        lab.start_nodes(protocol, *agreed)
        wait_until_connected(lab, protocol.clients)
        save_protocol(protocol, lab.folder / "protocol.toml")

    def begin(self) -> None:
        """Begins to train."""
        reach = ["--superlink", self.lab.superlink.address]
        reach += ["--certificate", self.lab.superlink.certificate]
        limits = ["--patience", PATIENCE, "--deadline", PATIENCE]
        command = ["train", self.lab.folder / "protocol.toml", "--engine", "flower"]
        self.lab.spawn("train", [*command, *reach, *limits, "--out", self.folder])

    def look(self) -> bool:
        """Notes rounds that have ended; returns whether the training goes on."""
        goes_on = self.lab.processes["train"].poll() is None
        metrics = self.folder / "metrics.jsonl"
        ended = len(metrics.read_bytes().splitlines()) if metrics.exists() else 0
        if ended > len(self.ends):
            pids = [process.pid for process in self.lab.processes.values()]
            spent = count_processor_seconds(pids)
            self.ends += [spent] * (ended - len(self.ends))
        return goes_on

    def read_rounds(self) -> tuple[list[float], float]:
        """Returns the seconds of every round but the first, and those of the processor for one."""
        if self.lab.processes["train"].returncode != 0:
            raise RuntimeError(self.lab.log("train")[-3000:])
        run = Run.load(self.folder)
        if set(run.metrics["participants"].tolist()) != {run.protocol.clients}:
            raise RuntimeError("somebody was missing in a round")
        seconds = [float(one) for one in run.metrics["seconds"]][1:]
        return seconds, (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)


def main() -> None:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8, help="of the secure one")
    parser.add_argument("--plain", type=int, default=12, help="rounds of the plain one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        open_one = federation(given.nodes, given.plain, place / "records.npz")
        secure = behind_secure_sums(federation(given.nodes, given.rounds, place / "records.npz"))
        with Lab(place / "plain") as first, Lab(place / "secure") as second:
            deployments = [
                Deployment(lab=first, folder=place / "plain-run"),
                Deployment(lab=second, folder=place / "secure-run"),
            ]
            for deployment, protocol in zip(deployments, (open_one, secure), strict=True):
                deployment.set_up(protocol)
            for deployment in deployments:
                deployment.begin()
            while sum(deployment.look() for deployment in deployments) > 0:
                time.sleep(LOOK)
            found = [deployment.read_rounds() for deployment in deployments]
    for name, (seconds, processor) in zip(("plain", "behind secure sums"), found, strict=True):
        rounds = [round(one, 1) for one in seconds]
        print(f"{name}: {rounds} s, median {statistics.median(seconds):.2f}; {processor:.2f} s CPU")
    clock = statistics.median(found[1][0]) / statistics.median(found[0][0])
    print(
        f"{given.nodes} nodes: {clock:.2f} times by the clock, {found[1][1] / found[0][1]:.2f} by "
        f"the processor, load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
