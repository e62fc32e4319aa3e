"""Keeps a client's node alive: starts it, watches its heartbeats, starts it again, and says why.

A SuperNode can be deaf: its process lives, its port says that it is healthy, and no message is
ever answered. So the supervisor watches not only the process but also when it last looked for
messages, and when the SuperLink last accepted a heartbeat of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino.federation.store.files import hold_lock, write_whole
from sordino.flower.agreement import Agreement
from sordino.flower.app_pinning import check_pin, compute_app_digest
from sordino.flower.client_store import ClientStore
from sordino.flower.flower_processes import make_node_arguments
from sordino.flower.node_certificates import show_certificate
from sordino.flower.superexec import TaskSource, WarmWorker, acquire_task, fork_process
from sordino.flower.superlink_probe import probe_superlink
from sordino.flower.supernode import Heartbeats, check_flower_loop, run_supernode, seconds_since
from sordino.protocol import SordinoError, UserError

LOG = logging.getLogger("flwr")
STATUS = "status.json"
# Seconds between two looks at the node.
TICK = 0.5
# Seconds between two requests for a task, after a message has come.
FETCH_TICK = 0.05
# Seconds in which a task is requested after a message has come.
FETCH = 10.0
# Seconds without a call that succeeds; Flower gives up a single one after 30.
SILENCE = 40.0
# Seconds without a heartbeat that the SuperLink accepted; Flower sends one in 30.
HEARTBEAT = 75.0
# Seconds between two looks at the SuperLink, while a node is silent or gone.
PROBE = 3.0
# Seconds after which the same trouble is reported again.
REPEAT = 60.0
# Seconds that a node whose answers failed is not called connected.
FAILING = 60.0
# Seconds that a node has to end when it is asked to.
ENDING = 8.0
# A node that was connected in the last hour is registered.
REGISTERED = 3600.0
REGISTRATION_HINT = (
    " If it was never let in: has the coordinator registered this node's public key?"
)
# Seconds between two writes of a state that does not change.
STATUS_PERIOD = 5


class NodeSupervisor:
    """Runs a client's node. It holds processes: call `run` once."""

    def __init__(self, store: ClientStore, port: int, *, insecure: bool) -> None:
        """Creates the supervisor.

        Args:
            store: The client's folder.
            port: Port of this machine for the node only.
            insecure: Whether the node connects without TLS, for tests.
        """
        self._store = store
        self._insecure = insecure
        self._home = store.folder.absolute() / "flower"
        self._port = port
        self._heartbeats = Heartbeats()
        self._node = 0
        self._starts = 0
        self._ended = False
        self._fetching = 0.0
        self._failing = 0.0
        self._said = ("", 0.0)
        self._probed = 0.0
        self._written = ""

    def run(self) -> int:
        """Keeps the node alive until asked to end by a signal, and returns an exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_end)
        self._source = self._prepare()
        self._worker = WarmWorker(self._source)
        self._wake, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        os.set_blocking(self._wake, False)
        try:
            while not self._ended:
                self._look()
        finally:
            self._write_state("ended", "it was asked to end")
            self._end_node(signal.SIGTERM)
            self._worker.stop()
        return 0

    def _prepare(self) -> TaskSource:
        """Checks that only the agreed app can run, and creates a secret for this node."""
        check_flower_loop()
        own = verify_app_pin(self._store.folder)
        secret = secrets.token_bytes(32)
        path = self._home / "secret"
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
        address = f"127.0.0.1:{self._port}"
        return TaskSource(
            folder=self._store.folder.absolute(), address=address, secret=secret, own=own
        )

    def _look(self) -> None:
        """Looks once at the node, and starts or ends processes as needed."""
        if not self._node:
            self._start_node()
        if self._has_ended():
            return
        failure = self._worker.take_failure()
        if failure:
            # Its task would never be answered, and the node would wait for it.
            words = f"the process that answers failed ({failure}): the lines above say why"
            self._report(f"The node is started again: {words}.")
            self._failing = time.monotonic() + FAILING
            self._write_state("failing", words)
            self._end_node(signal.SIGKILL)
            return
        if self._is_deaf():
            self._report("The node no longer looks for messages; it is started again.")
            self._end_node(signal.SIGKILL)
            return
        self._note_state()
        pause = TICK
        if self._fetching > time.monotonic():
            pause = FETCH_TICK
        with contextlib.suppress(InterruptedError):
            if select.select([self._wake], [], [], pause)[0]:
                os.read(self._wake, 1024)
                self._fetching = time.monotonic() + FETCH
        if self._fetching > time.monotonic():
            self._fetch_task()

    def _fetch_task(self) -> None:
        """Fetches the task that a message has become, and hands it over."""
        try:
            task = acquire_task(self._source)
        except Exception as error:
            # The node may be ending; the next look will show.
            LOG.warning("No task could be fetched: %s", error)
            return
        if task is not None:
            self._fetching = 0.0
            self._worker.hand_over(task)

    def _start_node(self) -> None:
        self._heartbeats.reset()
        arguments = make_node_arguments(
            self._store, self._port, insecure=self._insecure, secret=self._home / "secret"
        )
        if self._starts or (self._home / "node").exists():
            self._deactivate_earlier()
        self._starts += 1
        key = None
        if self._store.agreement.key is not None and not self._insecure:
            key = Path(self._store.agreement.key)
        self._node = fork_process(
            lambda: run_supernode(arguments, self._heartbeats, self._wake_writer, key)
        )

    def _deactivate_earlier(self) -> None:
        """Tells the SuperLink that an earlier node of this key is gone."""
        if self._insecure:
            return
        path = self._home / "node"
        number = self._heartbeats.node
        if not number and path.exists():
            number = int(path.read_text())
        if not number:
            return
        agreement = self._store.agreement
        os.waitpid(fork_process(lambda: deactivate_node(agreement, number)), 0)

    def _has_ended(self) -> bool:
        """Returns whether the node has ended; if so, reports why and waits before a new start."""
        ended, status = os.waitpid(self._node, os.WNOHANG)
        if not ended:
            return False
        self._node = 0
        # Its answers would reach no node any more.
        self._worker.stop()
        code = os.waitstatus_to_exitcode(status)
        trouble = self._probe() or "nothing is wrong with the way to the SuperLink"
        hint = ""
        if not self._insecure and seconds_since(self._heartbeats.link) >= REGISTERED:
            hint = REGISTRATION_HINT
        self._report(f"The node ended ({code}): {trouble}.{hint} It is started again.")
        self._write_state("restarting", trouble)
        self._wait(PROBE)
        return True

    def _is_deaf(self) -> bool:
        """Returns whether the node does nothing although the SuperLink can be reached."""
        silent = seconds_since(self._heartbeats.loop)
        lost = seconds_since(self._heartbeats.link)
        if silent < SILENCE and (lost < HEARTBEAT or self._heartbeats.link == 0.0):
            return False
        if time.monotonic() - self._probed < PROBE:
            return False
        trouble = self._probe()
        if trouble is None:
            return True
        self._report(f"The SuperLink is out of reach: {trouble}.")
        self._write_state("disconnected", trouble)
        return False

    def _probe(self) -> str | None:
        """Returns the fault of the connection to the SuperLink; None if there is none."""
        self._probed = time.monotonic()
        agreement = self._store.agreement
        address = str(agreement.superlink)
        if self._insecure:
            return probe_superlink(address, None).trouble
        return probe_superlink(address, agreement.certificate, agreement.key).trouble

    def _note_state(self) -> None:
        if seconds_since(self._heartbeats.loop) >= SILENCE or self._failing > time.monotonic():
            return
        if seconds_since(self._heartbeats.link) >= HEARTBEAT:
            self._write_state("connecting", "it has not been let in yet")
            return
        if self._heartbeats.node and not self._insecure:
            path = self._home / "node"
            if not path.exists() or path.read_text() != str(self._heartbeats.node):
                write_whole(path, str(self._heartbeats.node).encode())
        self._write_state("connected", "")

    def _end_node(self, number: signal.Signals) -> None:
        """Ends the SuperNode by a signal, and by SIGKILL if it does not end in time."""
        if not self._node:
            return
        os.kill(self._node, number)
        end = time.monotonic() + ENDING
        ended = 0
        while not ended and time.monotonic() < end:
            time.sleep(0.05)
            ended = os.waitpid(self._node, os.WNOHANG)[0]
        if not ended:
            os.kill(self._node, signal.SIGKILL)
            os.waitpid(self._node, 0)
        self._node = 0
        self._worker.stop()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._ended:
            time.sleep(0.1)

    def _ask_to_end(self, *_: object) -> None:
        self._ended = True

    def _report(self, words: str) -> None:
        """Logs something, but not the same again and again."""
        before, when = self._said
        if words != before or time.monotonic() - when > REPEAT:
            self._said = (words, time.monotonic())
            LOG.warning(words)

    def _write_state(self, state: str, reason: str) -> None:
        """Writes the node's state to a file, whenever it changes and once in a while."""
        facts = {
            "state": state,
            "reason": reason,
            "starts": self._starts,
            "keeper": os.getpid(),
            "node": self._node,
            "at": int(time.time()) // STATUS_PERIOD * STATUS_PERIOD,
        }
        text = json.dumps(facts)
        if text != self._written:
            self._written = text
            write_whole(self._home / STATUS, text.encode())


