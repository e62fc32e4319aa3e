"""Keeps a client's node alive: starts it, watches its beats, starts it again, and says why.

A SuperNode can be there and deaf: its process lives, its port says that it is healthy, and no
message is ever answered. So its keeper does not look at the process alone but at when it last
looked for messages, and when the SuperLink last took a heartbeat of it.
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

from sordino.engines.flower.agreement import Agreement
from sordino.engines.flower.custody import Custodian
from sordino.engines.flower.nodes import node_arguments
from sordino.engines.flower.pinned import app_digest, check_pin
from sordino.engines.flower.probing import probe_superlink
from sordino.engines.flower.superexec import Answering, Post, acquire_task, fork
from sordino.engines.flower.supernode import Beats, check_seams, run_supernode, seconds_since
from sordino.federation.storage import held, write_whole
from sordino.protocol import SordinoError, UserError

LOG = logging.getLogger("flwr")
STATUS = "status.json"
TICK = 0.5  # seconds between two looks at the node
SILENCE = 40.0  # seconds without a call that succeeds; Flower gives up a single one after 30
HEARTBEAT = 75.0  # seconds without a heartbeat that the SuperLink took; Flower sends one in 30
PROBE = 3.0  # seconds between two looks at the SuperLink, while a node is silent or gone
SAY = 60.0  # seconds after which the same trouble is said again
FETCH = 10.0  # seconds in which a task is asked for after a message has come
FAILING = 60.0  # seconds that a node whose answers failed is not called connected
ENDING = 8.0  # seconds that a node is given to say goodbye


class Keeper:
    """Runs a client's node. It holds processes: call `keep` once."""

    def __init__(self, custodian: Custodian, port: int, *, insecure: bool) -> None:
        self._custodian = custodian
        self._insecure = insecure
        self._home = custodian.folder.absolute() / "flower"
        self._port = port
        self._beats = Beats()
        self._node = 0
        self._starts = 0
        self._ended = False
        self._fetching = 0.0
        self._failing = 0.0
        self._said = ("", 0.0)
        self._probed = 0.0
        self._written = ""

    def keep(self) -> int:
        """Keeps the node alive until it is asked to end; returns an exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_end)
        self._post = self._prepare()
        self._answering = Answering(self._post)
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._ring, False)
        os.set_blocking(self._bell, False)
        try:
            while not self._ended:
                self._look()
        finally:
            self._say_state("ended", "it was asked to end")
            self._end_node(signal.SIGTERM)
            self._answering.stop()
        return 0

    def _prepare(self) -> Post:
        """Checks that only the agreed app can run, and makes a secret for this node."""
        check_seams()
        own = digest_of_own_app(self._custodian.folder)
        secret = secrets.token_bytes(32)
        path = self._home / "secret"
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
        address = f"127.0.0.1:{self._port}"
        return Post(
            folder=self._custodian.folder.absolute(), address=address, secret=secret, own=own
        )

    def _look(self) -> None:
        """Looks once at the node, and gives it what it needs."""
        if not self._node:
            self._start_node()
        if self._has_ended():
            return
        failure = self._answering.take_failure()
        if failure:
            # What it worked on would never be answered, and the node would wait for it.
            words = f"the process that answers failed ({failure}): the lines above say why"
            self._say(f"The node is started again: {words}.")
            self._failing = time.monotonic() + FAILING
            self._say_state("failing", words)
            self._end_node(signal.SIGKILL)
            return
        if self._is_deaf():
            self._say("The node no longer looks for messages; it is started again.")
            self._end_node(signal.SIGKILL)
            return
        self._note_state()
        pause = 0.05 if self._fetching > time.monotonic() else TICK
        with contextlib.suppress(InterruptedError):
            if select.select([self._bell], [], [], pause)[0]:
                os.read(self._bell, 1024)
                self._fetching = time.monotonic() + FETCH
        if self._fetching > time.monotonic():
            self._fetch()

    def _fetch(self) -> None:
        """Gets the task that a message has become, and hands it over."""
        try:
            task = acquire_task(self._post)
        except Exception as error:  # the node may be ending; whether it is, the next look shows
            LOG.warning("No task could be fetched: %s", error)
            return
        if task is not None:
            self._fetching = 0.0
            self._answering.hand_over(task)

    def _start_node(self) -> None:
        self._beats.reset()
        arguments = node_arguments(
            self._custodian, self._port, insecure=self._insecure, secret=self._home / "secret"
        )
        if self._starts or (self._home / "node").exists():
            self._take_leave()
        self._starts += 1
        self._node = fork(lambda: run_supernode(arguments, self._beats, self._ring))

    def _take_leave(self) -> None:
        """Tells the SuperLink that an earlier node of this key is gone, which it takes for alive."""
        if self._insecure:
            return
        path = self._home / "node"
        number = self._beats.node or (int(path.read_text()) if path.exists() else 0)
        if not number:
            return
        agreement = self._custodian.agreement
        os.waitpid(fork(lambda: deactivate(agreement, number)), 0)

    def _has_ended(self) -> bool:
        """Whether the node has ended; says why, and waits until a new one makes sense."""
        ended, status = os.waitpid(self._node, os.WNOHANG)
        if not ended:
            return False
        self._node = 0
        self._answering.stop()  # what it works on has nobody to answer to any more
        code = os.waitstatus_to_exitcode(status)
        trouble = self._probe() or "nothing is wrong with the way to the SuperLink"
        known = "" if seconds_since(self._beats.link) < 3600 else self._turned_away()
        self._say(f"The node ended ({code}): {trouble}.{known} It is started again.")
        self._say_state("restarting", trouble)
        self._wait(PROBE)
        return True

    def _turned_away(self) -> str:
        if self._insecure:
            return ""
        return " If it was never let in: has the coordinator registered this node's public key?"

    def _is_deaf(self) -> bool:
        """Whether the node does nothing although the SuperLink could be reached."""
        silent = seconds_since(self._beats.loop)
        lost = seconds_since(self._beats.link)
        if silent < SILENCE and (lost < HEARTBEAT or self._beats.link == 0.0):
            return False
        if time.monotonic() - self._probed < PROBE:
            return False
        trouble = self._probe()
        if trouble is None:
            return True
        self._say(f"The SuperLink is out of reach: {trouble}.")
        self._say_state("disconnected", trouble)
        return False

    def _probe(self) -> str | None:
        self._probed = time.monotonic()
        agreement = self._custodian.agreement
        certificate = None if self._insecure else agreement.certificate
        return probe_superlink(str(agreement.superlink), certificate).trouble

    def _note_state(self) -> None:
        if seconds_since(self._beats.loop) >= SILENCE or self._failing > time.monotonic():
            return
        if seconds_since(self._beats.link) >= HEARTBEAT:
            self._say_state("connecting", "it has not been let in yet")
            return
        if self._beats.node and not self._insecure:
            path = self._home / "node"
            if not path.exists() or path.read_text() != str(self._beats.node):
                write_whole(path, str(self._beats.node).encode())
        self._say_state("connected", "")

    def _end_node(self, number: signal.Signals) -> None:
        """Ends the SuperNode, politely at first if asked so."""
        if not self._node:
            return
        os.kill(self._node, number)
        end = time.monotonic() + ENDING
        while time.monotonic() < end and not os.waitpid(self._node, os.WNOHANG)[0]:
            time.sleep(0.05)
        else:
            if time.monotonic() >= end:
                os.kill(self._node, signal.SIGKILL)
                os.waitpid(self._node, 0)
        self._node = 0
        self._answering.stop()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._ended:
            time.sleep(0.1)

    def _ask_to_end(self, *_: object) -> None:
        self._ended = True

    def _say(self, words: str) -> None:
        """Says something, but not the same again and again."""
        before, when = self._said
        if words != before or time.monotonic() - when > SAY:
            self._said = (words, time.monotonic())
            LOG.warning(words)

    def _say_state(self, state: str, reason: str) -> None:
        """Keeps the node's state in a file, whenever it changes and once in a while."""
        facts: dict[str, Any] = {"state": state, "reason": reason, "starts": self._starts}
        facts["keeper"] = os.getpid()
        facts["node"] = self._node
        facts["at"] = int(time.time()) // 5 * 5
        text = json.dumps(facts)
        if text != self._written:
            self._written = text
            write_whole(self._home / STATUS, text.encode())


