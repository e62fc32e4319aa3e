"""Attacks by somebody who did not write the deployment: those that once got something, and some that never did."""

import asyncio
import contextlib
import errno
import http.client
import importlib
import io
import itertools
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

import uvicorn
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from flwr.app import Array, ConfigRecord, Message

from sordino import Attention, Constant, Data, Gaussian, Model, Scaffold, UserError
from sordino.federation.setup import prepare
from sordino.flower import (
    access_control,
    client_store,
    connection_limits,
    local_work,
    reply_collection,
    superlink,
)
from sordino.flower.access_control import BURST, AccessControl
from sordino.flower.client_keys import assign_clients
from sordino.flower.connected_clients import ConnectedClients, Identities
from sordino.flower.messages import (
    SIGNED,
    MalformedMessage,
    introduction_request,
    request_message,
    unpack_array,
)
from sordino.flower.superexec import fork_process
from sordino.flower.upload_requests import MODEL, Request
from sordino.protocol import dumps, override_keys
from sordino.protocol.arithmetic import state_integers
from tests.flower.lab import free_port
from tests.flower.local import LocalGrid, across, agreed, consortium, plan
from tests.flower.test_access_control import Behind, call
from tests.flower.test_enforcement import Server
from tests.flower.test_signed import Attacked

SECURE = Gaussian(sigma=0.05, secure=True)
OWN_MODELS = Attention(own=0.4, pull=0.5)


# Another account on the coordinator's machine