def verify_app_pin(folder: Path) -> str:
    """Tests the pin in a new process, which may load much.

    Args:
        folder: The client's folder.

    Returns:
        The digest of Sordino's app.

    Raises:
        UserError: Another app than the agreed one would run, or the test failed.
    """
    reading, writing = os.pipe()

    def test() -> int:
        own = compute_app_digest()
        try:
            check_pin(folder, own)
        except SordinoError as error:
            os.write(writing, f"!{error}".encode())
            return 2
        os.write(writing, own.encode())
        return 0

    tester = fork_process(test)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(tester, 0)
    if said.startswith("!"):
        raise UserError(said[1:])
    if not said:
        raise UserError(f"{folder}: what runs here could not be tested. The node is not started.")
    return said


def deactivate_node(agreement: Agreement, number: int) -> int:
    """Tells the SuperLink that a node is gone; if that fails, nothing else does.

    Args:
        agreement: The client's agreement, with its key.
        number: Id of the node at the SuperLink.

    Returns:
        An exit code.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    key: Any = load_ssh_private_key(Path(str(agreement.key)).read_bytes(), password=None)
    shown: list[Any] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    certificate = Path(str(agreement.certificate)).read_bytes()
    show_certificate(Path(str(agreement.key)))
    with (
        contextlib.suppress(Exception),
        FleetHttpClient.from_server_address(
            str(agreement.superlink), False, certificate, interceptors=shown
        ) as client,
    ):
        client.DeactivateNode(DeactivateNodeRequest(node_id=number))
    return 0


def main(arguments: Sequence[str]) -> int:
    """Runs the supervisor of a client's node.

    Args:
        arguments: FOLDER PORT and, for tests, --insecure.

    Returns:
        An exit code.
    """
    folder = Path(arguments[0])
    home = folder.absolute() / "flower"
    home.mkdir(parents=True, exist_ok=True)
    try:
        # One node for a folder.
        with hold_lock(home):
            supervisor = NodeSupervisor(
                ClientStore(folder), int(arguments[1]), insecure="--insecure" in arguments
            )
            return supervisor.run()
    except SordinoError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