def digest_of_own_app(folder: Path) -> str:
    """Tests the pin in a process of its own, which may load much; returns Sordino's digest.

    Raises:
        UserError: Another app than the agreed one would run, or it cannot be told.
    """
    reading, writing = os.pipe()

    def test() -> int:
        own = app_digest()
        try:
            check_pin(folder, own)
        except SordinoError as error:
            os.write(writing, f"!{error}".encode())
            return 2
        os.write(writing, own.encode())
        return 0

    tester = fork(test)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(tester, 0)
    if said.startswith("!"):
        raise UserError(said[1:])
    if not said:
        raise UserError(f"{folder}: what runs here could not be tested. The node is not started.")
    return said


def deactivate(agreement: Agreement, number: int) -> int:
    """Tells the SuperLink that a node is gone; that it cannot be told is no harm."""
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
    with (
        contextlib.suppress(Exception),
        FleetHttpClient.from_server_address(
            str(agreement.superlink), False, certificate, interceptors=shown
        ) as client,
    ):
        client.DeactivateNode(DeactivateNodeRequest(node_id=number))
    return 0


def main(arguments: Sequence[str]) -> int:
    """Keeps the node of a client's folder: FOLDER PORT and, for tests, --insecure."""
    folder = Path(arguments[0])
    home = folder.absolute() / "flower"
    home.mkdir(parents=True, exist_ok=True)
    try:
        with held(home):  # one node for a folder
            keeper = Keeper(
                Custodian(folder), int(arguments[1]), insecure="--insecure" in arguments
            )
            return keeper.keep()
    except SordinoError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
