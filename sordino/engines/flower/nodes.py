"""The two programs that keep running: the SuperLink, where machines meet, and a client's SuperNode. Secured unless said otherwise."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sordino.engines.flower.certificates import AUTHORITY, SERVER, SERVER_KEY
from sordino.engines.flower.custody import Custodian
from sordino.engines.flower.guard import FOLDER
from sordino.engines.flower.processes import (
    CommandFailed,
    environment,
    flwr,
    require_flower,
    write_connection,
)
from sordino.engines.flower.registry import (
    add_clients,
    assign_clients,
    read_clients,
    remove_client,
)
from sordino.federation.storage import writing
from sordino.protocol import UserError


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
    module = [sys.executable, "-P", "-m", "sordino.engines.flower.superlink"]
    return [*module, "--host", host, "--port", str(port), *secured, *kept]


def node_arguments(custodian: Custodian, port: int, *, insecure: bool, secret: Path) -> list[str]:
    """Returns the arguments of a client's SuperNode: it trusts one authority, and shows its key.

    Args:
        custodian: The client.
        port: Where it listens on this machine, for its keeper alone.
        insecure: Whether it connects without TLS, for tests.
        secret: File of what its keeper shows it: no other program on this machine gets a task.
    """
    agreement = custodian.agreement
    folder = custodian.folder
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
    settings = f"{FOLDER}={json.dumps(str(folder.absolute()))}"
    tasks = ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    return [*place, *secured, *tasks, "--node-config", settings]


def run_link(folder: Path, host: str, port: int, *, insecure: bool) -> None:
    """Become the SuperLink."""
    require_flower()
    called = link_command(folder, host, port, insecure=insecure)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    become(called, environment(folder / "flower", FLWR_SUPEREXEC_TASK_POLL_INTERVAL="0.1"))


def run_node(folder: Path, port: int, *, insecure: bool) -> None:
    """Becomes the keeper of a client's SuperNode, on which only the agreed app runs."""
    custodian = Custodian(folder)
    home = folder.absolute() / "flower"
    node_arguments(custodian, port, insecure=insecure, secret=home / "secret")
    require_flower()
    secured = ["--insecure"] if insecure else []
    # By the interpreter itself and without the current folder: nothing is looked up by a name.
    module = [sys.executable, "-P", "-m", "sordino.engines.flower.supervision"]
    become([*module, str(folder.absolute()), str(port), *secured], environment(home))


def register(folder: Path, given: Sequence[str], address: str) -> dict[int, str]:
    """Tells the SuperLink the public keys of the clients, and notes which client each is of.

    Args:
        folder: the coordinator's folder.
        given: "N=KEY.pub", or "KEY.pub" for the lowest number that is free.
        address: where the SuperLink listens.

    Returns:
        The fingerprints of the clients that were registered.

    Raises:
        UserError: a key that cannot be read, or a client that has one already.
        CommandFailed: the SuperLink did not take a key.
    """
    certificates = folder / "certificates"
    home = folder / "flower"
    new = assign_clients(read_clients(certificates), given)
    write_connection(home, address, str(found(certificates / AUTHORITY)))
    added: dict[int, str] = {}
    for client, key in new.items():
        known = add_clients(certificates, {client: found(key)})
        try:
            flwr(home, ["supernode", "register", str(found(key)), "sordino"])
        except CommandFailed:
            remove_client(certificates, client)
            raise
        added.update(known)
    return added


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
