"""`sordino flower up`: starts what a party of a consortium runs, keeps it alive, and says how it is."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sordino.engines.flower.certificates import AUTHORITY, write_certificates
from sordino.engines.flower.consortium import Client, Coordinator
from sordino.engines.flower.custody import Custodian
from sordino.engines.flower.logs import Log
from sordino.engines.flower.nodes import link_command, register
from sordino.engines.flower.probing import probe_superlink
from sordino.engines.flower.processes import CommandFailed, environment, require_flower
from sordino.federation.storage import write_whole
from sordino.protocol import UserError

Tell = Callable[[str], None]
LOOK = 1.0  # seconds between two looks at what runs
COUNT = 3.0  # seconds between two counts of the nodes that are connected
DEAF = 30.0  # seconds without a sign of health after which a process is ended
PAUSE = (1.0, 30.0)  # seconds before a process is started again: at first, and at most
METRICS = "metrics.prom"
HEALTH = "health.json"


class Service:
    """Runs one program and starts it again when it ends. It holds a process.

    Args:
        name: What it is called.
        command: How it is started.
        env: Its environment.
        log: Where what it says goes.
        tell: Says that it was started again.
    """

    def __init__(
        self, name: str, command: list[str], env: Mapping[str, str], log: Log, tell: Tell
    ) -> None:
        self.name = name
        self.starts = 0
        self._command = command
        self._env = dict(env)
        self._log = log
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = PAUSE[0]
        self._began = 0.0
        self._next = 0.0

    def look(self) -> None:
        """Starts the program if it does not run.

        Raises:
            UserError: It ended because of what it was given, which another start does not mend.
        """
        if self._process is not None and self._process.poll() is None:
            if time.monotonic() - self._began > 60.0:
                self._pause = PAUSE[0]
            return
        if self._process is not None:
            self._note_end(self._process.returncode)
        if time.monotonic() >= self._next:
            self._start()

    def _note_end(self, code: int) -> None:
        self._process = None
        if code == 2:
            raise UserError(f"the {self.name} cannot be started: its log says why.")
        self._next = time.monotonic() + self._pause
        self._tell(f"The {self.name} ended ({code}); it is started again in {self._pause:g} s.")
        self._pause = min(self._pause * 2.0, PAUSE[1])

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._began = time.monotonic()
        self.starts += 1
        if self._process.stdout is not None:
            self._log.follow(self.name, self._process.stdout)

    @property
    def age(self) -> float:
        """Seconds since the program was started."""
        return time.monotonic() - self._began

    def kill(self) -> None:
        """Ends the program at once; the next look starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ends the program politely, and at once if it does not listen."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(15.0)
        except subprocess.TimeoutExpired:
            self.kill()


class Party:
    """Looks after what a party runs until it is asked to end."""

    def __init__(self, place: Path, tell: Tell) -> None:
        self.place = place
        self.tell = tell
        self._said = ""
        self._ended = False

    def run(self) -> None:
        """Starts everything and looks after it; returns when asked to end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_end)
        service = self.prepare()
        try:
            while not self._ended:
                service.look()
                self.look(service)
                time.sleep(LOOK)
        finally:
            service.stop()

    def prepare(self) -> Service:
        """Makes what is missing; returns what is to be kept alive."""
        raise NotImplementedError

    def look(self, service: Service) -> None:
        """Looks once at how everything is."""
        raise NotImplementedError

    def say(self, words: str) -> None:
        """Says something when it is new."""
        if words != self._said:
            self._said = words
            self.tell(words)

    def keep(self, folder: Path, healthy: bool, numbers: Mapping[str, float], words: str) -> None:
        """Keeps health as JSON and numbers for Prometheus' textfile collector."""
        facts = {"healthy": healthy, "said": words, "at": int(time.time())}
        write_whole(folder / HEALTH, json.dumps(facts).encode())
        lines = [f"# TYPE {name} gauge\n{name} {value:g}\n" for name, value in numbers.items()]
        write_whole(folder / METRICS, "".join(lines).encode())

    def _ask_to_end(self, *_: object) -> None:
        self._ended = True


