"""Measures how long a training across machines takes to be whole again.

It is run as `python -m benchmarks.recovery`. Two nodes with TLS and keys train without end;
something is done to one of them, to the SuperLink or to the network (a proxy between the second
node and the SuperLink that can be cut). Measured are the seconds until the first round ends to
which both contributed and that began afterwards. With `--csv FILE` every measurement is kept in a
file, and one that is there is not made again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path

from sordino import Constant, Data, FedAvg, Gaussian, Model, Protocol
from sordino.flower.client_store import ClientStore
from sordino.protocol import save_protocol
from tests.flower.lab import Lab, alive, children_of, free_port
from tests.flower.ledgers import find_losses, find_repeated_charges

DEADLINE = 30  # seconds that a round waits for who does not answer
ROUNDS = 2000
UNDISTURBED = "nothing: a round"


class Wire:
    """A proxy on this machine that can be cut: bytes stop, connections stay, as with a firewall."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._whole = threading.Event()
        self._whole.set()
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Lets nothing pass any more."""
        self._whole.clear()

    def mend(self) -> None:
        """Lets everything pass again."""
        self._whole.set()

    def _serve(self) -> None:
        while True:
            near, _ = self._listening.accept()
            self._whole.wait()
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while part := source.recv(65_536):
                self._whole.wait()
                sink.sendall(part)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class Trial:
    """A training of two nodes that goes on while something happens to it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.run = folder / "run"
        local = FedAvg(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3))
        data = Data(name="digits", records=40)
        noise = Gaussian(sigma=0.05, secure=True)
        self.protocol = Protocol(
            seed=3, clients=2, rounds=ROUNDS, local=local, noise=noise, data=data,
            model=Model(name="mlp"),
        )  # fmt: skip
        self.folder = folder

    def begin(self) -> None:
        """Starts everything and waits for two whole rounds."""
        lab = self.lab
        lab.secure(2)
        lab.start_link()
        lab.register(2)
        self.wire = Wire(lab.port)
        for client in range(2):
            lab.agree(client, self.protocol)
        path = lab.client(1) / "agreement.toml"
        path.write_text(
            path.read_text().replace(f"127.0.0.1:{lab.port}", f"127.0.0.1:{self.wire.port}")
        )
        for client in range(2):
            lab.start_node(client)
        save_protocol(self.protocol, self.folder / "protocol.toml")
        trusted = ["--certificate", lab.certificates / "ca.crt"]
        lab.spawn(
            "train",
            ["train", self.folder / "protocol.toml", "--engine", "flower", "--out", self.run,
             "--superlink", f"127.0.0.1:{lab.port}", *trusted, "--deadline", DEADLINE,
             "--patience", 300],
        )  # fmt: skip
        self.wait_for_whole_round(0)
        self.wait_for_whole_round(self.rounds())

    def metrics(self) -> list[dict[str, float]]:
        """Returns the facts of every round that has ended."""
        path = self.run / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def rounds(self) -> int:
        """Returns how many rounds have begun."""
        path = self.run / "ledger.jsonl"
        return path.read_text().count('"event":"round"') if path.exists() else 0

    def wait_for_whole_round(self, after: int, seconds: float = 900.0) -> None:
        """Waits for the end of a round of both clients that began after some rounds had."""
        end = time.monotonic() + seconds
        while not any(row["round"] >= after and row["participants"] == 2 for row in self.metrics()):
            if time.monotonic() > end:
                raise TimeoutError(self.lab.log("train")[-2000:])
            time.sleep(0.05)

    def seconds_of_a_round(self, rounds: int = 8) -> float:
        """Returns the seconds that a round takes when nothing happens."""
        before = len(self.metrics())
        self.wait_for_whole_round(before)
        began = time.monotonic()
        first = len(self.metrics())
        while len(self.metrics()) < first + rounds:
            time.sleep(0.02)
        return (time.monotonic() - began) / rounds

    def processes(self, client: int) -> dict[str, int]:
        """Returns the processes of a node: its keeper, its SuperNode, the loaded one."""
        keeper = self.lab.processes[f"node-{client}"].pid
        status = json.loads((self.lab.client(client) / "flower" / "status.json").read_bytes())
        others = [pid for pid in children_of([keeper]) if pid != status["node"]]
        return {"keeper": keeper, "node": status["node"], "loaded": others[0] if others else 0}

    def repeated_charges(self) -> list[str]:
        """Returns the rounds that a client or the coordinator charged more than once."""
        return find_repeated_charges(self.run, self.stores())

    def losses(self) -> list[str]:
        """Returns what one side's ledger knows and the other's does not."""
        return find_losses(self.run, self.stores())

    def stores(self) -> list[ClientStore]:
        """Returns the clients' folders."""
        return [ClientStore(self.lab.client(client)) for client in range(2)]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_node(trial: Trial, client: int = 1) -> None:
    """Kills a node's SuperNode."""
    kill(trial.processes(client)["node"])


