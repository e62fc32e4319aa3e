"""Other machines and other accounts reach a SuperLink's calls for nodes, and nothing else."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sordino[flower]'")

import uvicorn
from flwr.superlink import extensions
from flwr.superlink import main as flower

from sordino import UserError
from sordino.flower import access_control, superlink
from sordino.flower.access_control import (
    BURST,
    CALL_BYTES,
    CERTIFICATE_SHOWN,
    CONCURRENT,
    OBJECT_BYTES,
    AccessControl,
    may_be_local,
)
from sordino.flower.connection_limits import CONNECTIONS, LOCAL_CONNECTIONS, find_limit
from sordino.protocol.addresses import join_address
from tests.flower.lab import find_own_address, free_port

OWN_ADDRESS = find_own_address()
OWN_ADDRESS_6 = find_own_address(socket.AF_INET6)
OUTSIDE = ("203.0.113.7", 40_000)
TAKEN = [
    "/v1/control/start-run", "/v1/control/list-runs", "/v1/control/register-node",
    "/v1/runtime/acquire-task", "/v1/runtime/responses", "/docs", "/openapi.json", "/",
    "/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/../control/start-run",
    "//v1/control/start-run", "/v1/fleet/", "/V1/FLEET/pull-messages", "/health/../docs",
]  # fmt: skip
OPEN = ["/health", "/v1/fleet/pull-messages", "/v1/fleet/push-object", "/v1/fleet/get-fab"]


class Behind:
    """What stands behind the gate: it notes what reaches it."""

    def __init__(self) -> None:
        self.reached = []

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            return
        event = await receive()
        self.reached.append((scope["path"], event["body"]))
        await access_control.send_answer(send, 200, "behind")


async def call(gate, path, *, client=OUTSIDE, parts=(b"",), headers=(), shown=True) -> int:
    events = [
        {"type": "http.request", "body": part, "more_body": at + 1 < len(parts)}
        for at, part in enumerate(parts)
    ]
    sent = []
    scope = {"type": "http", "path": path, "client": client, "server": ("192.0.2.1", 8000)}
    scope["state"] = {CERTIFICATE_SHOWN: shown}

    async def receive():
        if not events:
            await asyncio.sleep(3600)
        return events.pop(0)

    async def send(event) -> None:
        sent.append(event)

    await gate({**scope, "headers": list(headers)}, receive, send)
    return sent[0]["status"]


@pytest.mark.parametrize("path", TAKEN)
def test_another_machine_gets_403_for_what_is_not_for_nodes(path) -> None:
    behind = Behind()
    assert asyncio.run(call(AccessControl(behind, secured=True), path)) == 403
    assert behind.reached == []


@pytest.mark.parametrize("path", OPEN)
def test_another_machine_reaches_what_nodes_need_with_what_it_sent(path) -> None:
    behind = Behind()
    assert asyncio.run(call(AccessControl(behind, secured=True), path, parts=(b"ab", b"c"))) == 200
    assert behind.reached == [(path, b"abc")]


@pytest.mark.parametrize("path", [path for path in OPEN if path != "/health"])
def test_a_call_of_a_node_that_has_shown_no_certificate_gets_401(path) -> None:
    behind = Behind()
    assert asyncio.run(call(AccessControl(behind, secured=True), path, shown=False)) == 401
    assert behind.reached == []
    assert asyncio.run(call(AccessControl(behind, secured=False), path, shown=False)) == 200


def test_nodes_without_keys_may_register_themselves_where_that_was_said() -> None:
    path = "/v1/fleet/register-node"
    assert asyncio.run(call(AccessControl(Behind(), secured=False), path)) == 200


def test_every_call_of_flowers_that_is_not_for_nodes_is_closed(monkeypatch) -> None:
    """All routes of the installed Flower, held against a list that is written here."""
    nodes = set(OPEN) | {
        f"/v1/fleet/{name}"
        for name in (
            "activate-node", "deactivate-node", "send-node-heartbeat", "push-messages",
            "get-run", "pull-object", "confirm-message-received",
        )
    }  # fmt: skip
    paths = {route.path for route in flower.iter_route_contexts(flower.create_app().routes)}
    assert len(paths) > 60
    gate = AccessControl(Behind(), secured=True)
    opened = {path for path in paths if path and asyncio.run(call(gate, path)) == 200}
    assert opened == nodes


@pytest.mark.parametrize(
    ("path", "size", "status"),
    [
        ("/v1/fleet/push-object", OBJECT_BYTES, 200),
        ("/v1/fleet/push-object", OBJECT_BYTES + 1, 413),
        ("/v1/fleet/pull-messages", CALL_BYTES, 200),
        ("/v1/fleet/pull-messages", CALL_BYTES + 1, 413),
    ],
)
def test_a_call_that_is_too_large_is_not_read(path, size, status) -> None:
    gate = AccessControl(Behind(), secured=True)
    said = [(b"content-length", str(size).encode())]
    assert asyncio.run(call(gate, path, headers=said)) == status
    half = bytes(size // 2)
    assert asyncio.run(call(gate, path, parts=(half, bytes(size - len(half))))) == status


def test_a_call_that_never_arrives_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(access_control, "BODY_SECONDS", 0.05)
    gate = AccessControl(Behind(), secured=True)
    assert asyncio.run(call(gate, "/v1/fleet/pull-messages", parts=())) == 408


def test_one_address_gets_so_many_calls_and_another_one_still_gets_its_own() -> None:
    gate = AccessControl(Behind(), secured=True)

    async def flood() -> list[int]:
        return [await call(gate, "/health") for _ in range(int(BURST) + 200)]

    got = asyncio.run(flood())
    assert got[: int(BURST)] == [200] * int(BURST)
    assert got[-1] == 503
    assert asyncio.run(call(gate, "/health", client=("203.0.113.8", 1))) == 200


def test_so_many_calls_are_held_open_for_one_address(monkeypatch) -> None:
    monkeypatch.setattr(access_control, "BODY_SECONDS", 0.3)
    gate = AccessControl(Behind(), secured=True)

    async def hold() -> list[int]:
        slow = [call(gate, "/v1/fleet/pull-messages", parts=()) for _ in range(CONCURRENT + 5)]
        return await asyncio.gather(*slow)

    got = asyncio.run(hold())
    assert got.count(408) == CONCURRENT
    assert got.count(503) == 5


@pytest.mark.parametrize("client", [("::1", 5), ("127.0.0.1", 5), None, ("localhost", 5)])
def test_an_address_that_no_connection_of_this_machine_has_is_not_the_coordinators(client) -> None:
    """What a header of a proxy could claim."""
    gate = AccessControl(Behind(), secured=True)
    assert asyncio.run(call(gate, "/v1/control/list-runs", client=client)) == 403


@contextmanager
def serve(app: AccessControl, host: str = "127.0.0.1"):
    port = free_port()
    config = uvicorn.Config(app, host=host, port=port, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    # Bound as a SuperLink's listener is: `::` stands for IPv4 too.
    thread = threading.Thread(target=server.run, args=([config.bind_socket()],))
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://{join_address(host, port)}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def served():
    with serve(AccessControl(Behind(), secured=True)) as url:
        yield url


ASK = """
import sys, urllib.request, urllib.error
request = urllib.request.Request(sys.argv[1], headers=dict(a.split(":") for a in sys.argv[2:]))
try:
    print(urllib.request.urlopen(request, timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def status_of(url: str, *headers: str, user: int | None = None) -> int:
    command = [sys.executable, "-S", "-c", ASK, url, *headers]
    if user is not None:
        command[0] = "/usr/bin/python3"
    done = subprocess.run(command, capture_output=True, text=True, check=True, user=user, cwd="/")
    return int(done.stdout)


def test_the_coordinators_own_account_reaches_what_is_not_for_nodes(served) -> None:
    assert status_of(f"{served}/v1/control/list-runs") == 200
    assert status_of(f"{served}/docs") == 200


@pytest.mark.skipif(OWN_ADDRESS is None, reason="this machine has no address but loopback's")
def test_the_coordinators_own_account_is_known_by_the_machines_own_address_too() -> None:
    """A coordinator that others reach was once cut off from its own SuperLink."""
    with serve(AccessControl(Behind(), secured=True), str(OWN_ADDRESS)) as url:
        assert status_of(f"{url}/v1/control/list-runs") == 200
    with serve(AccessControl(Behind(), secured=True, account=12_345), str(OWN_ADDRESS)) as url:
        assert status_of(f"{url}/v1/control/list-runs") == 403
        assert status_of(f"{url}/health") == 200


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1", f"[{OWN_ADDRESS_6}]"])
def test_the_own_account_is_known_by_every_address_of_a_listener_on_both_protocols(host) -> None:
    """Of IPv4 it is shown as an address of IPv6, which is in another table of the system's."""
    if host == "[None]":
        pytest.skip("this machine has no address of IPv6 but loopback's")
    for account, status in ((os.getuid(), 200), (12_345, 403)):
        with serve(AccessControl(Behind(), secured=True, account=account), "::") as url:
            port = url.rpartition(":")[2]
            assert status_of(f"http://{host}:{port}/v1/control/list-runs") == status
            assert status_of(f"http://{host}:{port}/health") == 200


@pytest.mark.parametrize(
    ("caller", "connections"),
    [
        ("::1", LOCAL_CONNECTIONS),
        ("127.0.0.1", LOCAL_CONNECTIONS),
        ("::ffff:127.0.0.1", LOCAL_CONNECTIONS),
        ("::2", CONNECTIONS),
        ("2001:db8::1", CONNECTIONS),
        ("192.0.2.1", CONNECTIONS),
    ],
)
def test_this_machine_alone_holds_more_connections(caller, connections) -> None:
    """By the network of its subscriber, `::1` once counted as anybody."""
    assert find_limit(caller) == connections


@pytest.mark.parametrize(
    ("client", "server", "local"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("2001:db8::1", "2001:db8::1", True),
        ("127.0.0.1", "127.0.1.1", True),
        ("203.0.113.7", "192.0.2.1", False),
        ("192.0.2.1", "127.0.0.1", False),
        ("fl.example.org", "fl.example.org", False),
    ],
)
def test_a_connection_is_within_this_machine_only_between_its_own_addresses(
    client, server, local
) -> None:
    assert may_be_local(client, server) is local


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play a relay of root's")
def test_what_root_relays_is_not_the_coordinators_unless_it_is_root_itself() -> None:
    """A relay for a low port often runs as root, and passes on what comes from anywhere."""
    with serve(AccessControl(Behind(), secured=True, account=12_345)) as url:
        assert status_of(f"{url}/v1/control/start-run") == 403
        assert status_of(f"{url}/v1/runtime/acquire-task") == 403
        assert status_of(f"{url}/health") == 200
    with serve(AccessControl(Behind(), secured=True, account=0)) as url:
        assert status_of(f"{url}/v1/control/start-run") == 200


def test_an_address_that_a_header_claims_gives_no_rights(served) -> None:
    claimed = "X-Forwarded-For:203.0.113.7"
    assert status_of(f"{served}/v1/control/list-runs", claimed) == 403


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play another account")
@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="no Python for everybody")
def test_another_account_of_the_coordinators_machine_reaches_what_nodes_do(served) -> None:
    assert status_of(f"{served}/v1/control/start-run", user=65534) == 403
    assert status_of(f"{served}/v1/runtime/acquire-task", user=65534) == 403
    claimed = "X-Forwarded-For:127.0.0.1"
    assert status_of(f"{served}/v1/control/start-run", claimed, user=65534) == 403
    assert status_of(f"{served}/health", user=65534) == 200


def test_the_gate_is_what_a_call_to_flowers_app_meets_first(monkeypatch) -> None:
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
    with pytest.raises(UserError, match="not in front"):
        superlink.check_access_control()
    superlink.install_access_control(secured=True)
    superlink.check_access_control()
    app = flower.create_app()
    assert app.user_middleware[0].cls is AccessControl
    assert asyncio.run(call(app, "/v1/control/list-runs")) == 403
    assert asyncio.run(call(app, "/docs")) == 403


def test_a_flower_without_a_place_for_the_gate_is_not_started(monkeypatch) -> None:
    monkeypatch.delattr(extensions, "get_middleware")
    with pytest.raises(UserError, match="open to everybody"):
        superlink.install_access_control(secured=True)
