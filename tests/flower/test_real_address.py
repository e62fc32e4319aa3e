"""A coordinator that other machines reach by its address: all of its own calls work, and its certificates are renewed."""

import shutil
import signal
import socket
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from sordino import Gaussian, Run
from sordino.cli.main import run as sordino
from sordino.flower.certificates import write_key
from sordino.flower.client_store import ClientStore
from sordino.protocol import save_protocol
from sordino.protocol.addresses import join_address
from tests.flower.lab import SLOW, Lab, find_own_address, free_port
from tests.flower.ledgers import find_losses, find_repeated_charges
from tests.flower.local import plan

pytestmark = pytest.mark.soak

OWN_ADDRESS = find_own_address()
HOSPITALS = ("north", "south")
# Many enough that a training is stopped before it ends, however long `flwr stop` takes to be started.
ROUNDS = 20
# What outlives certificates: which clients there are, and by which certificates nodes are known.
KEPT = ("clients.json", "nodes.pem")


class Consortium:
    """Three parties under `sordino flower up`, each with a folder of its own."""

    def __init__(self, lab: Lab, host: str, rounds: int = ROUNDS) -> None:
        self.lab = lab
        self.place = lab.folder
        self.ours = self.place / "ours"
        self.superlink = join_address(host, lab.port)
        self.protocol = self.place / "protocol.toml"
        self.run = self.place / "run"
        save_protocol(
            plan(clients=2, rounds=rounds, noise=Gaussian(sigma=0.05, secure=True)), self.protocol
        )
        self.ours.mkdir()
        (self.ours / "consortium.toml").write_text(
            f'[coordinator]\nhost = "{host}"\nport = {lab.port}\n'
        )

    @property
    def certificate(self) -> Path:
        return self.ours / "certificates" / "ca.crt"

    @property
    def trusted(self) -> list[str]:
        return ["--superlink", self.superlink, "--certificate", str(self.certificate)]

    def begin(self) -> None:
        """All parties start, and the coordinator lets both hospitals in."""
        self.start_coordinator()
        for client, name in enumerate(HOSPITALS):
            folder = self.place / name
            folder.mkdir()
            shutil.copy(self.certificate, folder)
            shutil.copy(self.protocol, folder)
            (folder / "consortium.toml").write_text(
                f'[client]\nclient = {client}\nsuperlink = "{self.superlink}"\n'
                f'port = {free_port()}\ncounter = "../elsewhere/{name}.json"\n'
            )
            self.lab.spawn(name, ["flower", "up", folder])
            key = folder / "node.key.pub"
            wait_until(key.exists, partial(self.lab.log, name))
            shutil.copy(key, self.ours / "keys" / f"{client}.pub")
        self.lab.wait_until("coordinator", "2 of 2 connected", 3 * SLOW)

    def start_coordinator(self) -> None:
        self.lab.spawn("coordinator", ["flower", "up", self.ours])
        wait_until(self.certificate.exists, lambda: self.lab.log("coordinator"))

    def renew_certificates(self) -> None:
        """As docs/flower.md says under "Renewing certificates"."""
        self.lab.end("coordinator")
        (self.lab.folder / "coordinator.log").unlink()
        aside = self.place / "old"
        aside.mkdir()
        for path in (self.ours / "certificates").iterdir():
            if path.name not in KEPT:
                path.rename(aside / path.name)
        self.start_coordinator()

    def send_certificate(self) -> None:
        for name in HOSPITALS:
            shutil.copy(self.certificate, self.place / name)

    def stores(self) -> list[ClientStore]:
        return [ClientStore(self.place / name / "mine") for name in HOSPITALS]


def wait_until(is_so, explain) -> None:
    end = time.monotonic() + 3 * SLOW
    while not is_so():
        assert time.monotonic() < end, explain()[-3000:]
        time.sleep(0.2)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    """On this machine's own address where it has one: then nothing that it does is over loopback."""
    with Lab(tmp_path_factory.mktemp("address")) as lab:
        made = Consortium(lab, OWN_ADDRESS or "127.0.0.1")
        made.begin()
        yield made


@pytest.mark.skipif(OWN_ADDRESS is None, reason="this machine has no address but loopback's")
def test_all_calls_of_the_coordinators_own_work_by_its_machines_own_address(consortium) -> None:
    """Once its SuperLink was killed every 30 s, and nobody was ever registered."""
    check_own_calls(consortium)
    begin_training(consortium)
    assert "is started again" not in consortium.lab.log("coordinator")


def check_own_calls(consortium: Consortium) -> None:
    """Registers a third client, and lets all parties' doctors look."""
    public = write_key(consortium.place / "third.key")
    register = ["flower", "register", str(consortium.ours), f"2={public}"]
    assert sordino([*register, "--superlink", consortium.superlink]) == 0
    for folder in (consortium.ours, *(consortium.place / name for name in HOSPITALS)):
        assert sordino(["flower", "doctor", str(folder)]) == 0


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_a_coordinator_is_reached_by_an_address_of_ipv6(tmp_path) -> None:
    """Once `up` took its own SuperLink for dead, and the certificate was for "[::1]" as a name."""
    with Lab(tmp_path) as lab:
        consortium = Consortium(lab, "::1", rounds=2)
        consortium.begin()
        check_own_calls(consortium)
        train = ["train", str(consortium.protocol), "--engine", "flower", "--out"]
        assert sordino([*train, str(consortium.run), *consortium.trusted]) == 0
        assert Run.load(consortium.run).status == "finished"
        for store in consortium.stores():
            assert store.rounds_paid == [0, 1]
        assert "is started again" not in lab.log("coordinator")


def begin_training(consortium: Consortium) -> None:
    """A training that is stopped after its first round, as by Ctrl-C."""
    if consortium.run.exists():
        return
    arguments = ["train", consortium.protocol, "--engine", "flower", "--out", consortium.run]
    train = consortium.lab.spawn("train", [*arguments, *consortium.trusted])
    metrics = consortium.run / "metrics.jsonl"
    wait_until(
        lambda: metrics.exists() and metrics.read_text(), lambda: consortium.lab.log("train")
    )
    train.send_signal(signal.SIGINT)
    train.wait(3 * SLOW)


def test_certificates_are_renewed_in_the_middle_of_a_training(consortium) -> None:
    begin_training(consortium)
    assert Run.load(consortium.run).status == "unfinished"
    before = consortium.certificate.read_bytes()
    paid = [store.rounds_paid for store in consortium.stores()]
    consortium.renew_certificates()
    assert consortium.certificate.read_bytes() != before
    for name in HOSPITALS:
        consortium.lab.wait_until(name, "is not to be trusted", 3 * SLOW)
    assert [store.rounds_paid for store in consortium.stores()] == paid
    consortium.send_certificate()
    consortium.lab.wait_until("coordinator", "2 of 2 connected", 3 * SLOW)
    assert sordino(["resume", str(consortium.run)]) == 0
    assert Run.load(consortium.run).status == "finished"
    for store in consortium.stores():
        assert store.rounds_paid == list(range(ROUNDS))
        store.check_second_place()
        assert Path(str(store.agreement.counter)).is_relative_to(consortium.place / "elsewhere")
    assert find_losses(consortium.run, consortium.stores()) == []
    repeated = find_repeated_charges(consortium.run, consortium.stores())
    assert not [words for words in repeated if words.startswith("client")]
