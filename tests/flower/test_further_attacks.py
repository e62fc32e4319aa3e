"""Attacks by somebody who did not write the deployment: those that once got something, and some that never did."""

import importlib
import io
import math
import os
import socket
import subprocess
import threading
import time
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

import uvicorn
from flwr.app import Array, ConfigRecord, Message

from sordino import Attention, Constant, Gaussian, Scaffold, UserError
from sordino.engines.flower import inquiry, superlink, work
from sordino.engines.flower.messages import Malformed, as_numpy
from sordino.engines.flower.middleware import Gate
from sordino.engines.flower.roster import Identities, Roster
from sordino.federation.setup import prepare
from tests.flower.lab import free_port
from tests.flower.local import LocalGrid, across, agreed, consortium, plan
from tests.flower.test_enforcement import Server
from tests.flower.test_gate import Behind

SECURE = Gaussian(sigma=0.05, secure=True)
OWN_MODELS = Attention(own=0.4, pull=0.5)


# Another account on the coordinator's machine


@pytest.fixture
def coordinator():
    """A gate as uvicorn serves it, and a connection that the coordinator holds open to it."""
    port = free_port()
    config = uvicorn.Config(
        Gate(Behind(), secured=True), host="127.0.0.1", port=port, log_level="error", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    with socket.create_connection(("127.0.0.1", port)) as own:
        yield port, own.getsockname()[1]
    server.should_exit = True
    thread.join()


INTRUDER = """
import socket, sys
port, source, address, header = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
connection = socket.socket()
connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
connection.bind((address, source))
connection.connect(("127.0.0.1", port))
call = "GET /v1/control/list-runs HTTP/1.1\\r\\nHost: x\\r\\n" + header + "\\r\\n"
connection.sendall(call.encode())
print(connection.recv(100).split()[1].decode())
"""


def intrude(port: int, source: int, address: str, header: str = "") -> int:
    command = ["/usr/bin/python3", "-c", INTRUDER, str(port), str(source), address, header]
    done = subprocess.run(command, capture_output=True, text=True, check=True, user=65534, cwd="/")
    return int(done.stdout)


other_account = pytest.mark.skipif(
    os.getuid() != 0 or not os.path.exists("/usr/bin/python3"),
    reason="only root can play another account",
)


@other_account
def test_another_account_gets_no_rights_by_the_port_of_the_coordinators_connection(
    coordinator,
) -> None:
    """From another loopback address it can have the same ports: it reached everything."""
    port, source = coordinator
    got = [intrude(port, source, f"127.0.0.{last}") for last in range(2, 10)]
    assert got == [403] * 8


@other_account
@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_another_account_gets_no_rights_by_a_header_with_the_coordinators_port(
    coordinator, name
) -> None:
    """uvicorn takes address and port of a caller from the header where 127.0.0.1 calls."""
    port, source = coordinator
    assert intrude(port, 0, "127.0.0.1", f"{name}: 127.0.0.1:{source}\r\n") == 403


def test_a_superlink_believes_nobody_who_says_for_whom_it_calls(monkeypatch) -> None:
    command = importlib.import_module("flwr.superlink.cli.flower_superlink")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    monkeypatch.setattr(superlink, "put_gate_in_front", lambda **_: None)
    monkeypatch.setattr(superlink, "check_gate", lambda: None)
    found = []
    monkeypatch.setattr(
        command, "flower_superlink", lambda: found.append(uvicorn.Config("x").forwarded_allow_ips)
    )
    superlink.main(["--insecure"])
    assert found == [""]


# A coordinator that sends what it should not


def test_a_refusal_says_nothing_of_what_a_client_has_kept(tmp_path) -> None:
    """A client's own model, which no noise covers, counted when weights were compared with a limit.

    A refused request costs nothing, so a server that came close to the limit step by step read
    the largest of its weights from how often it was refused.
    """
    protocol = plan(noise=SECURE, rounds=10, personalization=OWN_MODELS)
    size = prepare(protocol).initial_weights().size
    limit = work.largest_weight(protocol, 1, 40, size)
    answers = []
    for name, largest in (("small", 0.0), ("large", 1e6)):
        server = Server(tmp_path / name, protocol)
        server.upload(0)
        kept = server.custodian._read(0)
        changed = {"model": np.full_like(kept.kept["model"], largest)}
        server.custodian._write(type(kept)(**{**vars(kept), "kept": changed}))
        near = np.full(size, np.float32(limit * (1 - 1e-6)))
        beyond = np.full(size, np.float32(limit * (1 + 1e-6)))
        answers.append([server.ask(1, model=model).has_content() for model in (beyond, near)])
    assert answers == [[False, True], [False, True]]


def test_what_a_client_has_kept_leaves_room_for_its_steps() -> None:
    """The oracle: adding a step of a thousandth of the clip to such weights shows it to one part in a thousand."""
    protocol = plan(noise=SECURE, personalization=OWN_MODELS)
    limit = work.largest_weight(protocol, 0, 40, 2410)
    kept = work.bounded({"model": np.full(4, 1e30, np.float32)}, limit)["model"]
    assert (kept <= limit).all()
    received = np.float64(limit)
    step = 1e-3
    assert (received + kept[0].astype(float) + step) - (received + kept[0]) == pytest.approx(
        step, rel=1e-3
    )
    plain = work.largest_weight(plan(noise=SECURE), 0, 40, 2410)
    assert plain == pytest.approx(2 * limit)
    steps = plan().local.schedule.rates(round=0, steps=3)
    assert plain == pytest.approx(1e-6 * min(steps) * 2.0**53 / (4 * math.sqrt(2410)))


def rows(count: int):
    return lambda model: np.stack([model] * count)


@pytest.mark.parametrize(
    ("kind", "part", "change"),
    [
        ("plain", "model", rows(1)),
        ("plain", "model", rows(2)),
        ("plain", "model", rows(3)),
        ("plain", "model", lambda model: np.zeros((0, model.size), np.float32)),
        ("plain", "helper", lambda model: model),
        ("personal", "helper", rows(2)),
        ("personal", "model", rows(2)),
        ("scaffold", "model", lambda model: model),
        ("scaffold", "model", rows(4)),
    ],
    ids=str,
)
def test_arrays_that_the_protocol_does_not_send_bind_and_charge_nothing(
    tmp_path, kind, part, change
) -> None:
    """Some were charged, bound the agreement, and failed then."""
    scaffold = Scaffold(steps=3, batch=6, clip=1.0, schedule=Constant(rate=0.3))
    changes = {
        "plain": {},
        "personal": {"personalization": OWN_MODELS},
        "scaffold": {"local": scaffold},
    }
    server = Server(tmp_path, plan(noise=SECURE, rounds=9, **changes[kind]))
    assert f"a {part} of float32 numbers" in server.refusal(0, **{part: change(server.model)})
    assert not (server.custodian.folder / "accepted.json").exists()
    real = rows(2)(server.model) if kind == "scaffold" else server.model
    server.upload(0, model=real, training="the real one")


# A registered client that wants the coordinator's training to end


def npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def zipped() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", bytes(10**6))
    return content.getvalue()


BYTES = {
    "zip-magic": b"PK\x03\x04junk",
    "zip": zipped(),
    "open-bracket": npy("{'descr': ("),
    "deep": npy("-" * 5000 + "1"),
    "huge": npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**40},)}}"),
    "overflow": npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**70},)}}"),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
    "pickle": b"\x80\x04cos\nsystem\n.",
}