@pytest.fixture
def coordinator():
    """A gate as uvicorn serves it, and a connection that the coordinator holds open to it."""
    port = free_port()
    config = uvicorn.Config(
        AccessControl(Behind(), secured=True),
        host="127.0.0.1",
        port=port,
        log_level="error",
        lifespan="off",
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
    monkeypatch.setattr(superlink, "install_access_control", lambda **_: None)
    monkeypatch.setattr(superlink, "check_access_control", lambda: None)
    monkeypatch.setattr(uvicorn.Server, "run", uvicorn.Server.run)  # `main` replaces it for good
    found = []
    monkeypatch.setattr(
        command, "flower_superlink", lambda: found.append(uvicorn.Config("x").forwarded_allow_ips)
    )
    superlink.main(["--insecure"])
    assert found == [""]


# A coordinator that sends what it should not


def test_a_refusal_says_nothing_of_what_a_client_has_kept(tmp_path) -> None:
    """A client's personal model, which no noise covers, counted when weights were compared with a limit.

    A refused request costs nothing, so a server that came close to the limit step by step read
    the largest of its weights from how often it was refused.
    """
    protocol = plan(noise=SECURE, rounds=10, personalization=OWN_MODELS)
    size = prepare(protocol).initial_weights().size
    limit = local_work.find_largest_weight(protocol, 1, 40, size)
    answers = []
    for name, largest in (("small", 0.0), ("large", 1e6)):
        server = Server(tmp_path / name, protocol)
        server.upload(0)
        kept = server.store.answers.read(0)
        changed = {"model": np.full_like(kept.kept["model"], largest)}
        server.store.answers.write(type(kept)(**{**vars(kept), "kept": changed}))
        near = np.full(size, np.float32(limit * (1 - 1e-6)))
        beyond = np.full(size, np.float32(limit * (1 + 1e-6)))
        answers.append([server.ask(1, model=model).has_content() for model in (beyond, near)])
    assert answers == [[False, True], [False, True]]


def test_what_a_client_has_kept_leaves_room_for_its_steps() -> None:
    """The oracle: adding a step of a thousandth of the clip to such weights shows it to one part in a thousand."""
    protocol = plan(noise=SECURE, personalization=OWN_MODELS)
    limit = local_work.find_largest_weight(protocol, 0, 40, 2410)
    kept = local_work.bound_arrays({"model": np.full(4, 1e30, np.float32)}, limit)["model"]
    assert (kept <= limit).all()
    received = np.float64(limit)
    step = 1e-3
    assert (received + kept[0].astype(float) + step) - (received + kept[0]) == pytest.approx(
        step, rel=1e-3
    )
    plain = local_work.find_largest_weight(plan(noise=SECURE), 0, 40, 2410)
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
    assert not (server.store.folder / "accepted.json").exists()
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
        found = unpack_array(array_of(BYTES[name]))
    except MalformedMessage:
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
    monkeypatch.setattr(reply_collection, "RETRY_PAUSE", 0.05)
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
    connected = ConnectedClients(grid, 1, Identities(keys={7: "the key of client 7"}))
    connected.refresh()
    assert connected.nodes == {}


# A stranger who holds connections open and says nothing


@pytest.fixture
def behind_door(monkeypatch):
    """A server behind a door that lets an address of this machine hold 20 connections."""
    monkeypatch.setattr(uvicorn.Server, "run", uvicorn.Server.run)
    monkeypatch.setattr(connection_limits, "LOCAL_CONNECTIONS", 20)
    superlink.install_listener()
    port = free_port()
    config = uvicorn.Config(Behind(), host="127.0.0.1", port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield port
    server.should_exit = True
    thread.join()


def status_from(address: str, port: int) -> int:
    caller = http.client.HTTPConnection("127.0.0.1", port, timeout=10, source_address=(address, 0))
    try:
        caller.request("GET", "/health")
        return caller.getresponse().status
    except OSError:
        return 0
    finally:
        caller.close()


def test_connections_that_say_nothing_keep_nobody_else_out(behind_door) -> None:
    """240 of them held all files of a SuperLink that may open 256, for as long as they liked."""
    with contextlib.ExitStack() as held:
        for _ in range(60):
            held.enter_context(socket.create_connection(("127.0.0.1", behind_door)))
        assert status_from("127.0.0.2", behind_door) == 200
        assert status_from("127.0.0.1", behind_door) == 0
    end = time.monotonic() + 10
    while status_from("127.0.0.1", behind_door) != 200:
        assert time.monotonic() < end, "connections that were closed are still counted"


@pytest.mark.parametrize("part", [b"X-A: b\r\n", b"a"])
def test_a_call_whose_head_does_not_end_is_cut(behind_door, part) -> None:
    """60 MB of headers took 750 MB of the SuperLink's memory, and there was no end to it."""
    with socket.create_connection(("127.0.0.1", behind_door), timeout=10) as caller:
        caller.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-B: ")
        with contextlib.suppress(OSError):
            caller.sendall(part * (2**20 // len(part)))
        try:
            got = caller.recv(100)
        except ConnectionResetError:
            got = b""
    assert got == b"" or got.startswith(b"HTTP/1.1 400")


def test_a_subscriber_of_ipv6_is_one_caller_whatever_address_it_takes(monkeypatch) -> None:
    # On a busy machine calls come so slowly that as many are given back as are spent.
    monkeypatch.setattr(access_control, "RATE", 0.0)
    assert connection_limits.identify_caller(
        "2001:db8:1:2::1"
    ) == connection_limits.identify_caller("2001:db8:1:2:ffff::9")
    assert connection_limits.identify_caller(
        "2001:db8:1:3::1"
    ) != connection_limits.identify_caller("2001:db8:1:2::1")
    gate = AccessControl(Behind(), secured=True)
    got = [
        asyncio.run(call(gate, "/health", client=(f"2001:db8:1:2::{last:x}", 1)))
        for last in range(int(BURST) + 100)
    ]
    assert 503 in got


# A disk that is full, at whichever write


def attempt_all(client: Attacked) -> list[bytes]:
    """What leaves when a round is asked for again and again."""
    replies = [client.ask(0, attempt=attempt) for attempt in range(3)]
    return [reply.content["upload"]["vector"].data for reply in replies if reply.has_content()]


@pytest.mark.parametrize("failing", range(9))
def test_a_disk_that_is_full_at_any_write_gives_no_second_noise_and_nothing_unpaid(
    tmp_path, monkeypatch, failing
) -> None:
    counter = tmp_path / "elsewhere" / "counter.json"
    client = Attacked(tmp_path / "a", plan(noise=SECURE, rounds=10), counter=str(counter))
    writes = itertools.count()
    sync = os.fsync

    def full(handle: int) -> None:
        if next(writes) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    sent = attempt_all(client)
    assert len(set(sent)) == 1
    assert client.store.rounds_paid == [0]
    assert json.loads(counter.read_bytes())["lines"] == len(client.store.events)


def test_nothing_leaves_before_the_second_place_knows_of_it(tmp_path, monkeypatch) -> None:
    """Asked for the third time, a client sent what it had kept, though the counter had never been written.

    A folder restored from a backup would then have gone unnoticed.
    """
    client = Attacked(
        tmp_path / "a", plan(noise=SECURE, rounds=10), counter=str(tmp_path / "counter.json")
    )

    def full(*_: object) -> None:
        raise UserError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(client_store, "write_counter", full)
        assert attempt_all(client) == []
        assert attempt_all(client) == []
    assert len(attempt_all(client)) > 0
    assert client.store.rounds_paid == [0]


# What was tried and got nothing


def test_the_authoritys_own_certificate_signs_no_requests(tmp_path) -> None:
    """It is issued by the authority, as any certificate that signs itself."""
    client = Attacked(tmp_path, plan(noise=SECURE))
    message = client.message(0)
    authority = (client.certificates / "ca.crt").read_bytes()
    message.content[SIGNED] = ConfigRecord({"certificate": authority, "signature": b"x"})
    assert "not signed by the coordinator" in client.refusal(client.send(message))


@pytest.mark.parametrize("signature", [b"", b"\x30\x06\x02\x01\x00\x02\x01\x00", b"0" * 10**5])
def test_a_signature_of_zeros_or_of_nothing_is_none(tmp_path, signature) -> None:
    client = Attacked(tmp_path, plan(noise=SECURE))
    message = client.message(0)
    signed = {**dict(message.content[SIGNED]), "signature": signature}
    message.content[SIGNED] = ConfigRecord(signed)
    assert "signature is of something else" in client.refusal(client.send(message))


def test_a_signature_of_a_question_is_none_of_a_request(tmp_path) -> None:
    client = Attacked(tmp_path, plan(noise=SECURE))
    question = introduction_request(node=1000, signer=client.signer, run="1")
    message = client.message(0)
    message.content[SIGNED], question.content[SIGNED] = (
        question.content[SIGNED],
        message.content[SIGNED],
    )
    assert "something else" in client.refusal(client.send(message))
    assert "something else" in client.refusal(client.send(question))


def test_a_second_form_of_one_signature_is_no_second_request(tmp_path) -> None:
    """Of a signature (r, s), (r, -s) is valid too: who has no key can make it."""
    order = int(
        "ffffffffffffffffffffffffffffffffffffffffffffffff"
        "c7634d81f4372ddf581a0db248b0a77aecec196accc52973",
        16,
    )
    client = Attacked(tmp_path, plan(noise=SECURE))
    client.upload(0)
    message = client.message(0)
    first, second = decode_dss_signature(message.content[SIGNED]["signature"])
    twin = encode_dss_signature(first, order - second)
    message.content[SIGNED] = ConfigRecord({**dict(message.content[SIGNED]), "signature": twin})
    assert "answered already" in client.send(message).error.reason


@pytest.mark.parametrize(
    "change",
    ["model.name='antigravity:x'", "noise={mechanism='antigravity:x', scale=1.0, secure=true}"],
)
def test_a_name_in_a_protocol_that_was_not_agreed_to_imports_nothing(tmp_path, change) -> None:
    server = Server(tmp_path, plan(noise=SECURE))
    server.refusal(0, protocol=override_keys(server.protocol, [change]))
    assert "antigravity" not in sys.modules


def test_a_path_in_a_protocol_is_not_opened_on_a_client_with_records_of_its_own(tmp_path) -> None:
    """The name of the data is the server's affair there: a pipe that nobody writes to would hold the client up."""
    x = np.random.default_rng(0).normal(size=(60, 64)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(60) % 10)
    os.mkfifo(tmp_path / "pipe.npz")
    protocol = plan(
        noise=SECURE,
        data=Data(name="public.npz", records=40, classes=10),
        model=Model(name="logistic"),
    )
    agreed(tmp_path / "client-0", 0, protocol, data=str(tmp_path / "mine.npz"), records=40)
    asked = override_keys(protocol, [f"data.name={str(tmp_path / 'pipe.npz')!r}"])
    arrays = {MODEL: np.zeros(650, np.float32)}
    request = Request(
        training="one",
        client=0,
        round=0,
        attempt=0,
        protocol=dumps(state_integers(asked)),
        arrays=arrays,
    )
    message = request_message(request, node=1000, ttl=60)
    message.metadata.__dict__["_message_id"] = "question"
    assert LocalGrid(tmp_path).answer(0, message).has_content()


def test_a_number_of_a_client_that_is_no_number_is_the_name_of_a_file() -> None:
    """A "²" counts as a digit, and ended the coordinator's command with a traceback."""
    assert assign_clients({}, ["²=north.pub"]) == {0: Path("²=north.pub")}


def test_one_recorded_request_sent_by_many_at_once_is_one_charge_and_one_upload(tmp_path) -> None:
    """The very same signed message, to eight processes that answer for one client."""
    client = Attacked(tmp_path, plan(noise=SECURE))
    message = client.message(0)

    def replay(number: int) -> int:
        # Threads of earlier tests' operators do not survive a fork; waiting for them would never end.
        torch.set_num_threads(1)
        reply = client.send(message)
        if reply.has_content():
            upload = reply.content["upload"]["vector"].data
            (tmp_path / f"{number}.upload").write_bytes(upload)
        return 0

    for process in [fork_process(lambda number=number: replay(number)) for number in range(8)]:
        os.waitpid(process, 0)
    assert len(list(tmp_path.glob("*.upload"))) == 1
    assert client.store.rounds_paid == [0]


def test_a_recorded_request_is_of_no_use_for_another_client_of_the_authority(tmp_path) -> None:
    """Requests do not name the node that they are for; they name the client, its round and its training."""
    client = Attacked(tmp_path, plan(noise=SECURE))
    message = client.message(0)
    authority = str(client.certificates / "ca.crt")
    other = agreed(
        tmp_path / "client-1", 1, client.protocol, certificate=authority, parameters=2410
    )
    message.metadata.__dict__["_message_id"] = "question"
    assert "client 0 was requested" in client.grid.answer(1, message).error.reason
    assert other.rounds_paid == []
