"""Attempts on what came last: certificates of nodes, the port for metrics, the transport of secure sums."""

import http.client
import json
import re
import socket
import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict

from sordino import Gaussian
from sordino.flower import guard, metrics_endpoint
from sordino.flower.access_control import AccessControl
from sordino.flower.certificates import write_key
from sordino.flower.client_keys import NODES, add_clients
from sordino.flower.connected_clients import ConnectedClients
from sordino.flower.messages import SUMS, attach_signature, make_wave_record
from sordino.flower.metrics_endpoint import PublishedState, serve_state
from sordino.flower.signing import sums_statement
from tests.flower.local import LocalGrid, consortium, plan
from tests.flower.test_access_control import OWN_ADDRESS, Behind, serve, status_of
from tests.flower.test_further_attacks import other_account
from tests.flower.test_mutual_tls import consortium as consortium_over_tls
from tests.flower.test_mutual_tls import trouble
from tests.flower.test_signed import Attacked
from tests.support import REPOSITORY

__all__ = ["consortium_over_tls"]

# An account that nobody here has: every caller is a stranger.
STRANGERS_ONLY = 12_345


def say(url: str, text: bytes) -> bytes:
    """What a server answers to bytes, until it closes the connection or falls silent."""
    host, _, port = url.removeprefix("http://").partition(":")
    got = b""
    with socket.create_connection((host, int(port)), timeout=1.0) as caller:
        caller.sendall(text)
        try:
            while part := caller.recv(4096):
                got += part
        except TimeoutError:
            pass
    return got


@pytest.fixture(scope="module")
def gate():
    behind = Behind()
    with serve(AccessControl(behind, secured=True, account=STRANGERS_ONLY)) as url:
        yield url, behind


# Calls that are written so that gate and app might read them differently