def array_of(content: bytes) -> Array:
    return Array(dtype="float32", shape=(2410,), stype="numpy.ndarray", data=content)


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_no_array_are_their_senders_mistake(name) -> None:
    """BadZipFile, TokenError, RecursionError and OverflowError ended the coordinator's training."""
    try:
        found = as_numpy(array_of(BYTES[name]))
    except Malformed:
        return
    assert found.dtype != np.float32


@pytest.mark.parametrize("name", ["zip-magic", "open-bracket"])
def test_a_training_goes_on_without_a_client_that_sends_no_array(tmp_path, name) -> None:
    def trouble(message: Message, reply: Message) -> Message:
        reply.content["upload"]["vector"] = array_of(BYTES[name])
        return reply

    protocol = plan(noise=SECURE, rounds=1)
    grid = consortium(tmp_path, protocol)
    grid.troubles[1] = trouble
    run = across(tmp_path / "run", protocol, grid)
    assert run.status == "finished"
    assert run.metrics["participants"].tolist() == [2]


class Misleading(LocalGrid):
    """A grid as Flower's: a reply names what its sender wrote, or cannot be made of that at all."""

    broken = False

    def pull_messages(self, message_ids):
        found = list(super().pull_messages(message_ids))
        for reply in found:
            if self.is_upload_of_client_one(reply):
                if self.broken:
                    raise KeyError("a type of object that Flower does not have")
                reply.metadata.__dict__["_reply_to_message_id"] = "nonsense"
        return found

    def is_upload_of_client_one(self, reply: Message) -> bool:
        asked = {message.metadata.message_id: client for client, message in self.asked}
        sender = asked.get(reply.metadata.reply_to_message_id)
        return sender == 1 and reply.has_content() and "upload" in reply.content


@pytest.mark.parametrize("broken", [False, True])
def test_a_training_goes_on_without_a_client_whose_reply_answers_no_question(
    tmp_path, monkeypatch, broken
) -> None:
    """Flower checks one copy of what a reply says of itself, and hands on another."""
    protocol = plan(noise=SECURE, rounds=1)
    consortium(tmp_path, protocol)
    grid = Misleading(tmp_path)
    grid.broken = broken
    monkeypatch.setattr(inquiry, "AGAIN", 0.05)
    run = across(tmp_path / "run", protocol, grid, deadline=1.2)
    assert run.status == "finished"
    assert run.metrics["participants"].tolist() == [2]


@pytest.mark.parametrize("records", [10**7, 2**62])
def test_a_client_that_says_it_has_other_records_than_agreed_is_not_used(tmp_path, records) -> None:
    """The coordinator counts them in memory: one number ended its training, or its machine."""
    protocol = plan(noise=SECURE, rounds=1)
    grid = consortium(tmp_path, protocol)
    honest = grid.answer

    def lie(client: int, message: Message) -> Message:
        reply = honest(client, message)
        if client == 1 and message.metadata.message_type == "query":
            said = {**dict(reply.content["self"]), "records": records}
            reply.content["self"] = ConfigRecord(said)
        return reply

    grid.answer = lie
    with pytest.raises(UserError, match="1 of 3 clients are not connected"):
        across(tmp_path / "run", protocol, grid)


def test_a_node_without_a_key_is_not_a_client_that_was_never_registered(tmp_path) -> None:
    """Neither has a fingerprint, and two that are missing were taken for the same."""
    agreed(tmp_path / "client-0", 0, plan(clients=1))
    grid = LocalGrid(tmp_path)
    grid.get_nodes = lambda: [SimpleNamespace(node_id=1000, public_key=b"no key")]
    roster = Roster(grid, 1, Identities(keys={7: "the key of client 7"}))
    roster.refresh()
    assert roster.nodes == {}
