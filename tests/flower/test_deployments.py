"""Whole deployments, with keys and failures: minutes, so `make test-all` runs them and `make test` does not."""

import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sordino import (
    Constant,
    FedAvg,
    FedProx,
    Gaussian,
    Interpolate,
    NoisySgd,
    Protocol,
    Run,
    train,
)
from sordino.cli.main import run as sordino
from sordino.engines.choice import SuperLink
from sordino.flower.client_store import ClientStore
from sordino.privacy.ledger_lines import Missed
from sordino.protocol import SordinoError, save_protocol
from tests.flower.lab import SLOW, Lab
from tests.flower.local import charges, plan, weights

pytestmark = pytest.mark.soak

STEPS = {"steps": 3, "batch": 6, "clip": 1.0, "schedule": Constant(rate=0.3)}
ADAM = NoisySgd(steps=3, batch=6, clip=0.5, schedule=Constant(rate=0.05), optimizer="adam")
KINDS = {
    "fedavg": {"local": FedAvg(**STEPS)},
    "fedprox": {"local": FedProx(**STEPS, proximal=0.1)},
    "prifedsync": {
        "local": ADAM,
        "noise": Gaussian(multiplier=0.5),
        "personalization": Interpolate(alpha=0.3),
    },
}


@pytest.fixture(scope="module")
def secured_link(tmp_path_factory):
    """A SuperLink with TLS that knows the keys of three nodes."""
    with Lab(tmp_path_factory.mktemp("secured")) as lab:
        lab.secure(3)
        lab.start_link()
        lab.register(3)
        yield lab


@pytest.fixture
def secured(secured_link):
    """The same; the nodes that a test starts end with it."""
    yield secured_link
    secured_link.forget_clients()


@pytest.mark.parametrize("kind", KINDS)
def test_three_machines_with_keys_end_with_the_embedded_model(secured, kind, tmp_path) -> None:
    protocol = plan(**KINDS[kind], rounds=2, missing="repeat")
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1)
    secured.start_nodes(protocol, "--seeded")
    run = train(protocol, folder=tmp_path / "across", engine="flower", superlink=secured.superlink)
    assert run.status == "finished"
    assert weights(run) == weights(alone)
    assert charges(run) == charges(alone) != []


STRANGERS = {
    "no key": lambda lab, own: trusting(lab),
    "a key that nobody registered": lambda lab, own: [
        *trusting(lab),
        *with_key(own / "stranger.key"),
    ],
    "a registered key, but no certificate of it": lambda lab, own: [
        *trusting(lab),
        *with_key(lab.key(0)),
    ],
    "a key in another form": lambda lab, own: [*trusting(lab), *with_key(own / "pem.key")],
    "no authority": lambda lab, own: with_key(lab.key(0)),
    "another authority": lambda lab, own: [
        "--root-certificates",
        own / "certificates" / "ca.crt",
        *with_key(lab.key(0)),
    ],
    "no TLS": lambda lab, own: ["--insecure"],
}


def trusting(lab: Lab) -> list[object]:
    """A node that trusts the right authority."""
    return ["--root-certificates", lab.certificates / "ca.crt"]


def with_key(path: Path) -> list[object]:
    return ["--auth-supernode-private-key", path]


@pytest.fixture(scope="module")
def own_things(tmp_path_factory) -> Path:
    """What a stranger can make: a key, a key in the form that Flower does not take, an authority."""
    own = tmp_path_factory.mktemp("stranger")
    assert sordino(["flower", "key", str(own / "stranger.key")]) == 0
    assert sordino(["flower", "certificates", str(own), "--host", "127.0.0.1"]) == 0
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (own / "pem.key").write_bytes(ec.generate_private_key(ec.SECP384R1()).private_bytes(*form))
    return own


def test_a_node_that_is_not_known_or_not_trusting_is_refused(secured, own_things) -> None:
    before = secured.online
    # Logs of their own: those of the registered nodes name an ID.
    nodes = {
        name: secured.start_stranger(f"node-stranger-{at}", *options(secured, own_things))
        for at, (name, options) in enumerate(STRANGERS.items())
    }
    for node in nodes.values():
        node.wait(2 * SLOW)
    said = {name: secured.log(f"node-stranger-{at}") for at, name in enumerate(nodes)}
    assert [name for name, words in said.items() if "SuperNode ID" in words] == []
    assert secured.online == before


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path / "lab") as made:
        made.start_link()
        yield made


