"""Controls which calls reach a SuperLink: those of nodes, and all of the coordinator's account.

Flower serves nodes, runs and accounts on one port and asks for no account. Here everything but
the calls of nodes is reserved for the coordinator's own account on the coordinator's own machine.
Calls of others are limited in size, in time and in number before Flower reads them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sordino.flower.callers import identify_caller
from sordino.protocol.addresses import IpAddress, unmap_address

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# The calls of nodes begin with this path.
FLEET = "/v1/fleet/"
NODE_CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
# Nodes without keys register themselves; for nodes with keys the coordinator does it.
REGISTRATION_CALLS = ("register-node", "unregister-node")
# Bytes of a part of an upload: Flower cuts arrays at 20 MiB.
OBJECT_BYTES = 24 * 2**20
# Bytes of every other call.
CALL_BYTES = 2**20
# Calls of one caller in a second, at once, and that are answered at the same time.
RATE = 100.0
BURST = 400.0
CONCURRENT = 32
# Seconds in which a call must have arrived.
BODY_SECONDS = 60.0
# Callers that are remembered.
CALLERS = 10_000
# Headers of proxies, which name another address than the caller's own.
FORWARDED = (b"x-forwarded-for", b"forwarded", b"x-real-ip")
# Linux' tables of all connections, with the account of each.
CONNECTION_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# The state of an established connection in these tables.
ESTABLISHED = "01"
# Name in the state of a connection: whether it showed a node's certificate.
CERTIFICATE_SHOWN = "sordino-certificate"


class TooLarge(Exception):
    """Is raised for a call that is larger than any that a node makes."""


@dataclass
class CallBudget:
    """Holds how much one caller may still ask.

    Attributes:
        left: Calls that are left; they come back with time.
        seen: When the last call came, on the monotonic clock.
        open: Calls that are being answered.
    """

    left: float = BURST
    seen: float = field(default_factory=time.monotonic)
    open: int = 0

    def spend_call(self) -> bool:
        """Spends a call and returns True, if one is left."""
        now = time.monotonic()
        self.left = min(BURST, self.left + (now - self.seen) * RATE)
        self.seen = now
        if self.left < 1.0 or self.open >= CONCURRENT:
            return False
        self.left -= 1.0
        return True


class AccessControl:
    """ASGI middleware that lets nodes make the calls of nodes, and the own account all calls."""

    def __init__(self, app: App, *, secured: bool, account: int | None = None) -> None:
        """Creates the middleware.

        Args:
            app: The app behind it.
            secured: Whether nodes have keys, so that none registers itself.
            account: Id of the coordinator's account; by default that of this process.
        """
        if account is None:
            account = os.getuid()
        self._app = app
        self._secured = secured
        self._account = account
        calls: tuple[str, ...] = NODE_CALLS
        if not secured:
            calls += REGISTRATION_CALLS
        # From the path of a call that is open to nodes to its largest number of bytes.
        self._largest = {FLEET + name: CALL_BYTES for name in calls}
        self._largest["/health"] = CALL_BYTES
        self._largest[FLEET + "push-object"] = OBJECT_BYTES
        self._budgets: dict[str, CallBudget] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a call on, or answers 401, 403, 408, 413 or 503.

        Args:
            scope: What ASGI says about the call.
            receive: Gives the next part of it.
            send: Sends a part of the answer.
        """
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # WebSockets and the like: neither nodes nor the coordinator need them.
            return
        if self._secured and scope["path"].startswith(FLEET) and not has_certificate(scope):
            await send_answer(send, 401, "a node shows the certificate of its registered key")
            return
        if is_own_call(scope, self._account):
            await self._app(scope, receive, send)
            return
        largest = self._largest.get(scope["path"])
        if largest is None:
            await send_answer(send, 403, "only the coordinator's own account reaches this")
            return
        await self._admit(scope, receive, send, largest)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, largest: int) -> None:
        """Passes on a call of a node, within the limits of its caller."""
        budget = self._find_budget(scope)
        if not budget.spend_call():
            await send_answer(send, 503, "too many calls from one address")
            return
        budget.open += 1
        try:
            body = await asyncio.wait_for(read_body(scope, receive, largest), BODY_SECONDS)
        except TooLarge:
            await send_answer(send, 413, f"a call has at most {largest} bytes")
            return
        except TimeoutError:
            await send_answer(send, 408, "the call did not arrive in time")
            return
        else:
            await self._app(scope, replay_body(body, receive), send)
        finally:
            budget.open -= 1

    def _find_budget(self, scope: Scope) -> CallBudget:
        caller = ""
        if scope.get("client"):
            caller = identify_caller(scope["client"][0])
        if caller not in self._budgets and len(self._budgets) >= CALLERS:
            self._forget_idle_callers()
        return self._budgets.setdefault(caller, CallBudget())

    def _forget_idle_callers(self) -> None:
        idle = [caller for caller, budget in self._budgets.items() if not budget.open]
        for caller in idle[: CALLERS // 2]:
            del self._budgets[caller]


async def send_answer(send: Send, status: int, words: str) -> None:
    """Answers a call that is not passed on.

    Args:
        send: Sends a part of the answer.
        status: Status of HTTP.
        words: Body of the answer.
    """
    head = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": words.encode()})


async def read_body(scope: Scope, receive: Receive, largest: int) -> bytes:
    """Returns the whole body of a call.

    Args:
        scope: What ASGI says about the call.
        receive: Gives the next part of it.
        largest: Bytes that are allowed.

    Raises:
        TooLarge: The body is larger, or its header announces more.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > largest):
            raise TooLarge
    parts = bytearray()
    more = True
    while more:
        event = await receive()
        if event["type"] != "http.request":
            break
        parts += event.get("body", b"")
        if len(parts) > largest:
            raise TooLarge
        more = event.get("more_body", False)
    return bytes(parts)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Returns a function that gives a body that was read already, and then what follows it.

    Args:
        body: The body.
        receive: Gives what follows.
    """
    is_replayed = False

    async def receive_again() -> MutableMapping[str, Any]:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def has_certificate(scope: Scope) -> bool:
    """Returns whether the connection of a call showed the certificate of a registered node.

    Args:
        scope: What ASGI says about the call.
    """
    return bool(scope.get("state", {}).get(CERTIFICATE_SHOWN))


def is_own_call(scope: Scope, account: int) -> bool:
    """Returns whether a call comes from a process of an account on this machine.

    Args:
        scope: What ASGI says about the call.
        account: Id of the account.
    """
    # A proxy may have given the call the address that its header claims.
    if any(name in FORWARDED for name, _ in scope["headers"]):
        return False
    return is_own_connection(scope.get("client"), scope.get("server"), account)


def is_own_connection(
    client: tuple[str, int] | None, server: tuple[str, int | None] | None, account: int
) -> bool:
    """Returns whether a process of an account on this machine holds the other end of a connection.

    Root is an account like any other: a relay is often run by root, and what it passes on comes
    from anywhere.

    Args:
        client: Address and port of the other end.
        server: Address and port of this end.
        account: Id of the account.
    """
    if not client or not server or server[1] is None:
        return False
    if not may_be_local(client[0], server[0]):
        return False
    return find_owner(client, (server[0], server[1])) == account


def may_be_local(client: str, server: str) -> bool:
    """Returns whether a connection between two addresses can be within this machine.

    A machine connects to one of its own addresses from the same address, and over loopback from a
    loopback address. Calls of other machines are recognized by this before any table is read.

    Args:
        client: Address of the other end.
        server: Address of this end.
    """
    try:
        ends = [unmap_address(ipaddress.ip_address(host)) for host in (client, server)]
    except ValueError:
        return False
    return ends[0].is_loopback or ends[0] == ends[1]


def find_owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Returns the account whose process holds the other end of a connection on this machine.

    Linux keeps tables of all connections with the account of each. Addresses are compared as well
    as ports: another account can have the same ports between other loopback addresses.

    Args:
        client: Address and port of the other end.
        server: Address and port of this end.

    Returns:
        Id of the account; None without such a table or such a connection, and then no caller
        counts as the coordinator.
    """
    try:
        ends = [
            (unmap_address(ipaddress.ip_address(host)), port) for host, port in (client, server)
        ]
    except ValueError:
        return None
    for table in CONNECTION_TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] != ESTABLISHED:
                continue
            if [read_end(fields[1]), read_end(fields[2])] == ends:
                return int(fields[7])
    return None


def read_end(end: str) -> tuple[IpAddress, int]:
    """Returns the address and the port of an end of a connection in Linux' tables.

    Args:
        end: The end as it is written there: address and port in hexadecimal.
    """
    host, _, port = end.rpartition(":")
    raw = bytes.fromhex(host)
    # Each word of four bytes is in the order of the processor.
    words = [raw[start : start + 4][::-1] for start in range(0, len(raw), 4)]
    return unmap_address(ipaddress.ip_address(b"".join(words))), int(port, 16)
