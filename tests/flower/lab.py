"""A deployment on this machine: one SuperLink and some SuperNodes, on free ports of 127.0.0.1, each ended by its id."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from sordino.cli.main import run as sordino
from sordino.engines.choice import SuperLink
from sordino.flower.flower_commands import CONNECTION, run_flwr, write_connection
from sordino.flower.flower_commands import make_environment as flower_environment
from sordino.protocol import Protocol, save_protocol

SLOW = 180.0  # seconds that anything may take on a loaded machine


def free_port() -> int:
    """A port that nothing listens on, below those that systems hand out by themselves: nobody takes it before it is used."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


# Addresses that nobody has, to which a machine would send from its own.
ELSEWHERE = {socket.AF_INET: "198.51.100.1", socket.AF_INET6: "2001:db8::1"}


def find_own_address(family: socket.AddressFamily = socket.AF_INET) -> str | None:
    """The address under which other machines would reach this one; None where it has no network."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
        # Only the way is looked up: nothing is sent.
        asking.connect((ELSEWHERE[family], 9))
        found = str(asking.getsockname()[0])
        if not ip_address(found).is_loopback:
            return found
    return None


def started_at(pid: int) -> str | None:
    """When a process was started, which tells it from a later one with the same id; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def children_of(pids: Sequence[int]) -> dict[int, str]:
    """All processes below these, with when they were started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = list(pids)
    while waiting:
        for child in parents.get(waiting.pop(), []):
            start = started_at(child)
            if start is not None:
                found[child] = start
                waiting.append(child)
    return found


def alive(family: dict[int, str]) -> list[int]:
    """Those of some processes that have not ended."""
    return [pid for pid, start in family.items() if started_at(pid) == start]


class Lab:
    """Starts, watches and ends the processes of one deployment. It holds them: use it as a context."""

    def __init__(self, folder: Path, *, watched: bool = False) -> None:
        self.folder, self.port, self.watched = folder, free_port(), watched
        self.certificates: Path | None = None
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def superlink(self) -> SuperLink:
        certificate = None if self.certificates is None else str(self.certificates / "ca.crt")
        return SuperLink(
            address=f"127.0.0.1:{self.port}",
            certificate=certificate,
            patience=SLOW,
            deadline=2 * SLOW,
        )

    def spawn(self, name: str, arguments: Sequence[object]) -> subprocess.Popen[bytes]:
        """Start a command of sordino's."""
        return self.spawn_any(
            name, [sys.executable, "-m", "sordino", *map(str, arguments)], dict(os.environ)
        )

    def spawn_any(
        self, name: str, command: list[str], env: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a command; what it says goes to a file."""
        env = {**env, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        if self.watched:  # every connect of the process and of all that it starts
            command = [
                "strace",
                "-f",
                "-qq",
                "-e",
                "trace=connect",
                "-o",
                str(self.folder / f"{name}.trace"),
                *command,
            ]
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def secure(self, clients: int) -> None:
        """Make certificates, and keys for so many nodes."""
        assert sordino(["flower", "certificates", str(self.folder), "--host", "127.0.0.1"]) == 0
        self.certificates = self.folder / "certificates"
        for client in range(clients):
            assert sordino(["flower", "key", str(self.key(client))]) == 0

    def key(self, client: int) -> Path:
        return self.folder / "keys" / f"{client}.key"

    def flower(self, *arguments: object) -> dict[str, Any]:
        """What Flower's own command says about the SuperLink."""
        home = self.folder / "home"
        write_connection(home, self.superlink.address, self.superlink.certificate)
        return run_flwr(home, [str(argument) for argument in arguments])

    def submit(self, app: Path, **settings: object) -> str:
        """`flwr run` with these settings; the number of the run."""
        config = " ".join(
            f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in settings.items()
        )
        return str(self.flower("run", app, CONNECTION, "--run-config", config)["run-id"])

    def ended(self, number: str) -> str:
        """How a run ended, once it has."""
        end, status = time.monotonic() + 3 * SLOW, ""
        while not status.startswith("finished"):
            if time.monotonic() > end:
                raise TimeoutError(f"run {number} is {status}: {self.log('link')[-3000:]}")
            time.sleep(1.0)
            status = self.flower("list", "--run-id", number, CONNECTION)["runs"][0]["status"]
        return status

    @property
    def online(self) -> list[str]:
        """The nodes that the SuperLink counts as there."""
        nodes = self.flower("supernode", "list", CONNECTION)["nodes"]
        return [node["node-id"] for node in nodes if node["status"] == "online"]

    def start_link(self) -> None:
        """Start the SuperLink; whatever needs it waits for it."""
        secured = ["--insecure"] if self.certificates is None else []
        self.spawn("link", ["flower", "link", self.folder, "--port", self.port, *secured])

    def register(self, clients: int) -> None:
        """Tell the SuperLink which nodes may connect."""
        self.wait_for_link()
        keys = [str(self.key(client)) + ".pub" for client in range(clients)]
        assert (
            sordino(
                [
                    "flower",
                    "register",
                    str(self.folder),
                    *keys,
                    "--superlink",
                    f"127.0.0.1:{self.port}",
                ]
            )
            == 0
        )

    def wait_for_link(self) -> None:
        """Wait until the SuperLink answers."""
        trusted = (
            None
            if self.certificates is None
            else ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))
        )
        url = f"http{'' if trusted is None else 's'}://127.0.0.1:{self.port}/health"
        end = time.monotonic() + SLOW
        while time.monotonic() < end:
            if self.processes["link"].poll() is not None:
                raise RuntimeError("the SuperLink ended: " + self.log("link")[-3000:])
            try:
                with urllib.request.urlopen(url, timeout=2, context=trusted) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError(self.log("link")[-3000:])

    def agree(self, client: int, protocol: Protocol, *more: object) -> Path:
        """The folder of a client that agrees to a protocol."""
        file, folder = self.folder / f"agreed-{client}.toml", self.client(client)
        save_protocol(protocol, file)
        options = ["--client", client, "--superlink", f"127.0.0.1:{self.port}", *more]
        if self.certificates is not None:
            options += ["--certificate", self.certificates / "ca.crt", "--key", self.key(client)]
        assert sordino(["flower", "agree", str(file), str(folder), *map(str, options)]) == 0
        return folder

    def client(self, client: int) -> Path:
        return self.folder / f"client-{client}"

    def start_node(self, client: int) -> subprocess.Popen[bytes]:
        self.wait_for_link()
        secured = ["--insecure"] if self.certificates is None else []
        return self.spawn(
            f"node-{client}",
            ["flower", "node", self.client(client), "--port", free_port(), *secured],
        )

    def start_stranger(self, name: str, *options: object) -> subprocess.Popen[bytes]:
        """A SuperNode that is started without Sordino."""
        self.wait_for_link()
        command = [
            Path(sys.executable).with_name("flower-supernode"),
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--host",
            "127.0.0.1",
        ]
        arguments = [*command, "--port", free_port(), "--max-retries", 1, *options]
        return self.spawn_any(
            name, [str(part) for part in arguments], flower_environment(self.folder / name)
        )

    def forget_clients(self) -> None:
        """End the nodes and their agreements, so that others can be made."""
        self.end(*[name for name in self.processes if name.startswith("node-")])
        for folder in self.folder.glob("client-*"):
            shutil.rmtree(folder)

    def start_nodes(self, protocol: Protocol, *agreed: object) -> None:
        for client in range(protocol.clients):
            self.agree(client, protocol, *agreed)
        for client in range(protocol.clients):
            self.start_node(client)

    def wait_until(self, name: str, pattern: str, seconds: float = SLOW) -> None:
        """Wait until a process has said something."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.log(name)):
            if time.monotonic() > end:
                raise TimeoutError(f"{name} never said {pattern!r}: {self.log(name)[-3000:]}")
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """End a process at once, as a power cut would, with all that it started."""
        process = self.processes.pop(name)
        family = children_of([process.pid])
        process.kill()
        process.wait()
        for pid in alive(family):
            os.kill(pid, signal.SIGKILL)

    def freeze(self, name: str) -> None:
        """Stop a process and all that it started, without ending them."""
        pid = self.processes[name].pid
        for each in (pid, *children_of([pid])):
            os.kill(each, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let them go on."""
        pid = self.processes[name].pid
        for each in (*children_of([pid]), pid):
            os.kill(each, signal.SIGCONT)

    def stop(self) -> None:
        """End everything."""
        self.end(*reversed(self.processes))

    def end(self, *names: str) -> None:
        """End processes with all that they started, by ids, politely at first."""
        ended = [self.processes.pop(name) for name in names]
        family: dict[int, str] = {}
        for process in ended:
            family |= children_of([process.pid])
            process.terminate()
        end = time.monotonic() + 20
        while time.monotonic() < end and (
            any(process.poll() is None for process in ended) or alive(family)
        ):
            family |= children_of(
                [*(process.pid for process in ended), *family]
            )  # who is ending may start something still
            time.sleep(0.1)
        for process in ended:
            process.kill()
            process.wait()
        for pid in alive(family):
            os.kill(pid, signal.SIGKILL)
