"""The two programs that keep running: the SuperLink, where machines meet, and a client's SuperNode. Secured unless said otherwise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sordino.engines.flower.certificates import AUTHORITY, SERVER, SERVER_KEY
from sordino.engines.flower.custody import Custodian
from sordino.engines.flower.guard import FOLDER
from sordino.engines.flower.pinned import write_programs
from sordino.engines.flower.processes import command, environment, flwr, write_connection
from sordino.federation.storage import writing
from sordino.protocol import UserError

STARTS = 8  # how often a node is started that is turned away
PAUSE = 15.0  # seconds between two starts
SOON = 60.0  # seconds; a node that ran for longer had been let in


def link_command(folder: Path, host: str, port: int, *, insecure: bool) -> list[str]:
    """How the SuperLink is started: with TLS, for nodes whose keys it knows, remembering them over a restart."""
    secured = ["--insecure"]
    if not insecure:
        files = {
            "--ssl-ca-certfile": AUTHORITY,
            "--ssl-certfile": SERVER,
            "--ssl-keyfile": SERVER_KEY,
        }
        secured = [
            part
            for option, name in files.items()
            for part in (option, str(found(folder / "certificates" / name)))
        ]
        secured.append("--enable-supernode-auth")
    kept = [
        "--database",
        str(folder.absolute() / "link.db"),
        "--disable-runtime-dependency-installation",
    ]
    return [command("flower-superlink"), "--host", host, "--port", str(port), *secured, *kept]


def node_command(custodian: Custodian, port: int, *, insecure: bool) -> list[str]:
    """How a client's SuperNode is started: it trusts one authority, and shows the SuperLink its key."""
    agreement, folder = custodian.agreement, custodian.folder
    if agreement.superlink is None:
        raise UserError(
            f"{folder}: the agreement does not name a superlink. Add it to agreement.toml."
        )
    secured = ["--insecure"]
    if not insecure:
        if agreement.certificate is None or agreement.key is None:
            missing = "certificate" if agreement.certificate is None else "key"
            raise UserError(
                f"{folder}: the agreement names no {missing}. Add it to agreement.toml, or for a test use --insecure."
            )
        secured = ["--root-certificates", str(found(Path(agreement.certificate)))]
        secured += ["--auth-supernode-private-key", str(found(Path(agreement.key)))]
    place = ["--superlink", agreement.superlink, "--host", "127.0.0.1", "--port", str(port)]
    return [
        command("flower-supernode"),
        *place,
        *secured,
        "--node-config",
        f"{FOLDER}={json.dumps(str(folder.absolute()))}",
    ]


def run_link(folder: Path, host: str, port: int, *, insecure: bool) -> None:
    """Become the SuperLink."""
    called = link_command(folder, host, port, insecure=insecure)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    become(called, environment(folder / "flower"))


def run_node(folder: Path, port: int, *, insecure: bool, tell: Callable[[str], None]) -> int:
    """Run a client's SuperNode, on which only the agreed app runs; returns its exit code.

    A SuperLink takes a node that was killed for alive for a minute, and turns away the one that takes its place. So a node that ends
    soon after it was started is started again a few times.
    """
    custodian = Custodian(folder)
    called = node_command(custodian, port, insecure=insecure)
    env = environment(folder.absolute() / "flower")
    env["PATH"] = os.pathsep.join([str(write_programs(folder.absolute())), env["PATH"]])
    for left in reversed(range(STARTS)):
        began = time.monotonic()
        code = watched(called, env)
        if code <= 0 or left == 0 or time.monotonic() - began > SOON:
            return 0 if code == 0 else 1
        tell(
            f"The node was not let in. One that was killed is let in again after a minute; trying again in {PAUSE:g} s."
        )
        time.sleep(PAUSE)
    return 1


def watched(called: list[str], env: dict[str, str]) -> int:
    """Run a program until it ends; a request to end is handed on to it, and counts as a good end."""
    child = subprocess.Popen(called, env=env)
    asked: list[int] = []

    def hand_on(number: int, _: object) -> None:
        asked.append(number)
        child.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0 if asked else code


def register(folder: Path, keys: Sequence[Path], address: str) -> None:
    """Tell the SuperLink the public keys of the nodes that may connect."""
    home = folder / "flower"
    write_connection(home, address, str(found(folder / "certificates" / AUTHORITY)))
    for key in keys:
        flwr(home, ["supernode", "register", str(found(key)), "sordino"])


def become(arguments: list[str], env: dict[str, str]) -> None:
    """Replace this process, so that whoever ends it ends what it became."""
    os.execve(arguments[0], arguments, env)


def found(path: Path) -> Path:
    """A file that must be there."""
    if not path.is_file():
        raise UserError(
            f"there is no {path}. `sordino flower certificates` and `sordino flower key` make what is needed."
        )
    return path.absolute()
