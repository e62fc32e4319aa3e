"""Measures what nodes cost: `python -m benchmarks.nodes --nodes 20 --rounds 3`.

Nodes with TLS and keys on this machine: memory of each while idle (the proportional share of what
processes have in common, as the system counts it), and seconds of a round of a tiny model, with
what all processes of the deployment computed for it, which a busy machine does not spoil. With
`--secure`, the same nodes then train the same federation behind secure sums. With `--idle` nothing
is trained, and with `--csv FILE` the memory is kept in a file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino import Constant, Data, FedAvg, Gaussian, Model, Protocol, Run, train
from sordino.engines.choice import SuperLink
from sordino.protocol import SecureAggregation
from tests.flower.lab import Lab, children_of

PATIENCE = 900.0


def proportional(pids: list[int], entry: str = "Pss") -> float:
    """Returns the megabytes that processes have, each with its share of what they share."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith(f"{entry}:"))
    return total / 1024


def processor_seconds(lab: Lab) -> float:
    """Returns what the processes of a deployment have computed, with those of them that ended."""
    started = [process.pid for process in lab.processes.values()]
    total = 0
    for pid in (os.getpid(), *started, *children_of(started)):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            # Of itself, and of its children that ended, in the system's ticks.
            total += sum(int(one) for one in fields[11:15])
    return total / os.sysconf("SC_CLK_TCK")


def federation(nodes: int, rounds: int, records: Path) -> Protocol:
    """Returns a tiny federation with fresh noise."""
    generator = np.random.default_rng(0)
    np.savez(
        records,
        x=generator.normal(size=(60 * nodes, 20)),
        y=generator.integers(0, 3, size=60 * nodes),
    )
    return Protocol(
        seed=1,
        clients=nodes,
        rounds=rounds,
        local=FedAvg(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3)),
        noise=Gaussian(sigma=0.05, secure=True),
        data=Data(name=str(records), records=40, classes=("0", "1", "2")),
        model=Model(name="mlp"),
    )


def behind_secure_sums(protocol: Protocol) -> Protocol:
    """Returns the same federation behind secure sums that one client may miss."""
    threshold = max(2, protocol.clients - 1)
    return replace(protocol, channel=SecureAggregation(threshold=threshold))


def train_over(lab: Lab, protocol: Protocol, folder: Path) -> Run:
    """Trains with the nodes of a lab, which must be connected."""
    link = SuperLink(
        address=lab.superlink.address,
        certificate=lab.superlink.certificate,
        patience=PATIENCE,
        deadline=PATIENCE,
    )
    return train(protocol, folder=folder, engine="flower", superlink=link, report=False)


def train_measured(what: str, lab: Lab, protocol: Protocol, folder: Path) -> None:
    """Trains, and prints how long the rounds took and what they computed."""
    before = processor_seconds(lab)
    run = train_over(lab, protocol, folder)
    computed = processor_seconds(lab) - before
    print_rounds(what, run)
    # With the start and the end of the training, so it is more than a round costs.
    print(f"{what}: {computed / protocol.rounds:.1f} s of processor a round, {computed:.0f} in all")


def print_rounds(what: str, run: Run) -> None:
    """Prints how long the rounds of a run took."""
    seconds = [float(one) for one in run.metrics["seconds"]]
    took = run.metrics["participants"].tolist()
    print(
        f"{what}: {[round(one, 1) for one in seconds]} s, median {statistics.median(seconds):.2f}, "
        f"contributions {took}, load {os.getloadavg()[0]:.1f}"
    )


def wait_until_connected(lab: Lab, nodes: int) -> None:
    """Waits until all nodes are connected."""
    end = time.monotonic() + PATIENCE
    for client in range(nodes):
        path = lab.client(client) / "flower" / "status.json"
        while not path.exists() or json.loads(path.read_bytes())["state"] != "connected":
            if time.monotonic() > end:
                raise TimeoutError(lab.log(f"node-{client}")[-2000:])
            time.sleep(0.2)


def keep_memory(path: Path | None, idle: list[float]) -> None:
    """Adds the megabytes of idle nodes to a file, if one is named."""
    if path is None:
        return
    new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(["nodes", "time", "mean_mb", "largest_mb", "load"])
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        load = os.getloadavg()[0]
        row = [f"{statistics.mean(idle):.0f}", f"{max(idle):.0f}", f"{load:.1f}"]
        writer.writerow([len(idle), now, *row])


def main() -> None:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--secure", action="store_true", help="also behind secure sums")
    parser.add_argument("--idle", action="store_true", help="measure memory alone")
    parser.add_argument("--csv", type=Path, help="file that memory is added to")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, Lab(Path(temporary) / "lab") as lab:
        protocol = federation(given.nodes, given.rounds, Path(temporary) / "records.npz")
        lab.secure(given.nodes)
        lab.start_link()
        lab.register(given.nodes)
        lab.start_nodes(protocol)
        wait_until_connected(lab, given.nodes)
        time.sleep(5)
        idle = []
        for client in range(given.nodes):
            keeper = lab.processes[f"node-{client}"].pid
            idle.append(proportional([keeper, *children_of([keeper])]))
        print(f"{given.nodes} nodes")
        print(f"idle: {statistics.mean(idle):.0f} MB each, at most {max(idle):.0f}")
        keep_memory(given.csv, idle)
        if given.idle:
            return
        train_measured("rounds", lab, protocol, Path(temporary) / "run")
        if given.secure:
            lab.forget_clients()
            secure = behind_secure_sums(protocol)
            lab.start_nodes(secure, "--clients", lab.certificates / "clients.json")
            wait_until_connected(lab, given.nodes)
            time.sleep(5)
            train_measured("behind secure sums", lab, secure, Path(temporary) / "secure-run")


if __name__ == "__main__":
    main()