def in_background(**options) -> tuple[threading.Thread, list]:
    """A training that goes on while something happens to it."""
    outcome: list = []

    def work() -> None:
        try:
            outcome.append(train(**options))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcome


def wait_for_round(folder: Path, round: int) -> None:
    """Wait until a round was paid for, which is when its requests go out."""
    end = time.monotonic() + 3 * SLOW
    while (
        not (folder / "ledger.jsonl").exists()
        or f'"round":{round},' not in (folder / "ledger.jsonl").read_text()
    ):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_machine_that_dies_in_a_round_is_left_out_and_comes_back(secured, tmp_path) -> None:
    """Its node is killed when the second round is paid for; the round goes on without it; it is started again and takes part again."""
    protocol = plan(rounds=12, noise=Gaussian(sigma=0.05, secure=True))
    secured.start_nodes(protocol)
    folder = tmp_path / "across"
    # The round in which it dies lasts until the deadline.
    superlink = replace(secured.superlink, deadline=90.0)
    thread, outcome = in_background(
        protocol=protocol, folder=folder, engine="flower", superlink=superlink
    )
    wait_for_round(folder, 1)
    secured.kill("node-1")
    wait_for_round(folder, 2)
    secured.start_node(1)
    thread.join()
    run = outcome[0]
    assert isinstance(run, Run), run
    assert run.status == "finished"
    missed = [event for event in run.ledger if isinstance(event, Missed)]
    assert missed
    assert {event.clients for event in missed} == {(1,)}
    assert run.metrics["participants"][0] == run.metrics["participants"][-1] == 3
    assert set(run.metrics["participants"]) == {2, 3}
    assert len(ClientStore(secured.client(1)).rounds_paid) >= 12 - len(missed)


def test_a_machine_that_dies_and_is_started_again_at_once_misses_nothing(secured, tmp_path) -> None:
    """Its keeper takes leave of the SuperLink for the node that was killed, and it is asked again."""
    protocol = plan(rounds=4, noise=Gaussian(sigma=0.05, secure=True))
    secured.start_nodes(protocol)
    folder = tmp_path / "across"
    thread, outcome = in_background(
        protocol=protocol, folder=folder, engine="flower", superlink=secured.superlink
    )
    wait_for_round(folder, 1)
    secured.kill("node-1")
    secured.start_node(1)
    thread.join()
    run = outcome[0]
    assert isinstance(run, Run), run
    assert run.metrics["participants"].tolist() == [3, 3, 3, 3]
    assert ClientStore(secured.client(1)).rounds_paid == [0, 1, 2, 3]


def test_a_killed_superlink_is_restarted_and_the_run_ends_with_the_same_model(
    secured, tmp_path
) -> None:
    protocol = plan(**KINDS["prifedsync"], rounds=4, missing="repeat")
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1)
    secured.start_nodes(protocol, "--seeded")
    folder = tmp_path / "across"
    thread, outcome = in_background(
        protocol=protocol, folder=folder, engine="flower", superlink=secured.superlink
    )
    wait_for_round(folder, 2)
    secured.kill("link")
    time.sleep(5)
    secured.start_link()
    thread.join()  # it waits for the SuperLink, and goes on by itself
    run = outcome[0]
    assert isinstance(run, Run), run
    assert run.status == "finished"
    assert weights(run) == weights(alone)
    assert charges(run) == charges(alone) != []


def test_a_slow_machine_misses_the_deadline_and_the_run_goes_on(lab, tmp_path) -> None:
    """Its processes are stopped, as a machine that swaps would be, while the others answer."""
    protocol = plan(rounds=2, noise=Gaussian(sigma=0.05, secure=True))
    lab.start_nodes(protocol)
    folder, deadline = tmp_path / "across", 40.0
    link = SuperLink(
        address=lab.superlink.address, certificate=None, patience=SLOW, deadline=deadline
    )
    thread, outcome = in_background(
        protocol=protocol, folder=folder, engine="flower", superlink=link
    )
    wait_for_round(folder, 0)
    lab.freeze("node-2")
    wait_for_round(folder, 1)
    lab.thaw("node-2")
    thread.join()
    run = outcome[0]
    assert isinstance(run, Run), run
    assert run.status == "finished"
    missed = [event for event in run.ledger if isinstance(event, Missed)]
    assert (missed[0].round, missed[0].clients) == (0, (2,))
    assert f"within {deadline:g} s" in missed[0].reasons[0] or "Unavailable" in missed[0].reasons[0]
    assert run.metrics["participants"][0] == 2


