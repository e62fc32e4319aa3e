"""Stands in front of a SuperLink: other machines reach what nodes need, and nothing else.

Flower serves nodes, runs and accounts on one port, and asks for no account. Here everything but
the calls of nodes is for the coordinator's own account on the coordinator's own machine. What
others send is limited in size, in time and in number before Flower reads it.
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

from sordino.engines.flower.door import place_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

FLEET = "/v1/fleet/"
CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages",
    "get-run", "get-fab", "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
JOINING = ("register-node", "unregister-node")  # a coordinator does it for nodes that have keys
OBJECT = 24 * 2**20  # bytes of a part of an upload: Flower cuts arrays at 20 MiB
CALL = 2**20  # bytes of every other call
RATE = 100.0  # calls in a second, of one address
BURST = 400.0  # calls at once, of one address
TOGETHER = 32  # calls that are answered at the same time, of one address
BODY = 60.0  # seconds in which a call must have arrived
ADDRESSES = 10_000  # that are remembered
FORWARDED = (b"x-forwarded-for", b"forwarded", b"x-real-ip")  # headers of proxies
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class TooLarge(Exception):
    """A call is larger than any that a node makes."""


@dataclass
class Visitor:
    """Holds how much one address may still ask: calls left, and calls being answered."""

    left: float = BURST
    seen: float = field(default_factory=time.monotonic)
    open: int = 0

    def takes(self) -> bool:
        """Takes a call if one is left."""
        now = time.monotonic()
        self.left = min(BURST, self.left + (now - self.seen) * RATE)
        self.seen = now
        if self.left < 1.0 or self.open >= TOGETHER:
            return False
        self.left -= 1.0
        return True


class Gate:
    """Lets nodes reach a SuperLink's calls for nodes, and its own account everything.

    Args:
        app: What stands behind it.
        secured: Whether nodes have keys, so that nobody registers itself.
        account: Number of the coordinator's account on this machine.
    """

    def __init__(self, app: App, *, secured: bool, account: int | None = None) -> None:
        self._app = app
        self._account = os.getuid() if account is None else account
        calls = CALLS if secured else CALLS + JOINING
        self._open = {"/health": CALL, **{FLEET + name: CALL for name in calls}}
        self._open[FLEET + "push-object"] = OBJECT
        self._visitors: dict[str, Visitor] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a call on, or answers 403, 408, 413 or 503."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # nobody needs anything else here
        if is_own(scope, self._account):
            await self._app(scope, receive, send)
            return
        largest = self._open.get(scope["path"])
        if largest is None:
            await answer(send, 403, "only the coordinator's own account reaches this")
            return
        await self._admit(scope, receive, send, largest)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, largest: int) -> None:
        visitor = self._visitor(scope)
        if not visitor.takes():
            await answer(send, 503, "too many calls from one address")
            return
        visitor.open += 1
        try:
            body = await asyncio.wait_for(read_body(scope, receive, largest), BODY)
        except TooLarge:
            await answer(send, 413, f"a call has at most {largest} bytes")
            return
        except TimeoutError:
            await answer(send, 408, "the call did not arrive in time")
            return
        else:
            await self._app(scope, replay(body, receive), send)
        finally:
            visitor.open -= 1

    def _visitor(self, scope: Scope) -> Visitor:
        address = place_of(scope["client"][0]) if scope.get("client") else ""
        if address not in self._visitors and len(self._visitors) >= ADDRESSES:
            idle = [name for name, one in self._visitors.items() if not one.open]
            for name in idle[: ADDRESSES // 2]:
                del self._visitors[name]
        return self._visitors.setdefault(address, Visitor())


async def answer(send: Send, status: int, words: str) -> None:
    """Answers a call that is not passed on."""
    head = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": words.encode()})


async def read_body(scope: Scope, receive: Receive, largest: int) -> bytes:
    """Returns the whole of a call.

    Raises:
        TooLarge: There is more of it than allowed, or it says that there will be.
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


def replay(body: bytes, receive: Receive) -> Receive:
    """Returns what gives a call that was read once more, and then what comes after it."""
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def is_own(scope: Scope, account: int) -> bool:
    """Whether a call comes from this machine, from a process of this account or of root.

    A call that says for whom it was forwarded may have been given the address that it claims.
    """
    client = scope.get("client")
    server = scope.get("server")
    forwarded = any(name in FORWARDED for name, _ in scope["headers"])
    if not client or not server or forwarded:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    if not address.is_loopback:
        return False
    owner = find_owner(client, server)
    return owner in (account, 0)


def find_owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Returns the account whose process holds the other end of a connection on this machine.

    The system keeps a table of all connections with the account of each. None where there is no
    such table or no such connection: then nobody is taken for the coordinator. Addresses count as
    well as ports: another account can have the same ports between other loopback addresses.
    """
    try:
        ends = [(as_plain(ipaddress.ip_address(host)), port) for host, port in (client, server)]
    except ValueError:
        return None
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            state = fields[3]
            if state == "01" and [read_end(end) for end in fields[1:3]] == ends:
                return int(fields[7])
    return None


def read_end(end: str) -> tuple[Address, int]:
    """Returns the address and the port of an end of a connection in the system's table."""
    host, _, port = end.rpartition(":")
    raw = bytes.fromhex(host)
    words = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
    return as_plain(ipaddress.ip_address(b"".join(words))), int(port, 16)


def as_plain(address: Address) -> Address:
    """Returns an address of IPv4 as such where it is written as one of IPv6."""
    return getattr(address, "ipv4_mapped", None) or address
