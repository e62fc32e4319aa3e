"""`sordino flower up`: starts what a party of a consortium runs, and keeps it alive."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.federation.store.files import write_whole, writing
from sordino.flower.certificates import (
    AUTHORITY,
    add_own_names,
    find_own_address,
    require_host,
    write_certificates,
)
from sordino.flower.client_folder import holds_agreement
from sordino.flower.client_store import ClientStore
from sordino.flower.consortium import Client, Coordinator, refuse_other_terms
from sordino.flower.flower_commands import CommandFailed, make_environment, require_flower
from sordino.flower.flower_processes import (
    FAST_POLLING,
    make_superlink_command,
    make_supervisor_command,
    register_clients,
    require_file,
)
from sordino.flower.logs import JsonLog
from sordino.flower.metrics_endpoint import PublishedState, serve_state
from sordino.flower.superlink_probe import count_online_nodes, probe_superlink
from sordino.flower.supervised_process import SupervisedProcess, Tell
from sordino.protocol import UserError

# Seconds between two looks at the process.
LOOK = 1.0
# Seconds between two counts of the nodes that are connected.
COUNT = 3.0
# Seconds without an answer after which a SuperLink is killed and started again: one that has
# answered, and one that was just started, which on a busy machine takes a while.
SILENCE = 30.0
STARTING = 300.0
# Bytes that a public key with its certificate has at most.
LARGEST_KEY = 65_536


class PartyService:
    """Runs what a party needs until it is asked to end; coordinator and clients refine it."""

    def __init__(self, place: Path, state: PublishedState, tell: Tell) -> None:
        """Creates the service.

        Args:
            place: The party's folder.
            state: Where its state is published.
            tell: Called with a sentence when something changes.
        """
        self.place = place
        self.state = state
        self.tell = tell
        self.metrics_port: int | None = None
        self._said = ""
        self._ended = False

    def run(self) -> None:
        """Starts everything and looks after it; returns when asked to end by a signal."""
        # Services are ended by a signal, and children must not outlive them.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_end)
        process = self.prepare()
        server = None
        if self.metrics_port is not None:
            server = serve_state(self.state, self.metrics_port)
        try:
            while not self._ended:
                process.look()
                self.look(process)
                time.sleep(LOOK)
        finally:
            # In any case, also after an error: an orphan would hold the port.
            process.stop()
            if server is not None:
                server.shutdown()

    def prepare(self) -> SupervisedProcess:
        """Creates missing files and returns the process that is to be kept alive."""
        raise NotImplementedError

    def look(self, process: SupervisedProcess) -> None:
        """Looks once at the state of everything, and publishes it.

        Args:
            process: The process that is kept alive.
        """
        raise NotImplementedError

    def say_once(self, words: str) -> None:
        """Reports words unless they were the last reported.

        Args:
            words: The sentence.
        """
        if words != self._said:
            self._said = words
            self.tell(words)

    def _ask_to_end(self, *_: object) -> None:
        self._ended = True


class CoordinatorService(PartyService):
    """Runs the SuperLink, and registers the clients whose public keys are in a folder."""

    def __init__(self, place: Path, settings: Coordinator, tell: Tell) -> None:
        """Creates the service.

        Args:
            place: The coordinator's folder.
            settings: What its consortium.toml says.
            tell: Called with a sentence when something changes.
        """
        super().__init__(place, PublishedState(place), tell)
        self.metrics_port = settings.metrics
        self._settings = settings
        self._keys = place / settings.keys
        self._address = settings.address
        self._key_troubles: dict[str, str] = {}
        self._counted = 0.0
        self._answered = time.monotonic()
        # Which start of the SuperLink has answered.
        self._answered_start = 0

    def prepare(self) -> SupervisedProcess:
        """Creates certificates where there are none, and returns the SuperLink."""
        require_flower()
        settings = self._settings
        certificates = self.place / "certificates"
        self._keys.mkdir(parents=True, exist_ok=True)
        if not (certificates / AUTHORITY).exists():
            write_certificates(certificates, add_own_names([settings.host]))
            self.tell(f"Wrote {certificates}. Give {AUTHORITY} to every client.")
        require_host(certificates, settings.host)
        self._address = find_own_address(certificates, settings)
        command = make_superlink_command(self.place, settings.listen, settings.port, insecure=False)
        env = make_environment(self.place / "flower", **FAST_POLLING)
        log = JsonLog(self.place / "logs" / "link.jsonl")
        return SupervisedProcess("SuperLink", command, env, log, self.tell)

    def look(self, process: SupervisedProcess) -> None:
        """Checks that the SuperLink answers, registers new clients, and counts connected nodes.

        Args:
            process: The SuperLink.
        """
        # Each count opens connections, so it is done less often than the looks.
        if time.monotonic() - self._counted < COUNT:
            return
        self._counted = time.monotonic()
        authority = str(self.place / "certificates" / AUTHORITY)
        probe = probe_superlink(self._address, authority)
        if probe.is_untrusted:
            self._answered = time.monotonic()
            self._answered_start = process.starts
        if probe.trouble is not None:
            self._note_trouble(process, probe.trouble)
            return
        self._answered = time.monotonic()
        self._answered_start = process.starts
        registered = self._register_new_clients()
        try:
            online = count_online_nodes(self._address, authority)
        # Whatever Flower's client raises: the SuperLink may have ended in this moment.
        except Exception as error:
            self._note_trouble(process, f"it does not say which clients are connected ({error})")
            return
        words = f"{online} of {registered} connected"
        self.say_once(words)
        numbers = {
            "sordino_nodes_connected": online,
            "sordino_nodes_registered": registered,
            "sordino_link_starts": process.starts,
            "sordino_healthy": 1,
        }
        self.state.publish(True, numbers, words)

    def _note_trouble(self, process: SupervisedProcess, trouble: str) -> None:
        # A program that was just started has not been silent for longer than it runs.
        silent = min(time.monotonic() - self._answered, process.age)
        patience = SILENCE
        words = f"The SuperLink: {trouble}."
        if self._answered_start != process.starts:
            patience = STARTING
            words = "The SuperLink starts."
        self.say_once(words)
        numbers = {"sordino_link_starts": process.starts, "sordino_healthy": 0}
        self.state.publish(False, numbers, words)
        if silent > patience and process.is_running:
            self.tell("The SuperLink does not answer; it is started again.")
            process.kill()

    def _register_new_clients(self) -> int:
        """Registers the keys that are new, and returns how many are registered."""
        path = self.place / "flower" / "registered.json"
        known: dict[str, str] = {}
        if path.exists():
            known = json.loads(path.read_bytes())
        for key in sorted(self._keys.glob("*.pub")):
            # The file's name is the client's number; other files in the folder are none of ours.
            if not (key.stem.isascii() and key.stem.isdecimal()):
                continue
            try:
                digest = hashlib.sha256(read_key(key)).hexdigest()
                if known.get(key.stem) == digest:
                    continue
                if key.stem in known:
                    raise UserError(
                        f"client {key.stem} has the key {known[key.stem][:16]}... already, and "
                        f"this is another one, {digest[:16]}...; put the first one back"
                    )
                register_clients(self.place, [f"{key.stem}={key}"], self._address)
                known[key.stem] = digest
                # Written after each key: an interruption must not register a client twice.
                with writing(path):
                    write_whole(path, json.dumps(known).encode())
            except (CommandFailed, OSError, UserError) as error:
                self._report_key(key.name, f"{key.name} was not registered: {error}")
                continue
            self.tell(f"Client {key.stem} may connect: its key is {digest[:16]}...")
        return len(known)

    def _report_key(self, name: str, trouble: str) -> None:
        """Reports why a key was not registered, once."""
        if self._key_troubles.get(name) != trouble:
            self._key_troubles[name] = trouble
            self.tell(trouble)


class ClientService(PartyService):
    """Runs a client's node, under the agreement that its consortium.toml describes."""

    def __init__(
        self, place: Path, settings: Client, tell: Tell, agree: Callable[[], None]
    ) -> None:
        """Creates the service.

        Args:
            place: The folder of consortium.toml.
            settings: What it says.
            tell: Called with a sentence when something changes.
            agree: Creates the agreement where there is none.
        """
        self._folder = place / settings.folder
        super().__init__(place, PublishedState(self._folder), tell)
        self.metrics_port = settings.metrics
        self._settings = settings
        self._agree = agree

    def prepare(self) -> SupervisedProcess:
        """Agrees where there is no agreement yet, and returns the node's supervisor."""
        require_flower()
        if not holds_agreement(self._folder):
            self._agree()
        store = ClientStore(self._folder)
        refuse_other_terms(self.place, self._settings, store.agreement)
        store.check_second_place()
        command = make_supervisor_command(self._folder, self._settings.port, insecure=False)
        env = make_environment(self._folder / "flower")
        log = JsonLog(self._folder / "logs" / "node.jsonl")
        return SupervisedProcess("node", command, env, log, self.tell)

    def look(self, process: SupervisedProcess) -> None:
        """Publishes the state that the supervisor notes, and what the ledger says.

        Args:
            process: The node's supervisor.
        """
        path = self._folder / "flower" / "status.json"
        facts: dict[str, Any] = {}
        if path.exists():
            facts = json.loads(path.read_bytes())
        state = str(facts.get("state", "starting"))
        # A status of a killed supervisor still says connected.
        if facts and not is_alive(int(facts["keeper"])):
            state = "starting"
        reason = ""
        if facts.get("reason"):
            reason = f" ({facts['reason']})"
        spending = sum_spending(self._folder)
        words = f"{state}{reason}; {spending.words}"
        self.say_once(words)
        connected = state == "connected"
        numbers = {
            "sordino_node_connected": float(connected),
            "sordino_node_starts": float(facts.get("starts", 0)),
            "sordino_rounds_paid": float(spending.rounds),
            "sordino_requests_refused": float(spending.refusals),
            "sordino_epsilon_spent": spending.epsilon,
            "sordino_healthy": float(connected),
        }
        self.state.publish(connected, numbers, words)


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Describes what a client has spent.

    Attributes:
        rounds: Rounds that were charged.
        refusals: Requests that were refused.
        epsilon: What the server learned at most, at the delta of the agreement.
        words: All of it in words.
    """

    rounds: int
    refusals: int
    epsilon: float
    words: str


def sum_spending(folder: Path) -> Spending:
    """Returns what a client has spent.

    Args:
        folder: The client's folder.
    """
    from sordino.privacy.guarantee import round_up

    store = ClientStore(folder)
    agreement = store.agreement
    rounds = len(store.rounds_paid)
    refusals = store.refusals
    epsilon = 0.0
    if rounds:
        epsilon = store.compute_guarantee().epsilon(agreement.delta)
    limit = ""
    if agreement.epsilon is not None:
        limit = f" of {agreement.epsilon:g}"
    words = (
        # Rounded up: a spent budget must never look smaller than it is.
        f"{rounds} rounds answered, epsilon {round_up(epsilon)}{limit} spent, "
        f"{len(refusals)} requests refused"
    )
    if refusals:
        words += f", the last: {refusals[-1].reason}"
    return Spending(rounds=rounds, refusals=len(refusals), epsilon=epsilon, words=words)


def read_key(path: Path) -> bytes:
    """Returns the content of the file of a public key.

    Args:
        path: The file, which came from somebody else.

    Raises:
        UserError: There is none, or it is far larger than a key.
    """
    if require_file(path).stat().st_size > LARGEST_KEY:
        raise UserError(f"it has more than {LARGEST_KEY:,} bytes, and a public key has fewer")
    return path.read_bytes()


def is_alive(process: int) -> bool:
    """Returns whether a process exists.

    Args:
        process: Its id.
    """
    try:
        # Signal 0 asks for existence and does nothing.
        os.kill(process, 0)
    except OSError:
        return False
    return True