def test_another_app_than_the_agreed_one_is_never_run(lab, tmp_path) -> None:
    """`flwr run` with one byte more in the client's side: the node refuses it before anything of it is imported."""
    protocol = plan(clients=1, rounds=1)
    lab.start_nodes(protocol, "--seeded")
    assert sordino(["flower", "new", str(tmp_path / "evil")]) == 0
    app, proof = tmp_path / "evil" / "app", tmp_path / "it-ran"
    with open(app / "sordino_app" / "client_app.py", "a") as file:
        file.write(f"\nopen({str(proof)!r}, 'w').write('stolen')\n")
    save_protocol(protocol, tmp_path / "protocol.toml")
    lab.submit(
        app, protocol=str(tmp_path / "protocol.toml"), folder=str(tmp_path / "run"), patience=20.0
    )
    store = ClientStore(lab.client(0))
    end = time.monotonic() + 2 * SLOW
    while not store.refusals:
        assert time.monotonic() < end, lab.log("node-0")[-3000:]
        time.sleep(0.2)
    assert "an app was sent that was not agreed to" in store.refusals[0].reason
    assert not proof.exists()
    assert store.rounds_paid == []


def test_flowers_own_command_runs_it_with_the_protocol_file_in_the_run_config(
    lab, tmp_path
) -> None:
    protocol = plan(clients=2, rounds=1, missing="repeat")
    alone = train(protocol, folder=tmp_path / "alone", engine="torch", workers=1)
    lab.start_nodes(protocol, "--seeded")
    assert sordino(["flower", "new", str(tmp_path / "ours")]) == 0
    save_protocol(protocol, tmp_path / "protocol.toml")
    folder = tmp_path / "run"
    number = lab.submit(
        tmp_path / "ours" / "app", protocol=str(tmp_path / "protocol.toml"), folder=str(folder)
    )
    assert lab.ended(number) == "finished:completed"
    assert weights(Run.load(folder)) == weights(alone)


@pytest.mark.skipif(
    shutil.which("strace") is None,
    reason="strace is not installed: what connects where cannot be watched",
)
def test_nothing_connects_to_any_address_but_the_superlinks(tmp_path) -> None:
    """Every connect of every process, of the SuperLink, of both nodes and of the training, as the kernel sees it."""
    protocol = plan(clients=2, rounds=1, noise=Gaussian(sigma=0.05, secure=True))
    with Lab(tmp_path / "lab", watched=True) as lab:
        lab.start_link()
        lab.start_nodes(protocol)
        save_protocol(protocol, tmp_path / "protocol.toml")
        options = [
            "--superlink",
            f"127.0.0.1:{lab.port}",
            "--insecure",
            "--patience",
            SLOW,
            "--out",
            tmp_path / "run",
        ]
        training = lab.spawn(
            "train", ["train", tmp_path / "protocol.toml", "--engine", "flower", *options]
        )
        assert training.wait(6 * SLOW) == 0, lab.log("train")[-3000:]
    calls = [
        line
        for trace in (tmp_path / "lab").glob("*.trace*")
        for line in trace.read_text(errors="replace").splitlines()
    ]
    outside = [
        line
        for line in calls
        if "AF_INET" in line and not re.search(r'inet_addr\("127\.0\.0\.1"\)|"::1"', line)
    ]
    assert outside == []
    families = set(re.findall(r"sa_family=(AF_\w+)", "\n".join(calls)))
    assert "AF_INET" in families
    assert families <= {"AF_INET", "AF_INET6", "AF_UNIX", "AF_UNSPEC"}
    assert np.array_equal(Run.load(tmp_path / "run").metrics["participants"], [2])


def test_a_protocol_that_a_client_did_not_agree_to_gets_no_upload(lab, tmp_path) -> None:
    agreed: Protocol = plan(clients=2, rounds=1, noise=Gaussian(sigma=0.5, secure=True))
    lab.start_nodes(agreed)
    weaker = plan(clients=2, rounds=1, noise=Gaussian(sigma=0.1, secure=True))
    reason = "noise.sigma = 0.1 was requested, and 0.5 was agreed to"
    with pytest.raises(SordinoError, match=reason):
        train(weaker, folder=tmp_path / "weaker", engine="flower", superlink=lab.superlink)
    for client in range(2):
        store = ClientStore(lab.client(client))
        assert store.rounds_paid == []
        assert {refusal.reason for refusal in store.refusals} == {reason}