def kill_client(trial: Trial, client: int = 1) -> None:
    """Kills the process that computes, with what it forked, while it has a task."""
    loaded = 0
    family: dict[int, str] = {}
    while not family:
        loaded = trial.processes(client)["loaded"]
        family = children_of([loaded]) if loaded else {}
    for pid in alive(family):
        kill(pid)


def freeze_node(trial: Trial, client: int = 1) -> None:
    """Stops a SuperNode without ending it."""
    os.kill(trial.processes(client)["node"], signal.SIGSTOP)


def kill_everything(trial: Trial, client: int = 1) -> None:
    """Kills a node with its keeper, as a power cut would, and starts it as a service does."""
    trial.lab.kill(f"node-{client}")
    trial.lab.start_node(client)


def kill_link(trial: Trial, client: int = 1) -> None:
    """Kills the SuperLink, and starts it as `sordino flower up` does."""
    trial.lab.kill("link")
    time.sleep(1.0)
    trial.lab.start_link()


def cut(seconds: float):
    """Returns what cuts the network of the second node for some seconds."""

    def act(trial: Trial, client: int = 1) -> None:
        trial.wire.cut()
        time.sleep(seconds)
        trial.wire.mend()

    return act


FAULTS = {
    "client process killed": kill_client,
    "SuperNode killed": kill_node,
    "node and keeper killed": kill_everything,
    "SuperNode frozen (SIGSTOP)": freeze_node,
    "network cut, 20 s": cut(20),
    "network cut, 90 s": cut(90),
    "SuperLink killed": kill_link,
    "network cut, 300 s": cut(300),
}


COLUMNS = ("fault", "time", "seconds_after", "seconds_in_all", "charged_twice", "lost", "load")


def read_measured(path: Path | None) -> list[dict[str, str]]:
    """Returns the measurements that a file holds; none where there is no file."""
    if path is None or not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def keep_measured(path: Path | None, row: dict[str, str]) -> None:
    """Adds a measurement to a file."""
    if path is None:
        return
    new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def measure(trial: Trial, fault: str) -> dict[str, str]:
    """Does something to a training and returns how long it took to be whole again."""
    began = time.monotonic()
    if fault != UNDISTURBED:
        FAULTS[fault](trial)
    acted = time.monotonic()
    if fault == UNDISTURBED:
        after = trial.seconds_of_a_round()
    else:
        trial.wait_for_whole_round(trial.rounds())
        after = time.monotonic() - acted
    return {
        "fault": fault,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds_after": f"{after:.1f}",
        "seconds_in_all": f"{time.monotonic() - began:.1f}",
        "charged_twice": "yes" if trial.repeated_charges() else "no",
        "lost": "yes" if trial.losses() else "no",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def main() -> None:
    """Measures all faults, or those that are named, as often as asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[UNDISTURBED, *FAULTS])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    done = [row["fault"] for row in read_measured(given.csv)]
    waiting = [
        fault for time_ in range(given.times) for fault in given.only if done.count(fault) <= time_
    ]
    if not waiting:
        return
    with tempfile.TemporaryDirectory() as temporary, Lab(Path(temporary) / "lab") as lab:
        trial = Trial(lab, Path(temporary))
        trial.begin()
        for fault in waiting:
            row = measure(trial, fault)
            keep_measured(given.csv, row)
            print(
                f"{fault}: {row['seconds_after']} s after it was over, "
                f"{row['seconds_in_all']} s in all; charged twice: {row['charged_twice']}; "
                f"lost: {row['lost']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
