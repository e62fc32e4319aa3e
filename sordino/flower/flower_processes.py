"""Starts the two programs that keep running: the SuperLink and a client's SuperNode.

Both are secured by TLS and keys unless `insecure` is given, for tests.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sordino.federation.store.files import writing
from sordino.flower.certificates import AUTHORITY, SERVER, SERVER_KEY
from sordino.flower.client_keys import (
    add_clients,
    assign_clients,
    read_clients,
    remove_client,
)
from sordino.flower.client_store import ClientStore
from sordino.flower.flower_commands import (
    CONNECTION,
    CommandFailed,
    make_environment,
    require_flower,
    run_flwr,
    write_connection,
)
from sordino.flower.guard import FOLDER
from sordino.protocol import UserError

# Flower's SuperLink looks for tasks once a second by default.
FAST_POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}


def make_superlink_command(folder: Path, host: str, port: int, *, insecure: bool) -> list[str]:
    """Returns the command that runs the SuperLink.

    Args:
        folder: The coordinator's folder.
        host: Address to listen on.
        port: Port to listen on.
        insecure: Whether it runs without TLS and keys, for tests.

    Raises:
        UserError: A certificate is missing.
    """
    secured = ["--insecure"]
    if not insecure:
        certificates = folder / "certificates"
        secured = ["--ssl-ca-certfile", str(require_file(certificates / AUTHORITY))]
        secured += ["--ssl-certfile", str(require_file(certificates / SERVER))]
        secured += ["--ssl-keyfile", str(require_file(certificates / SERVER_KEY))]
        secured += ["--enable-supernode-auth"]
    # The database remembers the registered nodes over a restart.
    database = ["--database", str(folder.absolute() / "link.db")]
    module = [sys.executable, "-P", "-m", "sordino.flower.superlink"]
    address = ["--host", host, "--port", str(port)]
    return [
        *module, *address, *secured, *database, "--disable-runtime-dependency-installation"
    ]  # fmt: skip


def make_supervisor_command(folder: Path, port: int, *, insecure: bool) -> list[str]:
    """Returns the command that runs the supervisor of a client's node.

    Args:
        folder: The client's folder.
        port: Port of this machine for the node only.
        insecure: Whether the node connects without TLS, for tests.
    """
    # By the interpreter itself and without the current folder: nothing is looked up by a name.
    module = [sys.executable, "-P", "-m", "sordino.flower.node_supervisor"]
    command = [*module, str(folder.absolute()), str(port)]
    if insecure:
        command.append("--insecure")
    return command


def make_node_arguments(
    store: ClientStore, port: int, *, insecure: bool, secret: Path
) -> list[str]:
    """Returns the arguments of a client's SuperNode: it trusts one authority, and shows its key.

    Args:
        store: The client.
        port: Where it listens on this machine, only for its supervisor.
        insecure: Whether it connects without TLS, for tests.
        secret: File of what its supervisor shows it: no other program gets a task.

    Returns:
        The arguments of Flower's command.

    Raises:
        UserError: The agreement lacks an entry, a file is missing, or the folder has a name that
            Flower cannot be told.
    """
    agreement = store.agreement
    folder = store.folder
    if agreement.superlink is None:
        raise UserError(
            f"{folder}: the agreement does not name a superlink. Add it to agreement.toml."
        )
    secured = ["--insecure"]
    if not insecure:
        if agreement.certificate is None:
            raise UserError(describe_missing_entry(folder, "certificate"))
        if agreement.key is None:
            raise UserError(describe_missing_entry(folder, "key"))
        secured = ["--root-certificates", str(require_file(Path(agreement.certificate)))]
        secured += ["--auth-supernode-private-key", str(require_file(Path(agreement.key)))]
    address = ["--superlink", agreement.superlink, "--host", "127.0.0.1", "--port", str(port)]
    place = str(folder.absolute())
    if '"' in place:
        raise UserError(
            f"{place}: Flower takes no quotation mark in the name of a client's folder; move it to "
            "another name."
        )
    settings = f"{FOLDER}={json.dumps(place, ensure_ascii=False)}"
    tasks = ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    return [*address, *secured, *tasks, "--node-config", settings]


def describe_missing_entry(folder: Path, name: str) -> str:
    """Returns the message about an entry that a secured node needs.

    Args:
        folder: The client's folder.
        name: Name of the entry.
    """
    return (
        f"{folder}: the agreement names no {name}. Add it to agreement.toml, or for a test use "
        "--insecure."
    )


def run_superlink(folder: Path, host: str, port: int, *, insecure: bool) -> None:
    """Replaces this process by the SuperLink.

    Args:
        folder: The coordinator's folder.
        host: Address to listen on.
        port: Port to listen on.
        insecure: Whether it runs without TLS and keys, for tests.
    """
    require_flower()
    command = make_superlink_command(folder, host, port, insecure=insecure)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    replace_process(command, make_environment(folder / "flower", **FAST_POLLING))


def run_node(folder: Path, port: int, *, insecure: bool) -> None:
    """Replaces this process by the supervisor of a client's SuperNode.

    Args:
        folder: The client's folder.
        port: Port of this machine for the node only.
        insecure: Whether the node connects without TLS, for tests.

    Raises:
        UserError: The agreement lacks something that the node needs.
    """
    store = ClientStore(folder)
    home = folder.absolute() / "flower"
    # Gaps in the agreement are reported here, on the user's terminal.
    make_node_arguments(store, port, insecure=insecure, secret=home / "secret")
    store.check_second_place()
    require_flower()
    command = make_supervisor_command(folder, port, insecure=insecure)
    replace_process(command, make_environment(home))


def register_clients(folder: Path, given: Sequence[str], address: str) -> dict[int, str]:
    """Registers the public keys of clients at the SuperLink, and notes the client of each.

    Args:
        folder: The coordinator's folder.
        given: "N=KEY.pub", or "KEY.pub" for the lowest number that is free.
        address: Where the SuperLink listens.

    Returns:
        The fingerprints of the clients that were registered.

    Raises:
        UserError: A key cannot be read, or a client has one already.
        CommandFailed: The SuperLink did not take a key.
    """
    certificates = folder / "certificates"
    home = folder / "flower"
    new = assign_clients(read_clients(certificates), given)
    write_connection(home, address, str(require_file(certificates / AUTHORITY)))
    added: dict[int, str] = {}
    for client, path in new.items():
        key = require_file(path)
        fingerprints = add_clients(certificates, {client: key})
        try:
            run_flwr(home, ["supernode", "register", str(key), CONNECTION])
        except CommandFailed:
            remove_client(certificates, client)
            raise
        added.update(fingerprints)
    return added


def replace_process(command: list[str], env: dict[str, str]) -> None:
    """Replaces this process, so that a signal to it reaches the program.

    Args:
        command: The program and its arguments.
        env: Its environment.
    """
    os.execve(command[0], command, env)


def require_file(path: Path) -> Path:
    """Returns the absolute path of a file.

    Args:
        path: The file.

    Raises:
        UserError: There is none.
    """
    if not path.is_file():
        raise UserError(
            f"there is no {path}. `sordino flower certificates` and `sordino flower key` make "
            "what is needed."
        )
    return path.absolute()