class CoordinatorParty(Party):
    """Runs the SuperLink, and lets in the clients whose public keys are there."""

    def __init__(self, place: Path, settings: Coordinator, tell: Tell) -> None:
        super().__init__(place, tell)
        self._settings = settings
        self._keys = place / settings.keys
        self._counted = 0.0
        self._well = time.monotonic()

    def prepare(self) -> Service:
        """Makes certificates where there are none; returns the SuperLink."""
        require_flower()
        settings = self._settings
        certificates = self.place / "certificates"
        self._keys.mkdir(parents=True, exist_ok=True)
        if not (certificates / AUTHORITY).exists():
            hosts = list(dict.fromkeys([settings.host, "localhost", "127.0.0.1"]))
            write_certificates(certificates, hosts)
            self.tell(f"Wrote {certificates}. Give {AUTHORITY} to every client.")
        command = link_command(self.place, settings.listen, settings.port, insecure=False)
        env = environment(self.place / "flower", FLWR_SUPEREXEC_TASK_POLL_INTERVAL="0.1")
        log = Log(self.place / "logs" / "link.jsonl")
        return Service("SuperLink", command, env, log, self.tell)

    def look(self, service: Service) -> None:
        """Looks whether the SuperLink answers, lets new clients in, and counts who is there."""
        if time.monotonic() - self._counted < COUNT:
            return
        self._counted = time.monotonic()
        authority = str(self.place / "certificates" / AUTHORITY)
        trouble = probe_superlink(self._settings.address, authority).trouble
        if trouble is not None:
            self._note_trouble(service, trouble)
            return
        self._well = time.monotonic()
        known = self._let_in()
        online = count_online(self._settings.address, authority)
        words = f"{online} of {known} connected"
        self.say(words)
        numbers = {"sordino_nodes_connected": online, "sordino_nodes_registered": known}
        numbers |= {"sordino_link_starts": service.starts, "sordino_healthy": 1}
        self.keep(self.place, True, numbers, words)

    def _note_trouble(self, service: Service, trouble: str) -> None:
        silent = time.monotonic() - max(self._well, time.monotonic() - service.age)
        words = "The SuperLink starts." if service.age < DEAF else f"The SuperLink: {trouble}."
        self.say(words)
        numbers = {"sordino_link_starts": service.starts, "sordino_healthy": 0}
        self.keep(self.place, False, numbers, words)
        if silent > DEAF:
            self.tell("The SuperLink does not answer; it is started again.")
            service.kill()

    def _let_in(self) -> int:
        """Registers the keys that are new; returns how many are registered."""
        noted = self.place / "flower" / "registered.json"
        known: dict[str, str] = json.loads(noted.read_bytes()) if noted.exists() else {}
        for path in sorted(self._keys.glob("*.pub")):
            if not path.stem.isdigit() or path.stem in known:
                continue
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            try:
                register(self.place, [f"{path.stem}={path}"], self._settings.address)
            except (CommandFailed, UserError) as error:
                self.say(f"{path.name} was not registered: {error}")
                continue
            known[path.stem] = digest
            write_whole(noted, json.dumps(known).encode())
            self.tell(f"Client {path.stem} may connect: its key is {digest[:16]}...")
        return len(known)


class ClientParty(Party):
    """Runs a client's node, under the agreement that its file describes."""

    def __init__(self, place: Path, settings: Client, tell: Tell, agree: Callable[[], None]):
        super().__init__(place, tell)
        self._settings = settings
        self._folder = place / settings.folder
        self._agree = agree

    def prepare(self) -> Service:
        """Agrees where there is no agreement yet; returns the node's keeper."""
        require_flower()
        if not (self._folder / "agreement.toml").exists():
            self._agree()
        module = [sys.executable, "-P", "-m", "sordino.engines.flower.supervision"]
        command = [*module, str(self._folder), str(self._settings.port)]
        log = Log(self._folder / "logs" / "node.jsonl")
        return Service("node", command, environment(self._folder / "flower"), log, self.tell)

    def look(self, service: Service) -> None:
        """Looks at the state that the keeper notes, and at the ledger."""
        path = self._folder / "flower" / "status.json"
        facts: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        state = str(facts.get("state", "starting"))
        if facts and not is_alive(int(facts["keeper"])):
            state = "starting"
        reason = f" ({facts['reason']})" if facts.get("reason") else ""
        paid, refused, spent = describe_spending(self._folder)
        words = f"{state}{reason}; {spent}"
        self.say(words)
        numbers = {"sordino_node_connected": float(state == "connected")}
        numbers |= {"sordino_node_starts": float(facts.get("starts", 0))}
        numbers |= {"sordino_rounds_paid": paid, "sordino_requests_refused": refused}
        self.keep(self._folder, state == "connected", numbers, words)


def describe_spending(folder: Path) -> tuple[int, int, str]:
    """Returns the rounds that a client paid for, its refusals, and both in words with epsilon."""
    from sordino.privacy.guarantee import rounded_up

    custodian = Custodian(folder)
    paid = len(custodian.rounds_paid)
    refusals = custodian.refusals
    agreement = custodian.agreement
    epsilon = custodian.guarantee().epsilon(agreement.delta) if paid else 0.0
    limit = "" if agreement.epsilon is None else f" of {agreement.epsilon:g}"
    spent = f"{paid} rounds answered, epsilon {rounded_up(epsilon)}{limit} spent"
    last = f", the last: {refusals[-1].reason}" if refusals else ""
    return paid, len(refusals), f"{spent}, {len(refusals)} requests refused{last}"


def count_online(address: str, authority: str) -> int:
    """Returns how many nodes are connected to a SuperLink on this machine."""
    from flwr.proto.control_pb2 import ListNodesRequest
    from flwr.supercore.control.control_http_client import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    shown = [RuntimeVersionHttpInterceptor(component_name="sordino")]
    trusted = Path(authority).read_bytes()
    with ControlHttpClient.from_server_address(address, False, trusted, shown) as client:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    return sum(node.status == "online" for node in nodes)


def is_alive(process: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True