@pytest.mark.parametrize(
    "target",
    [
        b"/v1%2fcontrol%2fstart-run",
        b"/%76%31/control/start-run",
        b"http://127.0.0.1/v1/control/start-run",
        b"/v1/fleet/pull-messages/../../control/start-run",
        b"/v1/control/start-run?/v1/fleet/pull-messages",
        b"/v1/control/start-run;/health",
    ],
)
def test_a_call_in_another_spelling_is_not_taken_for_a_nodes(gate, target) -> None:
    url, behind = gate
    got = say(url, b"POST " + target + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    assert got.split()[1] in (b"400", b"401", b"403")
    assert behind.reached == []


def test_a_websocket_gets_through_to_nothing(gate) -> None:
    url, behind = gate
    head = b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    got = say(url, b"GET /v1/control/start-run HTTP/1.1\r\n" + head + key)
    assert not got.startswith(b"HTTP/1.1 101")
    assert behind.reached == []


def test_a_call_behind_one_that_is_allowed_is_judged_by_itself(gate) -> None:
    """Both in one segment; and one hidden in the body of the other, by two lengths."""
    url, behind = gate
    hidden = b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    allowed = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    say(url, allowed + b"\r\n" + hidden)
    say(url, allowed + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden)
    assert {path for path, _ in behind.reached} <= {"/health"}
    behind.reached.clear()


@other_account
@pytest.mark.skipif(OWN_ADDRESS is None, reason="this machine has no address but loopback's")
def test_another_account_gets_no_rights_by_the_machines_own_address() -> None:
    """The coordinator's calls are known by that address too, and by their account."""
    with serve(AccessControl(Behind(), secured=True), str(OWN_ADDRESS)) as url:
        assert status_of(f"{url}/v1/control/start-run") == 200
        assert status_of(f"{url}/v1/control/start-run", user=65534) == 403


# Certificates of nodes


def test_a_list_of_certificates_that_is_spoiled_keeps_out_nobody_who_is_trusted(
    consortium_over_tls,
) -> None:
    """It once ended every connection before it began, and left its file open."""
    folder, address, _ = consortium_over_tls
    add_clients(folder, {0: write_key(folder / "node.key")})
    assert trouble(folder, address, folder / "node.key") is None
    (folder / NODES).write_text("-----BEGIN CERTIFICATE-----\nspoiled\n")
    assert trouble(folder, address, folder / "node.key") is None


# The port for metrics, which every account of the machine reaches


@pytest.fixture
def metrics(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_endpoint, "CALL_SECONDS", 0.5)
    state = PublishedState(tmp_path)
    server = serve_state(state, 0)
    yield state, server.server_port
    server.shutdown()
    server.server_close()


def ask(port: int, path: str = "/metrics", host: str | None = None) -> tuple[int, str]:
    caller = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    headers = {} if host is None else {"Host": host}
    caller.request("GET", path, headers=headers)
    answer = caller.getresponse()
    return answer.status, answer.read().decode()


def test_connections_that_say_nothing_use_up_neither_threads_nor_files_of_what_runs_a_party(
    metrics,
) -> None:
    """Each was a thread and a file of `up`, which could then open no connection of its own."""
    _, port = metrics
    before = threading.active_count()
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    time.sleep(0.2)
    # A thread for each that is answered, and one for its time.
    assert threading.active_count() - before <= 2 * metrics_endpoint.CONNECTIONS
    for connection in held:
        connection.close()


def test_a_caller_that_sends_a_byte_now_and_then_is_cut(metrics) -> None:
    _, port = metrics
    with socket.create_connection(("127.0.0.1", port), timeout=5) as caller:
        began = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() < began + 5:
                caller.sendall(b"x")
                time.sleep(0.05)
    assert time.monotonic() - began < 4
    assert ask(port)[0] == 200


def test_a_page_whose_name_leads_to_this_machine_reads_nothing(metrics) -> None:
    """By a name of its own that resolves to 127.0.0.1, a page in a browser read what was spent."""
    state, port = metrics
    state.publish(True, {"sordino_epsilon_spent": 3.5}, "connected")
    assert ask(port, host=f"pictures.example:{port}") == (421, "ask under the name 127.0.0.1\n")
    assert "3.5" in ask(port, host=f"localhost:{port}")[1]


def test_words_of_a_refusal_add_no_metric(metrics) -> None:
    """The server chooses some of them."""
    state, port = metrics
    words = 'refused: x"}\nsordino_healthy 1\n'
    state.publish(False, {"sordino_healthy": 0.0}, words)
    assert "sordino_healthy 1" not in ask(port)[1]
    assert json.loads(ask(port, "/health")[1])["said"] == words


def test_every_attempt_that_the_documentation_lists_has_its_tests() -> None:
    page = (REPOSITORY / "docs" / "flower-attacks.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 35
    for row in rows:
        files = re.findall(r"`(test_\w+)`", row.split("|")[-2])
        assert files
        assert all((REPOSITORY / "tests" / "flower" / f"{name}.py").exists() for name in files)


# The transport of secure sums


def wave(client: Attacked, run: str, *, signed_for: str | None, body: bytes = b"{}") -> Message:
    content = RecordDict({SUMS: make_wave_record("prepare", body)})
    if signed_for is not None:
        attach_signature(content, sums_statement("prepare", body, signed_for), client.signer)
    return Message(content, 1000, "query")


@pytest.mark.parametrize(
    ("signed_for", "words"),
    [(None, "not signed by the coordinator"), ("2", "something else")],
    ids=["unsigned", "of another run"],
)
def test_a_wave_that_the_coordinator_did_not_send_here_is_not_even_read(
    tmp_path, monkeypatch, signed_for, words
) -> None:
    """A megabyte, so that reading it would cost something."""
    client = Attacked(tmp_path, plan(noise=Gaussian(sigma=0.05, secure=True)))

    def never(*_: object) -> None:
        raise AssertionError("a stranger's wave was read")

    monkeypatch.setattr(guard, "answer_sum_call", never)
    reply = client.send(wave(client, "1", signed_for=signed_for, body=b"[" * 10**6))
    assert words in client.refusal(reply)
    assert client.store.rounds_paid == []


def test_a_wave_that_is_signed_is_none_of_a_request_for_an_upload(tmp_path) -> None:
    """The signature of one kind of message is moved to another."""
    client = Attacked(tmp_path, plan(noise=Gaussian(sigma=0.05, secure=True)))
    asked = client.message(0)
    stolen = wave(client, "1", signed_for="1")
    asked.content["signed"] = stolen.content["signed"]
    assert "something else" in client.refusal(client.send(asked))
    assert client.store.rounds_paid == []


def test_what_a_node_says_of_its_records_reaches_no_terminal_as_it_is(tmp_path) -> None:
    """A registered node names its number of inputs in words: escape sequences, a megabyte of them."""
    consortium(tmp_path, plan(clients=1))
    grid = LocalGrid(tmp_path)
    honest = grid.answer

    def lie(client: int, message: Message) -> Message:
        reply = honest(client, message)
        said = {**dict(reply.content["self"]), "inputs": "\x1b[2J\n" * 10**5}
        reply.content["self"] = ConfigRecord(said)
        return reply

    grid.answer = lie
    connected = ConnectedClients(grid, 1)
    connected.refresh()
    [words] = connected.require_inputs("1 x 8 x 8")
    assert words.isprintable()
    assert len(words) < 300
    assert connected.nodes == {}
